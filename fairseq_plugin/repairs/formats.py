"""Data files that fairseq wrote and no longer reads."""

import inspect
from collections.abc import Callable
from typing import Any

from bitarray import bitarray
from fairseq.data import Dictionary
from fairseq.data.huffman import huffman_coder

from fairseq_plugin.repairs.replace import replace


def load_dictionaries_of_every_class() -> None:
    """Loads dictionaries whose class does not take the option that fairseq's main branch added last.

    It passes ``add_special_symbols`` to every class, a TypeError in fairseq's own ``MaskedLMDictionary`` (the tasks
    ``cross_lingual_lm``, ``legacy_masked_lm`` and ``translation_from_pretrained_xlm``), and in users' classes.
    """
    passed = "add_special_symbols" in inspect.signature(Dictionary.load).parameters
    if passed and Dictionary.load.__func__ is not _load:
        Dictionary.load = classmethod(_load)


def _load(cls: type[Dictionary], f: Any, add_special_symbols: bool = True) -> Dictionary:
    """Loads a dictionary from a file of a symbol and its count per line."""
    dictionary = cls() if add_special_symbols else cls(add_special_symbols=False)
    dictionary.add_from_file(f)
    return dictionary


def read_huffman_codes() -> None:
    """Reads data of ``--dataset-impl huffman``, for which fairseq calls a function that bitarray has removed."""

    def find_padding(_unpad: Callable) -> Callable:
        def without_padding(self, a: bitarray) -> bitarray:
            return a[: a.find(1, right=True)]  # padding is a one, then zeros

        return without_padding

    if not hasattr(huffman_coder.util, "rindex"):
        replace(huffman_coder.HuffmanCoder, "_unpad", find_padding)
