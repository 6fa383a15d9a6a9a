"""Cut tiny Shakespeare into characters for fairseq: the first 90 % for training, the rest for validation.

    python characters.py input.txt FOLDER

Writes FOLDER/train.chars, FOLDER/valid.chars and FOLDER/valid1.chars, a line of text a line, its characters apart and
U+2581 in place of each blank. valid1 is the end of the training text, as long as valid: there the loss of training is
measured as that of validation is, without dropout. The end of a line is a symbol of its own in fairseq, so that 65
characters stay 65; a text that stops within a line gets one end of a line more than the characters that it has.
"""

import sys
from pathlib import Path

BLANK = "\u2581"


def split(text: str) -> dict[str, str]:
    """nanoGPT's split: the first int(0.9 n) characters, and the others; and the end of the first part once more."""
    end = int(0.9 * len(text))
    train, valid = text[:end], text[end:]
    return {"train": train, "valid": valid, "valid1": train[-len(valid) :]}


def spaced(text: str) -> str:
    """Every line with its characters apart."""
    lines = text.removesuffix("\n").split("\n")
    return "".join(" ".join(line.replace(" ", BLANK)) + "\n" for line in lines)


def main() -> None:
    source, folder = map(Path, sys.argv[1:])
    with source.open(encoding="utf-8", newline="") as file:
        text = file.read()
    for name, part in split(text).items():
        (folder / f"{name}.chars").write_text(spaced(part), encoding="utf-8", newline="")
        print(f"{name}: {len(part):,} characters, {len(set(text))} different in all")


if __name__ == "__main__":
    main()
