"""`--replace-unk`: unknown words become the aligned words of the source, or their entries in a dictionary."""

import re
import shutil

import pytest
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel

from fairseq_repairs.checkpoints import load_safely
from fairseq_repairs.unknown import Alignment
from tests.support import upstream

SEARCH = ("--max-len-b", "3", "--max-len-a", "0", "--beam", "2", "--print-alignment")


@pytest.fixture
def unknowing(trained_once, tmp_path):
    """A transformer whose words are all unknown."""
    data, path = trained_once("transformer")
    state = load_safely(path)
    state["model"]["decoder.layers.0.final_layer_norm.bias"].fill_(3)
    state["model"]["decoder.output_projection.weight"][3] = 3
    torch.save(state, tmp_path / "model.pt")
    return data, tmp_path / "model.pt"


def said(output: str) -> dict[int, tuple[str, list[int]]]:
    """The best translation of each sentence, and the places of its words in the source."""
    places = dict(re.findall(r"^A-(\d+)\t(.*)$", output, re.MULTILINE))
    return {
        number: (text, [int(pair.split("-")[0]) for pair in places[str(number)].split()])
        for number, text in upstream.translations(output).items()
    }


LINES = ["one two foo", "foo@@ bar two", "", "three"]


def answers(data, path, *flags: str) -> dict[int, tuple[str, list[int]]]:
    text = "".join(f"{line}\n" for line in LINES)
    words = ("--task", "translation", "--buffer-size", "4", "--batch-size", "2", *SEARCH, *flags)
    return said(upstream.printed(data, path, text, *words))


def test_unknown_words_are_those_of_the_line(unknowing):
    found = answers(*unknowing, "--replace-unk")
    assert found[2] == ("", [])
    for number in (0, 1, 3):
        text, places = found[number]
        assert len(places) == 3
        assert text == " ".join(LINES[number].split()[place] for place in places)
    assert {text for text, _ in answers(*unknowing).values()} == {"<unk> <unk> <unk>", ""}


def test_segments_are_joined_after_words_are_replaced(unknowing):
    plain, joined = answers(*unknowing, "--replace-unk"), answers(*unknowing, "--replace-unk", "--remove-bpe")
    assert joined[1][0] == f"{plain[1][0]} ".replace("@@ ", "").rstrip()


def test_a_dictionary_has_their_translations(unknowing, tmp_path):
    path = tmp_path / "words"
    upstream.write_lines(path, [f"{source} {target}" for source, target in upstream.WORDS.items()])
    plain, translated = answers(*unknowing, "--replace-unk"), answers(*unknowing, "--replace-unk", str(path))
    for number in plain:
        expected = [upstream.WORDS.get(word, word) for word in plain[number][0].split()]
        assert translated[number][0] == " ".join(expected)
    for unreadable in (b"one\n", b"one \xff\n"):
        path.write_bytes(unreadable)
        with pytest.raises(ValueError, match=f"^--replace-unk {path}: each line must have a word and its translation"):
            answers(*unknowing, "--replace-unk", str(path))


def test_a_search_aligns_without_printing_it(unknowing):
    data, path = unknowing
    flags = ("--task", "translation", "--replace-unk", *SEARCH[:-1])
    output = upstream.printed(data, path, "foo\n", *flags)
    assert upstream.translations(output) == {0: "foo foo foo"}
    assert "A-0" not in output


def test_empty_lines_and_the_hub_interface_have_no_words(unknowing):
    data, path = unknowing
    flags = ("--task", "translation", "--replace-unk", "--buffer-size", "9", *SEARCH)
    assert upstream.answer(data, path, "\n\n", *flags) == {0: "", 1: ""}
    assert upstream.answer(data, path, "\nfoo\n\n\n", *flags) == {0: "", 1: "foo foo foo", 2: "", 3: ""}
    hub = TransformerModel.from_pretrained(
        str(path.parent), path.name, str(data), replace_unk="", max_len_a=0, max_len_b=3
    )
    assert hub.translate("one") == "<unk> <unk> <unk>"


def test_fairseq_generate_reads_the_words_of_raw_data(unknowing, data, tmp_path):
    """In the form that fairseq reads: SPLIT.SOURCE-TARGET.LANGUAGE."""
    raw = shutil.copytree(data["text"], tmp_path / "raw")
    lines = {"en": ["one foo two", "bar"], "de": ["eins foo zwei", "bar"]}
    for language, text in lines.items():
        upstream.write_lines(raw / f"test.en-de.{language}", text)
    flags = ("--dataset-impl", "raw", "--replace-unk", *SEARCH)
    found = said(upstream.use("generate", raw, unknowing[1], *flags)[1])
    for number, line in enumerate(lines["en"]):
        text, places = found[number]
        assert text == " ".join(line.split()[place] for place in places)
        assert len(places) == 3


def test_symbols_that_are_no_words_replace_nothing():
    """The symbol of a language at the beginning of a translation, and its end."""
    words = Dictionary()
    language, known = words.add_symbol("[de]"), words.add_symbol("eins")
    alignment = Alignment([])
    alignment.words = ["one", "one", "two", "three"]
    tokens = torch.tensor([language, known, words.unk(), words.eos()])
    _, text, _ = utils.post_process_prediction(
        tokens, "one two three", alignment, {"two": "zwei"}, words, extra_symbols_to_ignore={language}
    )
    assert text == "eins zwei"
