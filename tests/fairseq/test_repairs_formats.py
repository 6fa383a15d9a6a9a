"""Repairs of formats: what fairseq has written is read again."""

import inspect

import pytest
from fairseq.data import Dictionary
from fairseq.data.huffman import HuffmanCodeBuilder
from fairseq.data.legacy import BertDictionary, MaskedLMDictionary

import fairseq_plugin  # noqa: F401  (repairs fairseq)


class WordsOnly(Dictionary):
    """A user's dictionary, without fairseq's newest option."""

    def __init__(self, pad: str = "<blank>"):
        super().__init__(pad=pad)


@pytest.mark.parametrize("kind", [Dictionary, MaskedLMDictionary, BertDictionary, WordsOnly])
def test_a_dictionary_of_every_class_is_read(kind, tmp_path):
    written = kind()
    written.add_symbol("word", n=3)
    written.save(str(tmp_path / "dict.txt"))
    read = kind.load(str(tmp_path / "dict.txt"))
    assert type(read) is kind
    assert read.symbols == written.symbols
    assert read.count[-1] == 3


def test_a_dictionary_without_special_symbols_is_read(tmp_path):
    if "add_special_symbols" not in inspect.signature(Dictionary.load).parameters:
        pytest.skip("this fairseq has no such dictionaries")
    path = tmp_path / "labels.txt"
    path.write_text("dog 1\ncat 1\n", encoding="utf-8")
    assert Dictionary.load(str(path), add_special_symbols=False).symbols == ["dog", "cat"]


@pytest.mark.parametrize("words", [[], ["a"], ["b", "a", "a", "c"], ["a"] * 16])
def test_huffman_codes_are_read(words):
    builder = HuffmanCodeBuilder()
    builder.add_symbols("a", "a", "b", "c")
    coder = builder.build_code()
    assert [node.symbol for node in coder.decode(coder.encode(words))] == words
