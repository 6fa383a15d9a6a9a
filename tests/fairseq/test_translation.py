"""A translation model through fairseq's own commands: preprocess, train, resume, generate, interactive, the hub."""

import logging
import re

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq.sequence_scorer import SequenceScorer

from fairseq_plugin.models.ringformer import RingFormer
from tests.support import cli, models
from tests.support.states import same_runs

pytestmark = pytest.mark.slow


def test_preprocess_keeps_its_log_when_another_library_logs_first(corpus, tmp_path):
    """Before the command configures logging, as iopath does."""
    (tmp_path / "sitecustomize.py").write_text("import logging\nlogging.debug('first')\n")
    flags = ["--source-lang", "en", "--target-lang", "de", "--trainpref", f"{corpus.text}.valid", "--destdir", tmp_path]
    said = cli.preprocess(*flags, env={"PYTHONPATH": str(tmp_path)}, fresh=True)
    expected = f"{corpus.text}.valid.en: {corpus.sentences['valid']} sents"
    assert expected in said
    assert expected in (tmp_path / "preprocess.log").read_text()


def test_training_learns_and_validates_every_sentence(trained, corpus):
    losses = [line["train_loss"] for line in cli.logged(trained.log, "train")]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert sum(line["bsz"] for line in cli.logged(trained.log)[:14]) == corpus.sentences["train"]
    valid = cli.logged(trained.log, "valid")
    batches = -(-corpus.sentences["valid"] // 16)
    assert {line["valid_bsz"] for line in valid} == {round(corpus.sentences["valid"] / batches, 1)}
    assert all(line["valid_bleu"] > 0 for line in valid)


def test_resume_in_the_middle_of_an_epoch_is_bit_exact(trained, corpus, tmp_path):
    middle = trained.folder / "checkpoint_2_20.pt"
    log = cli.train(corpus.data, tmp_path, *trained.flags, "--restore-file", middle, "--no-epoch-checkpoints")
    assert cli.logged(log)[0]["num_updates"] == 21
    assert same_runs(tmp_path, trained.folder)
    assert cli.logged(log, "valid")[-1]["valid_bleu"] == cli.logged(trained.log, "valid")[-1]["valid_bleu"]


@pytest.fixture(scope="module")
def beam_search(trained, corpus) -> str:
    flags = ("--beam", "2", "--max-len-b", "15", "--scoring", "sacrebleu")
    return cli.generate(corpus.data, trained.folder / "checkpoint_last.pt", *flags, *cli.WORKER)


def test_generate_translates_and_scores_every_sentence(beam_search, corpus):
    assert sorted(cli.hypotheses(beam_search)) == list(range(corpus.sentences["test"]))
    assert f"Translated {corpus.sentences['test']:,} sentences" in beam_search
    reference = corpus.text.with_name(f"{corpus.text.name}.test.de").read_text().split()
    assert float(re.search(r"BLEU = (\S+)", beam_search)[1]) > 0
    assert f"ref_len = {len(reference)})" in beam_search


def test_loading_builds_a_model_once_more_to_see_its_size(trained, corpus, monkeypatch):
    """On the meta device; without memory, a checkpoint of any size is rejected there."""
    devices, build = [], RingFormer.build_model.__func__
    monkeypatch.setattr(RingFormer, "build_model", classmethod(lambda *args: devices.append(device()) or build(*args)))
    TransformerModel.from_pretrained(str(trained.folder), "checkpoint_last.pt", str(corpus.data))
    assert devices == ["meta", "cpu"]


def device() -> str:
    """Where a new tensor is."""
    return torch.empty(0).device.type


def test_the_hub_prints_alignments(trained, corpus, caplog):
    hub = TransformerModel.from_pretrained(str(trained.folder), "checkpoint_last.pt", str(corpus.data))
    with caplog.at_level(logging.INFO):
        hub.translate("one two", beam=1, max_len_b=2, verbose=True, print_alignment="hard")
    assert re.search(r"A\t\d-0", caplog.text)


def test_interactive_equals_generate_and_the_hub(trained, corpus, beam_search):
    sources = corpus.text.with_name(f"{corpus.text.name}.test.en").read_text().splitlines()[:11]
    expected = [cli.hypotheses(beam_search)[number][0] for number in range(11)]
    search = ("--beam", "2", "--max-len-b", "15", "--buffer-size", "4", "--batch-size", "4")
    log = cli.interactive(corpus.data, trained.folder / "checkpoint_last.pt", sources, *search)
    assert [texts[0] for _, texts in sorted(cli.hypotheses(log).items())] == expected
    hub = TransformerModel.from_pretrained(str(trained.folder), "checkpoint_last.pt", str(corpus.data))
    assert hub.translate(sources, beam=2, max_len_b=15) == expected


def test_the_reference_of_an_empty_source_is_scored_as_it_is():
    task, model = models.task_of("cycle"), models.tiny("cycle").float()
    tokens = dict(src_tokens=torch.tensor([[5, 6, 2], [1, 1, 2]]), src_lengths=torch.tensor([3, 1]))
    shifted = torch.tensor([[2, 7, 8], [2, 9, 4]])
    sample = dict(net_input=dict(tokens, prev_output_tokens=shifted), target=torch.tensor([[7, 8, 2], [9, 4, 2]]))
    scorer = SequenceScorer(task.target_dictionary)
    for (found,), (expected,) in zip(task.inference_step(scorer, [model], sample), scorer.generate([model], sample)):
        assert torch.equal(found["tokens"], expected["tokens"])
        assert torch.equal(found["positional_scores"], expected["positional_scores"])
