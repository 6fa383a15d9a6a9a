"""Cut tiny Shakespeare into characters for fairseq: the first 90 % for training, the rest for validation.

    python characters.py input.txt FOLDER

Writes FOLDER/train.chars and FOLDER/valid.chars, a line of text a line, its characters apart and U+2581 in place of
each blank. The end of a line is a symbol of its own in fairseq, so that 65 characters stay 65; a training text that
stops within a line gets one end of a line more than the characters that it has.
"""

import sys
from pathlib import Path

BLANK = "\u2581"


def split(text: str) -> tuple[str, str]:
    """nanoGPT's split: the first int(0.9 n) characters, and the others."""
    end = int(0.9 * len(text))
    return text[:end], text[end:]


def spaced(text: str) -> str:
    """Every line with its characters apart."""
    lines = text.removesuffix("\n").split("\n")
    return "".join(" ".join(line.replace(" ", BLANK)) + "\n" for line in lines)


def main() -> None:
    source, folder = map(Path, sys.argv[1:])
    with source.open(encoding="utf-8", newline="") as file:
        text = file.read()
    for name, part in zip(("train", "valid"), split(text)):
        (folder / f"{name}.chars").write_text(spaced(part), encoding="utf-8", newline="")
        print(f"{name}: {len(part):,} characters, {len(set(text))} different in all")


if __name__ == "__main__":
    main()
