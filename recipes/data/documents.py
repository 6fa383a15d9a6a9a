"""Cut documents into the pieces of a tokenizer, so many pieces for training, for validation and for the test.

    python documents.py SOURCE TOKENIZER OUTPUT --train 500000000 --valid 2500000 --test 25000000

SOURCE is a data set on the Hugging Face hub or a folder of its files (parquet or json lines), with a column `text`.
TOKENIZER is a folder of vocab.json and merges.txt (byte-level BPE) or of tokenizer.json. Writes OUTPUT/train.pieces,
OUTPUT/valid.pieces and OUTPUT/test.pieces, a document a line, its line breaks being pieces too. The documents are taken
in the order of the source, whole, one set after the other. A piece is written as its number in the vocabulary, since
some vocabularies have pieces that are blanks, between which fairseq would not tell.
"""

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import tokenizers

BATCH = 1000
SETS = ("train", "valid", "test")


def texts(source: str) -> Iterator[str]:
    """The documents of a data set, read as they are asked for."""
    import datasets  # slow, and the rest does not need it

    for row in datasets.load_dataset(source, split="train", streaming=True):
        yield row["text"]


def tokenizer(folder: Path):
    """The tokenizer of a folder."""
    if (folder / "tokenizer.json").exists():
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizers.ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))


def pieces(documents: Iterable[str], cutter) -> Iterator[list[int]]:
    """The pieces of each document, without marks of a beginning or an end; an empty document is left out."""
    documents = iter(documents)
    while batch := list(islice(documents, BATCH)):
        for encoding in cutter.encode_batch(batch, add_special_tokens=False):
            if encoding.ids:
                yield encoding.ids


def write(documents: Iterator[list[int]], path: Path, budget: int) -> int:
    """Write whole documents until there are as many pieces as the budget, and return how many there are.

    Raises:
        ValueError: the documents end before.
    """
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for document in documents:
            file.write(" ".join(map(str, document)) + "\n")
            count += len(document)
            if count >= budget:
                return count
    raise ValueError(f"{path.name}: the documents end after {count} pieces, but {budget} are asked for")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("output", type=Path)
    for name in SETS:
        parser.add_argument(f"--{name}", type=int, required=True, help=f"pieces of the {name} set, at least")
    given = parser.parse_args()
    documents = pieces(texts(given.source), tokenizer(given.tokenizer))
    try:
        for name in SETS:
            count = write(documents, given.output / f"{name}.pieces", getattr(given, name))
            print(f"{name}: {count} pieces")
    except (OSError, ValueError) as error:
        raise SystemExit(f"{given.source}: {error}") from None


if __name__ == "__main__":
    main()
