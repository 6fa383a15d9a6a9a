"""Words in ordinary spelling for models that read letters: fairseq's `--bpe letters`.

fairseq's own `characters` would also join the symbols of the output, such as phonemes.
"""

from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass


@register_bpe("letters", dataclass=FairseqDataclass)
class Letters:
    """Splits a word into its letters, in lower case and without other characters; the output stays as it is."""

    def __init__(self, *unused) -> None:
        pass

    @staticmethod
    def encode(word: str) -> str:
        """`Don't` becomes `d o n t`."""
        return " ".join(filter(str.isalpha, word.lower()))

    @staticmethod
    def decode(symbols: str) -> str:
        return symbols
