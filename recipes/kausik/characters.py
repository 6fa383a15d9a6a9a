"""Split tiny Shakespeare into characters for fairseq: the first 90 % for training, the rest for validation.

    python characters.py input.txt FOLDER

Writes FOLDER/train.chars, FOLDER/valid.chars and FOLDER/valid1.chars: one line per line of text, with a space between
characters and U+2581 for each space of the text. valid1 is the end of the training text and as long as valid; on it the
training loss is measured as on the validation text, without dropout. fairseq has its own end-of-line symbol, so
65 characters remain 65 symbols; a text that does not end with a line break gets one more end of line.
"""

import argparse
from pathlib import Path

BLANK = "\u2581"


def split(text: str) -> dict[str, str]:
    """nanoGPT's split at int(0.9 n) characters; `valid1` is the end of the training text, as long as `valid`."""
    end = int(0.9 * len(text))
    train, valid = text[:end], text[end:]
    return {"train": train, "valid": valid, "valid1": train[-len(valid) :]}


def spaced(text: str) -> str:
    """The text with a space between the characters of each line."""
    lines = text.removesuffix("\n").split("\n")
    return "".join(" ".join(line.replace(" ", BLANK)) + "\n" for line in lines)


def write(source: Path, folder: Path) -> None:
    """Writes the three sets."""
    with source.open(encoding="utf-8", newline="") as file:
        text = file.read()
    for name, part in split(text).items():
        (folder / f"{name}.chars").write_text(spaced(part), encoding="utf-8", newline="")
        print(f"{name}: {len(part):,} characters, {len(set(text))} different in all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the text")
    parser.add_argument("folder", type=Path, help="folder to write")
    args = parser.parse_args()
    try:
        write(args.source, args.folder)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
