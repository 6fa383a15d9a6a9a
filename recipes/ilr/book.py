"""Split a book from Project Gutenberg into training, validation and test text, one paragraph per line.

    python book.py BOOK FOLDER

The first 90 % of the paragraphs are for training, the next 5 % for validation, the last 5 % for testing. Project
Gutenberg's header and footer are removed; a file without its markers is used in full.
"""

import argparse
import re
from pathlib import Path

START, END = re.compile(r"^\*\*\* START OF TH.*\*\*\*$", re.M), re.compile(r"^\*\*\* END OF TH.*\*\*\*$", re.M)
PARTS = {"train": 0.90, "valid": 0.95, "test": 1.0}


def paragraphs(text: str) -> list[str]:
    """The paragraphs of the book, each joined into one line."""
    start, end = START.search(text), END.search(text)
    body = text[start.end() if start else 0 : end.start() if end else len(text)]
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", body) if part.strip()]


def split(lines: list[str]) -> dict[str, list[str]]:
    """The lines of each part, which are consecutive, by name of the part."""
    ends = {name: round(share * len(lines)) for name, share in PARTS.items()}
    return {name: lines[start:end] for (name, end), start in zip(ends.items(), [0, *ends.values()])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("book", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        text = args.book.read_text(encoding="utf-8-sig")
        for name, lines in split(paragraphs(text)).items():
            (args.folder / f"{name}.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
