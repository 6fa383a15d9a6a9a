"""Split a text in two: the first 90 % of its lines, and the rest.

python cut.py TEXT FIRST REST
"""

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("text", "first", "rest"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    try:
        lines = args.text.read_text(encoding="utf-8").splitlines(keepends=True)
        end = len(lines) * 9 // 10
        args.first.write_text("".join(lines[:end]), encoding="utf-8")
        args.rest.write_text("".join(lines[end:]), encoding="utf-8")
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
