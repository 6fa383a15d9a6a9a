"""Data files that fairseq wrote and no longer reads."""

import inspect
from typing import Any

from fairseq.data import Dictionary


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
