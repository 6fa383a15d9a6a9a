"""Repairs of fairseq's data: what it wrote is read again, and every sentence is in a batch."""

import importlib.util
import inspect
import io

import numpy as np
import pytest
from fairseq import options
from fairseq.data import Dictionary, data_utils
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from fairseq.data.huffman import HuffmanCodeBuilder
from fairseq.data.legacy import BertDictionary, MaskedLMDictionary
from fairseq.sequence_generator import SequenceGenerator
from fairseq_cli import preprocess
from omegaconf import OmegaConf

from fairseq_repairs import data
from tests.support import cli, upstream


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


@pytest.mark.parametrize("line", [b"word", b"word x", b"<s> 3", b"\xff 3"])
def test_a_wrong_line_of_a_dictionary_is_named_with_its_file(line, tmp_path):
    path = tmp_path / "dict.txt"
    path.write_bytes(b"dog 1\n" + line + b"\n")
    with pytest.raises(ValueError, match=f"^{path}: (Incorrect|Duplicate)"):
        Dictionary.load(str(path))


def test_a_file_that_is_no_model_of_sentencepiece_is_named(tmp_path):
    (tmp_path / "file").write_text("no model\n")
    for name, wrong in (
        ("file", f"--sentencepiece-model {tmp_path}/file: must be"),
        ("", f"{tmp_path}/: must be a file"),
    ):
        with pytest.raises(ValueError, match=f"^{wrong}"):
            SentencepieceBPE(SentencepieceConfig(sentencepiece_model=f"{tmp_path}/{name}"))
    with pytest.raises(ValueError, match="^--sentencepiece-model: must be given"):
        SentencepieceBPE(OmegaConf.structured(SentencepieceConfig))


@pytest.mark.parametrize("words", [[], ["a"], ["b", "a", "a", "c"], ["a"] * 16])
def test_huffman_codes_are_read(words):
    builder = HuffmanCodeBuilder()
    builder.add_symbols("a", "a", "b", "c")
    coder = builder.build_code()
    assert [node.symbol for node in coder.decode(coder.encode(words))] == words


def test_a_comma_in_the_name_of_a_training_set_is_no_separator(tmp_path):
    """fairseq splits the names of the other sets only."""
    for language in ("en", "de"):
        (tmp_path / f"a,b.{language}").write_text("one\n", encoding="utf-8")
    words = ["--source-lang=en", "--target-lang=de", f"--destdir={tmp_path}", f"--trainpref={tmp_path / 'a,b'}"]
    preprocess.main(options.get_preprocessing_parser().parse_args(words))
    assert (tmp_path / "train.en-de.de.bin").exists()
    with pytest.raises(FileNotFoundError, match=f"^--validpref: {tmp_path / 'a'}.en: no such file"):
        preprocess.main(options.get_preprocessing_parser().parse_args([*words, f"--validpref={tmp_path / 'a,b'}"]))


@pytest.mark.parametrize("source", ["-", "file"])
def test_interactive_reads_bytes_that_are_not_text_and_lone_carriage_returns(source, tmp_path, monkeypatch):
    from fairseq_cli import interactive

    typed = b"eins\r\n zwei \xff\neins\rzwei\n\xe4\ndrei"
    (tmp_path / "file").write_bytes(typed)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8"))
    found = list(interactive.buffered_read(source if source == "-" else str(tmp_path / source), 2))
    assert found == [["eins", "zwei \ufffd"], ["eins\rzwei", "\ufffd"], ["drei"]]


@pytest.mark.parametrize(("source", "name"), [("-", "standard input"), ("file", "--input=file")])
def test_interactive_rejects_an_endless_line(source, name, tmp_path, monkeypatch):
    from fairseq_cli import interactive

    typed = "eins\n" + "a" * 10_000_001
    (tmp_path / "file").write_text(typed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed.encode()), encoding="utf-8"))
    found = interactive.buffered_read(source, 1)
    assert next(found) == ["eins"]
    with pytest.raises(ValueError, match=f"^{name}, line 2: must have <= 10,000,000 characters$"):
        next(found)


def test_a_carriage_return_that_only_one_side_has_is_an_additional_line(tmp_path):
    """As fairseq reads it: lines would no longer form pairs."""
    (tmp_path / "train.en").write_bytes(b"one\rtwo\nthree\n")
    (tmp_path / "train.de").write_bytes(b"eins zwei\ndrei\n")
    words = ["--source-lang=en", "--target-lang=de", f"--destdir={tmp_path}", f"--trainpref={tmp_path / 'train'}"]
    with pytest.raises(ValueError, match=r"train.en has 3 lines, .*train.de has 2 lines: both sides must"):
        preprocess.main(options.get_preprocessing_parser().parse_args(words))


def test_sides_that_only_source_leaves_out_are_not_compared(tmp_path):
    (tmp_path / "train.en").write_text("one\ntwo\n")
    (tmp_path / "train.de").write_text("eins\n")
    words = ["--source-lang=en", "--target-lang=de", f"--destdir={tmp_path}", f"--trainpref={tmp_path / 'train'}"]
    preprocess.main(options.get_preprocessing_parser().parse_args([*words, "--only-source"]))
    assert sorted(path.name for path in tmp_path.glob("train.*.bin")) == ["train.en-de.en.bin"]


