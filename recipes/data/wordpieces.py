"""Cut text into the pieces of a BERT vocabulary, cased, or make fairseq's dictionary of it.

    python wordpieces.py dictionary VOCABULARY DICTIONARY
    python wordpieces.py encode VOCABULARY TEXT PIECES --longest 48 [--start]

VOCABULARY is BERT's vocab.txt, a piece a line, in which ## marks a piece that continues a word. Here the pieces that
begin a word are marked instead, as sentencepiece does, so that fairseq puts words together again (--remove-bpe
sentencepiece); what BERT takes for words, such as each sign of punctuation, stays apart.

fairseq's dictionary has marks of its own for the beginning and the end of a sentence, padding and the unknown; they
stand for [CLS], [SEP], [PAD] and [UNK], so that it has as many entries as the vocabulary. fairseq adds the end itself,
in the decoder the beginning too; --start writes it before every line, which the encoder needs to see what BERT sees.

No known differences from the published code but the writing of the pieces.
"""

import argparse
from itertools import islice
from pathlib import Path

import tokenizers

MARKS = {"[CLS]": "<s>", "[SEP]": "</s>", "[PAD]": "<pad>", "[UNK]": "<unk>"}
BATCH = 10_000


def written(piece: str) -> str:
    """A piece of BERT's as fairseq has it: word -> ▁word, ##ing -> ing, [SEP] -> </s>."""
    if piece in MARKS:
        return MARKS[piece]
    return piece[2:] if piece.startswith("##") and piece != "##" else f"▁{piece}"


def dictionary(vocabulary: Path, output: Path) -> None:
    """Write fairseq's dictionary: every piece of the vocabulary in its order, those apart that fairseq has itself.

    Raises:
        ValueError: the vocabulary lacks one of BERT's marks.
    """
    pieces = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    missing = sorted(MARKS.keys() - set(pieces))
    if missing:
        raise ValueError(f"{vocabulary}: no {', '.join(missing)} in the vocabulary")
    output.write_text("".join(f"{written(piece)} 1\n" for piece in pieces if piece not in MARKS), encoding="utf-8")


def encode(vocabulary: Path, text: Path, output: Path, longest: int, start: bool) -> None:
    """Write the first `longest` pieces of every line."""
    tokenizer = tokenizers.BertWordPieceTokenizer(str(vocabulary), lowercase=False, strip_accents=False)
    first = [MARKS["[CLS]"]] if start else []
    with text.open(encoding="utf-8", newline="\n") as lines, output.open("w", encoding="utf-8", newline="\n") as file:
        while batch := [line.rstrip("\n") for line in islice(lines, BATCH)]:
            for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
                pieces = [written(piece) for piece in encoding.tokens[:longest]]
                file.write(" ".join(first + pieces) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("dictionary")
    making.add_argument("vocabulary", type=Path)
    making.add_argument("output", type=Path, help="dictionary to write, fairseq's dict.txt")
    encoding = commands.add_parser("encode")
    encoding.add_argument("vocabulary", type=Path)
    encoding.add_argument("text", type=Path, help="file to read, one sentence a line")
    encoding.add_argument("output", type=Path, help="file of pieces to write")
    encoding.add_argument("--longest", type=int, required=True, help="pieces of the longest sentence, marks apart")
    encoding.add_argument("--start", action="store_true", help="begin every line with the mark of the beginning")
    given = vars(parser.parse_args())
    {"dictionary": dictionary, "encode": encode}[given.pop("command")](**given)


if __name__ == "__main__":
    main()
