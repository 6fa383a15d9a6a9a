"""Train a sentencepiece model on text files, or split text into its pieces.

python segment.py train MODEL --pieces 6000 FILE...
python segment.py encode MODEL TEXT PIECES
"""

import argparse
from pathlib import Path

import sentencepiece


def train(model: Path, files: list[Path], pieces: int, kind: str) -> None:
    """Trains a sentencepiece model of at most `pieces` pieces.

    The character coverage is 1, so that no training text has unknown characters.
    """
    sentencepiece.SentencePieceTrainer.train(
        input=[str(file) for file in files],
        model_prefix=str(model.with_suffix("")),
        vocab_size=pieces,
        model_type=kind,
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=1,
    )


def encode(model: Path, text: Path, pieces: Path) -> None:
    """Writes the pieces of each line of text, separated by spaces."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    with text.open(encoding="utf-8", newline="\n") as lines, pieces.open("w", encoding="utf-8") as output:
        for line in lines:
            output.write(" ".join(processor.encode(line.rstrip("\n"), out_type=str)) + "\n")


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
