"""Cut a book of Project Gutenberg into training, validation and test text, a paragraph a line.

    python book.py BOOK FOLDER

The first 90 % of the paragraphs are for training, the next 5 % for validation, the last 5 % for the test. What the
project has put before and behind the book is left out; a file without its marks is taken whole.
"""

import argparse
import re
from pathlib import Path

START, END = re.compile(r"^\*\*\* START OF TH.*\*\*\*$", re.M), re.compile(r"^\*\*\* END OF TH.*\*\*\*$", re.M)
PARTS = {"train": 0.90, "valid": 0.95, "test": 1.0}


def paragraphs(text: str) -> list[str]:
    """The book's paragraphs, each on one line."""
    start, end = START.search(text), END.search(text)
    body = text[start.end() if start else 0 : end.start() if end else len(text)]
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", body) if part.strip()]


def split(lines: list[str]) -> dict[str, list[str]]:
    """Consecutive parts, by name."""
    ends = {name: round(share * len(lines)) for name, share in PARTS.items()}
    return {name: lines[start:end] for (name, end), start in zip(ends.items(), [0, *ends.values()])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("book", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    text = arguments.book.read_text(encoding="utf-8-sig")
    for name, lines in split(paragraphs(text)).items():
        (arguments.folder / f"{name}.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
