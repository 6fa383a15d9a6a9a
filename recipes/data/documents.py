"""Tokenize a data set of documents and write training, validation and test sets of given sizes in tokens.

    python documents.py SOURCE TOKENIZER OUTPUT --train 500000000 --valid 2500000 --test 25000000

SOURCE is a data set on the Hugging Face hub or a folder of its files (parquet or json lines), with a column `text`.
TOKENIZER is a folder of vocab.json and merges.txt (byte-level BPE) or of tokenizer.json. Writes OUTPUT/train.pieces,
OUTPUT/valid.pieces and OUTPUT/test.pieces, one document per line; line breaks within a document are tokens too. Each
set takes complete documents, in the order of the source, one set after the other. A token is written as its number in
the vocabulary, because some vocabularies have tokens that consist of whitespace, at which fairseq would split.
"""

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import tokenizers

BATCH = 1000
SETS = ("train", "valid", "test")


def texts(source: str) -> Iterator[str]:
    """The documents of a data set, streamed."""
    import datasets  # here, as the import is slow and only needed for real data

    for row in datasets.load_dataset(source, split="train", streaming=True):
        yield row["text"]


def tokenizer(folder: Path):
    """Loads the tokenizer of a folder."""
    if (folder / "tokenizer.json").exists():
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizers.ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))


def pieces(documents: Iterable[str], encoder) -> Iterator[list[int]]:
    """The token numbers of each document, without begin and end symbols; empty documents are skipped."""
    documents = iter(documents)
    while batch := list(islice(documents, BATCH)):
        for encoding in encoder.encode_batch(batch, add_special_tokens=False):
            if encoding.ids:
                yield encoding.ids


def write(documents: Iterator[list[int]], path: Path, budget: int) -> int:
    """Writes complete documents until the budget of tokens is reached, and returns the number of tokens.

    Raises:
        ValueError: if there are too few documents.
    """
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for document in documents:
            file.write(" ".join(map(str, document)) + "\n")
            count += len(document)
            if count >= budget:
                return count
    raise ValueError(f"{path.name}: the documents end after {count} pieces, but {budget} are required")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("output", type=Path)
    for name in SETS:
        parser.add_argument(f"--{name}", type=int, required=True, help=f"minimum number of pieces in the {name} set")
    args = parser.parse_args()
    documents = pieces(texts(args.source), tokenizer(args.tokenizer))
    try:
        for name in SETS:
            count = write(documents, args.output / f"{name}.pieces", getattr(args, name))
            print(f"{name}: {count} pieces")
    except (OSError, ValueError) as error:
        parser.error(f"{args.source}: {error}")


if __name__ == "__main__":
    main()
