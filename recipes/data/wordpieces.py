"""Cut text into the pieces of a BERT vocabulary, cased, or put pieces together again.

    python wordpieces.py dictionary VOCABULARY DICTIONARY
    python wordpieces.py encode VOCABULARY TEXT PIECES --longest 48 [--start]
    python wordpieces.py decode PIECES TEXT

VOCABULARY is BERT's vocab.txt, a piece a line. The host's dictionary has marks of its own for the beginning and the end
of a sentence, padding and the unknown; they stand for [CLS], [SEP], [PAD] and [UNK], so that it has as many entries as
the vocabulary. The host adds the end itself, in the decoder the beginning too; --start writes it before every line,
which the encoder needs to see what BERT sees.

No known differences from the published code in the pieces. What `decode` returns has its punctuation attached by the
tokenizer's own rules, which is not always how the text was.
"""

import argparse
from itertools import islice
from pathlib import Path

import tokenizers

MARKS = {"[CLS]": "<s>", "[SEP]": "</s>", "[PAD]": "<pad>", "[UNK]": "<unk>"}
BATCH = 10_000


def dictionary(vocabulary: Path, output: Path) -> None:
    """Write the host's dictionary: every piece of the vocabulary in its order, those apart that the host has itself.

    Raises:
        ValueError: the vocabulary lacks one of BERT's marks.
    """
    pieces = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    missing = sorted(MARKS.keys() - set(pieces))
    if missing:
        raise ValueError(f"{vocabulary}: no {', '.join(missing)} in the vocabulary")
    output.write_text("".join(f"{piece} 1\n" for piece in pieces if piece not in MARKS), encoding="utf-8")


def encode(vocabulary: Path, text: Path, output: Path, longest: int, start: bool) -> None:
    """Write the first `longest` pieces of every line."""
    tokenizer = tokenizers.BertWordPieceTokenizer(str(vocabulary), lowercase=False, strip_accents=False)
    first = [MARKS["[CLS]"]] if start else []
    with text.open(encoding="utf-8", newline="\n") as lines, output.open("w", encoding="utf-8", newline="\n") as file:
        while batch := [line.rstrip("\n") for line in islice(lines, BATCH)]:
            for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
                pieces = [MARKS.get(piece, piece) for piece in encoding.tokens[:longest]]
                file.write(" ".join(first + pieces) + "\n")


def decode(pieces: Path, output: Path) -> None:
    """Write the text of every line of pieces."""
    decoder = tokenizers.decoders.WordPiece()
    with pieces.open(encoding="utf-8", newline="\n") as lines, output.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(decoder.decode(line.split()) + "\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("dictionary")
    making.add_argument("vocabulary", type=Path)
    making.add_argument("output", type=Path, help="dictionary to write, the host's dict.txt")
    encoding = commands.add_parser("encode")
    encoding.add_argument("vocabulary", type=Path)
    encoding.add_argument("text", type=Path, help="file to read, one sentence a line")
    encoding.add_argument("output", type=Path, help="file of pieces to write")
    encoding.add_argument("--longest", type=int, required=True, help="pieces of the longest sentence, marks apart")
    encoding.add_argument("--start", action="store_true", help="begin every line with the mark of the beginning")
    decoding = commands.add_parser("decode")
    decoding.add_argument("pieces", type=Path, help="file of pieces to read")
    decoding.add_argument("output", type=Path, help="file of text to write")
    given = vars(parser.parse_args())
    {"dictionary": dictionary, "encode": encode, "decode": decode}[given.pop("command")](**given)


if __name__ == "__main__":
    main()
