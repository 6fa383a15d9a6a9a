"""Split a text in two: the first 90 % of its lines, and the rest.

python cut.py TEXT FIRST REST
"""

import sys
from pathlib import Path


def main() -> None:
    text, first, rest = map(Path, sys.argv[1:])
    lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
    end = len(lines) * 9 // 10
    first.write_text("".join(lines[:end]), encoding="utf-8")
    rest.write_text("".join(lines[end:]), encoding="utf-8")


if __name__ == "__main__":
    main()
