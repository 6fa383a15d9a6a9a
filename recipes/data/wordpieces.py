"""Split text into the pieces of a cased BERT vocabulary, or convert the vocabulary to a fairseq dictionary.

    python wordpieces.py dictionary VOCABULARY DICTIONARY
    python wordpieces.py encode VOCABULARY TEXT PIECES --longest 48 [--start]

VOCABULARY is BERT's vocab.txt, one piece per line, in which ## marks a piece that continues a word. The output marks
the pieces that begin a word instead, as sentencepiece does, so that fairseq can join words (--remove-bpe
sentencepiece). Units that BERT treats as words, such as punctuation marks, stay separate.

fairseq's own symbols for the beginning and the end of a sentence, padding and unknown pieces replace [CLS], [SEP],
[PAD] and [UNK], so the dictionary has as many entries as the vocabulary. fairseq adds the end symbol itself, and in the
decoder the beginning symbol; --start writes the beginning symbol before every line, so that the encoder has the same
input as BERT.

No known differences from the published code except the notation of the pieces.
"""

import argparse
from itertools import islice
from pathlib import Path

import tokenizers

MARKS = {"[CLS]": "<s>", "[SEP]": "</s>", "[PAD]": "<pad>", "[UNK]": "<unk>"}
BATCH = 10_000


def written(piece: str) -> str:
    """A BERT piece in fairseq's notation: word -> ▁word, ##ing -> ing, [SEP] -> </s>."""
    if piece in MARKS:
        return MARKS[piece]
    return piece[2:] if piece.startswith("##") and piece != "##" else f"▁{piece}"


def dictionary(vocabulary: Path, output: Path) -> None:
    """Writes a fairseq dictionary: the pieces of the vocabulary in order, without those that are fairseq's own symbols.

    Raises:
        ValueError: if the vocabulary lacks one of BERT's special tokens.
    """
    pieces = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    missing = sorted(MARKS.keys() - set(pieces))
    if missing:
        raise ValueError(f"{vocabulary}: no {', '.join(missing)} in the vocabulary")
    output.write_text("".join(f"{written(piece)} 1\n" for piece in pieces if piece not in MARKS), encoding="utf-8")


def encode(vocabulary: Path, text: Path, output: Path, longest: int, start: bool) -> None:
    """Writes the first `longest` pieces of every line."""
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
    conversion = commands.add_parser("dictionary")
    conversion.add_argument("vocabulary", type=Path)
    conversion.add_argument("output", type=Path, help="fairseq dictionary to write (dict.txt)")
    encoding = commands.add_parser("encode")
    add = encoding.add_argument
    add("vocabulary", type=Path)
    add("text", type=Path, help="file to read, one sentence per line")
    add("output", type=Path, help="file of pieces to write")
    add("--longest", type=int, required=True, help="maximum pieces per sentence, without special symbols")
    add("--start", action="store_true", help="write the beginning symbol before every line")
    args = vars(parser.parse_args())
    try:
        {"dictionary": dictionary, "encode": encode}[args.pop("command")](**args)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
