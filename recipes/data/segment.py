"""Train a sentencepiece model on text files, or split text into its pieces.

python segment.py train MODEL --pieces 6000 FILE...
python segment.py encode MODEL TEXT PIECES
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import sentencepiece

from recurrence.files import require_small

MOST_UNKNOWN = 0.01
LONGEST_LINE = 1 << 30  # bytes: the most that sentencepiece takes


def train(model: Path, files: list[Path], pieces: int, kind: str) -> None:
    """Trains a sentencepiece model of at most `pieces` pieces.

    The character coverage is 1, so that no training text has unknown characters.

    Raises:
        ValueError: if the model's folder is missing, its name ends otherwise, a text is not UTF-8, or all are empty.
    """
    if model.suffix != ".model":  # which sentencepiece appends
        raise ValueError(f"{model}: must end in .model")
    if not model.parent.is_dir():
        raise ValueError(f"{model.parent}: no such folder, in which {model.name} would be written")
    if not sum(bool(line.strip()) for file in files for line in lines_of(file)):  # reads all lines, which checks them
        raise ValueError(f"{', '.join(map(str, files))}: must hold text")
    sentencepiece.SentencePieceTrainer.train(
        input=[str(file) for file in files],
        model_prefix=str(model.with_suffix("")),
        vocab_size=pieces,
        model_type=kind,
        character_coverage=1.0,
        max_sentence_length=LONGEST_LINE,  # over 4,192 bytes, its default, it leaves a line out
        hard_vocab_limit=False,
        minloglevel=1,
    )
    found = len(sentencepiece.SentencePieceProcessor(model_file=str(model)))
    if found < pieces:
        print(f"{model}: has {found} pieces, not {pieces}: the text has no more", file=sys.stderr)


def encode(model: Path, text: Path, pieces: Path) -> None:
    """Writes the pieces of each line of text, separated by spaces. Raises ValueError if it is not UTF-8."""
    require_small(model)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    count, unknown = 0, 0
    with pieces.open("w", encoding="utf-8") as output:
        for line in lines_of(text):
            found = processor.encode(line.rstrip("\n"), out_type=str)
            count += len(found)
            unknown += sum(map(processor.is_unknown, map(processor.piece_to_id, found)))
            output.write(" ".join(found) + "\n")
    if unknown > MOST_UNKNOWN * count:
        print(f"{text}: {model} does not know {unknown} of {count} pieces: a model of other data?", file=sys.stderr)


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text. Raises ValueError with the number of a line that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode()
            except UnicodeDecodeError:
                raise ValueError(f"{path}, line {number}: must be UTF-8") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("model", type=Path, help="file to write, ending in .model")
    training.add_argument("files", type=Path, nargs="+", help="plain text, one sentence per line")
    training.add_argument("--pieces", type=int, required=True, help="size of the vocabulary")
    training.add_argument("--kind", choices=["bpe", "unigram", "char"], default="bpe", help="of pieces (default bpe)")
    encoding = commands.add_parser("encode")
    encoding.add_argument("model", type=Path, help="file that train has written")
    encoding.add_argument("text", type=Path, help="file to read, one sentence per line")
    encoding.add_argument("pieces", type=Path, help="file to write")
    args = vars(parser.parse_args())
    try:
        {"train": train, "encode": encode}[args.pop("command")](**args)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: of sentencepiece
        parser.error(str(error))


if __name__ == "__main__":
    main()