def test_a_dictionary_that_is_already_there_is_named_with_the_rule(tmp_path):
    (tmp_path / "train.en").write_text("one\n")
    words = ["--only-source", "--source-lang=en", f"--destdir={tmp_path}", f"--trainpref={tmp_path / 'train'}"]
    preprocess.main(options.get_preprocessing_parser().parse_args(words))
    with pytest.raises(FileExistsError, match=r"^--destdir=.*/dict.en.txt: must not exist yet: remove it, or give it"):
        preprocess.main(options.get_preprocessing_parser().parse_args(words))


def pristine(module):
    """A second copy of one of fairseq's modules, without any repair."""
    spec = importlib.util.spec_from_file_location(f"pristine_{module.__name__.rpartition('.')[2]}", module.__file__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


class TestBatches:
    @staticmethod
    def batches(batch_by_size, count: int, **limits) -> list[list[int]]:
        sizes = np.arange(count) % 17 + 1
        order = np.argsort(sizes, kind="stable")
        found = batch_by_size(order, sizes.__getitem__, num_tokens_vec=sizes[order], **limits)
        return [list(batch) for batch in found]

    @pytest.mark.parametrize("count", [1, 7, 8, 9, 1000, 1001, 1007])
    @pytest.mark.parametrize("limits", [{"max_sentences": 32}, {"max_tokens": 300}])
    def test_every_sentence_is_in_one_batch(self, count, limits):
        batches = self.batches(data_utils.batch_by_size, count, **limits, required_batch_size_multiple=8)
        order = np.argsort(np.arange(count) % 17, kind="stable")
        assert [index for batch in batches for index in batch] == order.tolist()
        assert all(len(batch) % 8 == 0 for batch in batches[:-1])

    def test_no_sentences_are_no_batches(self):
        if not hasattr(data_utils.batch_by_size, "__wrapped__"):
            pytest.skip("this fairseq needs no repair")
        assert data_utils.batch_by_size(np.arange(0), len, required_batch_size_multiple=8) == []

    def test_only_a_fairseq_that_drops_the_last_batch_is_repaired(self, monkeypatch):
        monkeypatch.setattr(data, "data_utils", pristine(data_utils))
        assert data.drops_last_batch() == (not cli.is_official())
        assert hasattr(data_utils.batch_by_size, "fairseq_repairs") == data.drops_last_batch()


def test_names_of_numpy_are_restored_in_fairseq_only():
    assert data_utils.get_buckets(np.array([3, 9, 4, 4, 7, 12, 5]), 3).tolist() == [4, 7, 12]  # lower percentiles
    assert data_utils.np.int is int
    assert data_utils.np.float32 is np.float32
    assert not hasattr(np, "int")


def test_a_language_model_without_weight_is_warned_of(said):
    words = upstream.dictionary(19)
    model, lm = upstream.built("transformer", words), upstream.built("transformer_lm", words)
    for lm_weight in (0.5, 0.0):
        assert "--lm-weight" not in said.text
        SequenceGenerator([model], words, lm_model=lm, lm_weight=lm_weight)
    assert "--lm-path: the language model has no effect with --lm-weight 0, the default" in said.text


def test_outputs_end_where_the_positions_of_a_fused_language_model_end():
    words = upstream.dictionary(19)
    model, lm = upstream.built("transformer", words), upstream.built("transformer_lm", words)
    lm.decoder.max_target_positions = 5
    search = SequenceGenerator([model], words, lm_model=lm, min_len=9, max_len_b=20)
    assert search.max_len == 5
    assert SequenceGenerator([model], words).max_len > 5


def test_a_language_model_of_other_symbols_is_not_fused_nor_one_that_translates():
    words, other = upstream.dictionary(19), Dictionary()
    for symbol in reversed(words.symbols[words.nspecial :]):
        other.add_symbol(symbol)
    model, lm = upstream.built("transformer", words), upstream.built("transformer_lm", words)
    SequenceGenerator([model], words, lm_model=lm)
    lm.decoder.dictionary = other
    with pytest.raises(ValueError, match="^--lm-path: the data's dict.txt"):
        SequenceGenerator([model], words, lm_model=lm)
    with pytest.raises(ValueError, match="^--lm-path: must be a language model, without an encoder$"):
        SequenceGenerator([model], words, lm_model=model)


def test_text_that_is_not_utf_8_is_named_with_its_line(tmp_path):
    upstream.write_raw_text(tmp_path)
    lines = ["eins"] * upstream.SENTENCES["valid"]
    lines[2] = "fünf"
    (tmp_path / "valid.de").write_text("\n".join(lines), encoding="latin-1")
    with pytest.raises(ValueError, match=r"^--validpref: .*valid\.de, line 3: must be UTF-8$"):
        binarize(tmp_path)


def test_text_in_other_pieces_is_warned_of(tmp_path, said):
    upstream.write_raw_text(tmp_path)
    upstream.write_lines(tmp_path / "valid.de", ["seven"] * upstream.SENTENCES["valid"])
    upstream.write_lines(tmp_path / "test.de", ["seven", *["eins zwei drei vier"] * 10])  # 1.9 %
    binarize(tmp_path)
    assert [line for line in said.messages if "is it raw text" in line] == [
        f"{tmp_path / 'valid.de'}: 50.0 % of its words are not in the dictionary, such as seven: is it raw text, or "
        "cut into pieces by another model than the training text?"
    ]


def binarize(folder) -> None:
    """Binarizes a small parallel corpus."""
    prefixes = [f"--{split}pref={folder / split}" for split in upstream.SENTENCES]
    words = ["--source-lang=en", "--target-lang=de", *prefixes, f"--destdir={folder / 'data'}"]
    preprocess.main(options.get_preprocessing_parser().parse_args(words))
