"""The lines of fairseq-interactive, and the sentences of the hub interface."""

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq.tasks import FairseqTask
from fairseq.token_generation_constraints import pack_constraints

from tests.support import upstream

pytestmark = pytest.mark.usefixtures("said")


def test_lines_that_are_answered_are_forgotten(trained_once, monkeypatch):
    data, path = trained_once("transformer")
    read, kept = FairseqTask.get_batch_iterator, []

    def counted(task, *args, **kwargs):
        kept.append(len(task.dataset_to_epoch_iter))
        return read(task, *args, **kwargs)

    monkeypatch.setattr(FairseqTask, "get_batch_iterator", counted)
    upstream.answer(data, path, "one\ntwo\none two\n", "--task", "translation", "--max-len-b", "2")
    assert kept == [0, 0, 0]


def test_a_source_ends_before_the_words_that_its_translation_must_contain(trained_once, said):
    data, path = trained_once("transformer")
    flags = ("--task", "translation", "--max-source-positions", "5", "--constraints", "--max-len-b", "4")
    found = upstream.answer(data, path, "one two two one\tfünf vier\none two two one two\tfünf\n", *flags)
    assert {"fünf", "vier"} <= set(found[0].split())
    assert found[1] == ""
    assert "is 6 tokens long: must be <= 5 (--max-source-positions)" in said.text
    with pytest.raises(ValueError, match="^--lm-path: fairseq-interactive reads no language model"):
        upstream.answer(data, path, "one\n", *flags, "--lm-path", path)


def test_a_long_line_may_be_truncated(trained_once, said):
    """As fairseq-generate does it."""
    data, path = trained_once("transformer")
    flags = ("--task", "translation", "--max-source-positions", "5", "--max-len-b", "4", "--beam", "2")
    short, long = "one two two one", "one two two one five four"
    found = upstream.answer(data, path, f"{short}\n{long}\n", *flags, "--truncate-source")
    assert found[1] == found[0] != ""
    assert "left empty" not in said.text
    assert upstream.answer(data, path, f"{long}\n", *flags) == {0: ""}


def test_the_hub_interface_takes_packed_constraints(trained_once):
    data, path = trained_once("transformer")
    hub = TransformerModel.from_pretrained(str(path.parent), path.name, str(data))
    source, words = hub.encode("one two"), hub.tgt_dict
    with pytest.raises(ValueError, match="^--constraints: no words are given"):
        hub.generate([source], constraints="ordered", max_len_b=4)
    wanted = pack_constraints([[torch.tensor([words.index("vier")])]])
    ((best, *_),) = hub.generate(
        [source], constraints="ordered", max_len_b=4, inference_step_args=dict(constraints=wanted)
    )
    assert "vier" in hub.decode(best["tokens"])
    with pytest.raises(ValueError, match="^inference_step_args: constraints: has 1 rows"):
        hub.generate([source, source], constraints="ordered", inference_step_args=dict(constraints=wanted))


def test_each_sentence_of_the_hub_interface_has_its_prefix(trained_once):
    data, path = trained_once("transformer")
    hub = TransformerModel.from_pretrained(str(path.parent), path.name, str(data))
    prefixes = torch.tensor([[hub.tgt_dict.index("vier")], [hub.tgt_dict.index("drei")]])
    sources = [hub.encode("one"), hub.encode("one two three")]  # which fairseq sorts by their lengths
    found = hub.generate(sources, max_len_b=4, inference_step_args=dict(prefix_tokens=prefixes))
    assert [int(best["tokens"][0]) for best, *_ in found] == prefixes[:, 0].tolist()


def test_a_single_sentence_of_the_hub_interface_has_every_argument(trained_once):
    data, path = trained_once("transformer")
    hub = TransformerModel.from_pretrained(str(path.parent), path.name, str(data))
    allowed = [hub.tgt_dict.index("vier"), hub.tgt_dict.eos()]
    given = dict(prefix_allowed_tokens_fn=lambda batch, tokens: allowed, min_len=3, max_len_b=3)
    assert hub.decode(hub.generate(hub.encode("one two"), **given)[0]["tokens"]) == "vier vier vier"
    given = dict(inference_step_args=dict(prefix_tokens=torch.tensor([[hub.tgt_dict.index("vier")]])), max_len_b=4)
    assert hub.decode(hub.generate(hub.encode("one two"), **given)[0]["tokens"]).startswith("vier")
