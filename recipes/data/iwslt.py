"""Extract the text of IWSLT 2014's German-English talks from the unpacked archive.

    python iwslt.py FOLDER OUTPUT

Writes OUTPUT/train.{de,en} and OUTPUT/test.{de,en}, one sentence per line. The selection is the same as in fairseq's
script for this set: training has everything but the addresses, keywords and numbers of the talks; the test set is five
development and test sets together.
"""

import argparse
import re
from pathlib import Path

LANGUAGES = ("de", "en")
LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
MARKS = re.compile(r"</?(title|description)>")
SEGMENT = re.compile(r"<seg id=\"\d+\">\s*(.*?)\s*</seg>")
TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def training_text(tags: str) -> list[str]:
    """The sentences, titles and descriptions in a file of training data."""
    kept = [line for line in tags.removesuffix("\n").split("\n") if not any(mark in line for mark in LEFT_OUT)]
    return [MARKS.sub("", line).strip() for line in kept]


def segments(xml: str) -> list[str]:
    """The sentences of a test set, with typographic apostrophes replaced by plain ones, as in the training data."""
    return [text.replace("’", "'") for text in SEGMENT.findall(xml)]


def extract(folder: Path, output: Path) -> None:
    """Writes both sets in both languages."""
    for language in LANGUAGES:
        train = training_text((folder / f"train.tags.de-en.{language}").read_text(encoding="utf-8"))
        sets = [folder / f"IWSLT14.{name}.de-en.{language}.xml" for name in TESTS]
        test = [line for path in sets for line in segments(path.read_text(encoding="utf-8"))]
        for name, lines in (("train", train), ("test", test)):
            text = "".join(line + "\n" for line in lines)
            (output / f"{name}.{language}").write_text(text, encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the unpacked archive")
    parser.add_argument("output", type=Path, help="folder to write")
    args = parser.parse_args()
    try:
        extract(args.folder, args.output)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
