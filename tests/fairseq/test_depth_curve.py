"""python -m fairseq_plugin.depth: the depth curve of a checkpoint."""

import csv
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq.data import MonolingualDataset
from fairseq_cli.eval_lm import eval_lm

from fairseq_plugin import depth
from fairseq_plugin.tasks.automaton import AutomatonTask
from tests.support import cli, models

SEARCH = ("--gen-subset", "valid", "--beam", "1", "--max-len-b", "15", "--cpu")


@pytest.mark.parametrize(
    ("apart", "names"),
    [
        (False, ["1", "2", "3", "4"]),
        (True, [*(f"encoder {n}" for n in (1, 2, 3)), *(f"decoder {n}" for n in (1, 2, 3)), "4"]),
    ],
)
def test_the_depths_that_are_tried(apart, names):
    tried = list(depth.assignments(models.tiny("universal_tiny"), apart))
    assert [name for name, _ in tried] == names
    assert tried[-1][1] == {"encoder": 4, "decoder": 4}
    assert tried[0][1] == ({"encoder": 1, "decoder": 4} if apart else {"encoder": 1, "decoder": 1})


def test_a_stack_runs_whole():
    model = models.tiny("ilr_small", "--decoder-layers", "2", "--block-loops", "3")
    assert [setting.passes for setting in depth.assignments(model, False)] == [{"decoder": n} for n in (2, 4, 6)]


@pytest.mark.parametrize("arch", ["vanilla_tiny", "recurrent_lm", "ilr_small"])
def test_a_checkpoint_of_one_depth_is_rejected(arch):
    model = models.tiny(arch)
    with pytest.raises(ValueError, match="the order .*: must repeat its blocks .* to run at other depths"):
        list(depth.assignments(model, False))


@pytest.mark.parametrize("at_start", [False, True])
def test_the_perplexity_is_that_of_fairseq_eval_lm(at_start):
    """Which does not count the symbol of --add-bos-token."""
    task = models.task_of("ilr_small")
    task.args = Namespace(add_bos_token=at_start)
    lines = [torch.arange(5, 5 + length) for length in (4, 7)]
    texts = MonolingualDataset(
        [(line[:-1], line[1:], None) for line in lines],
        [len(line) - 1 for line in lines],
        task.dictionary,
        add_bos_token=at_start,
        targets=["future"],
    )
    batch, model = texts.collater([texts[0], texts[1]]), models.tiny("ilr_small").eval()
    with torch.no_grad():
        found = depth.perplexity(model, task, None, [batch]).score
    expected = eval_lm([model], task.dictionary, [batch], remove_bos_token=at_start)["perplexity"]
    assert found == pytest.approx(expected)


@pytest.mark.slow
def test_the_curve_of_a_checkpoint(trained, corpus, tmp_path, capsys):
    """Scores of fairseq-generate, with forced prefixes, in half precision, and at any number of ranks."""
    path = trained.folder / "checkpoint_last.pt"
    search = (*SEARCH, "--max-len-a", "0.5", "--scoring", "sacrebleu", "--prefix-size", "2", "--fp16")
    flags = ("--tolerance", "0", "--distributed-world-size", "2")  # ranks which are not started
    depth.main([str(corpus.data), "--path", str(path), *search, *flags, "--output", str(tmp_path / "curve.csv")])
    with (tmp_path / "curve.csv").open(newline="") as file:
        one, two = csv.DictReader(file)
    assert (one["depth"], two["depth"], two["agreement"]) == ("1", "2", "1.0")
    assert f"BLEU = {float(two['score']):.1f}"[:9] in cli.generate(corpus.data, path, *search)
    smallest = 1 if float(one["score"]) >= float(two["score"]) else 2
    printed = capsys.readouterr().out
    assert printed.startswith("trained with all passes in every update\n")
    assert f"decoder: safe from {smallest} to 2 passes" in printed


def test_a_split_of_which_nothing_is_left_is_rejected(trained, corpus, rejected):
    short = ["--skip-invalid-size-inputs-valid-test", "--max-source-positions", "1"]
    said = rejected(depth.main, corpus.data, "--path", trained.folder / "checkpoint_last.pt", *SEARCH, *short)
    assert "--gen-subset=valid: has no text to score" in said


def test_a_split_without_targets_is_rejected(trained, corpus, tmp_path, rejected):
    source = ("--source-lang", "en", "--target-lang", "de", "--srcdict", corpus.data / "dict.en.txt", "--only-source")
    cli.preprocess(*source, "--testpref", f"{corpus.text}.test", "--destdir", tmp_path)
    shutil.copy(corpus.data / "dict.de.txt", tmp_path)
    said = rejected(depth.main, tmp_path, "--path", trained.folder / "checkpoint_last.pt", "--cpu")
    assert "--gen-subset=test: has no target side" in said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--path", "a.pt:b.pt"], "--path=a.pt:b.pt: must be one checkpoint"),
        (["--constraints"], "--constraints=ordered: not supported here"),
        (["--lm-path", "lm.pt"], "--lm-path=lm.pt: not supported here"),
        (["--score-reference"], "--score-reference=True: not supported here"),
        (["--task", "pixel_classification"], "--task=pixel_classification: not supported here; use fairseq-validate"),
        (["--results-path", "out"], "--results-path=out: not supported here"),
        (["--num-shards", "2"], "--num-shards=2: not supported here"),
        (["--scoring", "bleu"], "--scoring=bleu: scores tokens"),
    ],
)
def test_options_of_generate_that_do_not_fit_a_curve_are_rejected(rejected, flags, message):
    printed = rejected(depth.main, "data", "--path", "a.pt", *flags)
    assert message in printed
    assert printed.count("\n") == 2  # a line of usage before the error


def test_a_checkpoint_that_answers_is_named_though_the_command_says_nothing_of_its_task(monkeypatch, rejected):
    loaded = (None,), Namespace(task=Namespace(_name="automaton")), AutomatonTask.__new__(AutomatonTask)
    monkeypatch.setattr(depth.checkpoint_utils, "load_model_ensemble_and_task", lambda *given: loaded)
    said = rejected(depth.main, "data", "--path", "a.pt")
    assert "--path=a.pt: was trained with --task automaton; use fairseq-validate" in said


@pytest.mark.parametrize("words", [["--sample-break-mode", "none"], ["--sample-break-mode=none"]])
def test_task_options_given_at_their_default_replace_those_of_the_checkpoint(monkeypatch, rejected, words):
    def load(paths, overrides):
        raise ValueError(f"overrides: {overrides}")

    monkeypatch.setattr(depth.checkpoint_utils, "load_model_ensemble_and_task", load)
    said = rejected(depth.main, "data", "--path", "a.pt", "--task", "language_modeling", *words)
    assert "overrides: {'data': 'data', 'sample_break_mode': 'none'}" in said


def test_the_perplexity_is_over_all_batches():
    task, model = models.task_of("ilr_small"), models.tiny("ilr_small").eval()
    task.args = Namespace(add_bos_token=False)
    lines = [torch.arange(5, 5 + length) for length in (4, 7)]
    texts = [(line[:-1], line[1:], None) for line in lines]
    data = MonolingualDataset(texts, [len(line) - 1 for line in lines], task.dictionary, targets=["future"])
    batches = [data.collater([data[0]]), data.collater([data[1]])]
    expected = eval_lm([model], task.dictionary, batches)["perplexity"]
    assert depth.perplexity(model, task, None, batches).score == pytest.approx(expected)


def test_the_lower_perplexity_is_better(monkeypatch):
    model, task, seen = models.tiny("universal_lm"), models.task_of("universal_lm"), []
    model.prepare_for_inference_ = task.load_dataset = lambda *_, **__: None
    loaded = (model,), Namespace(task=None, criterion=None, model=None), task
    monkeypatch.setattr(depth.checkpoint_utils, "load_model_ensemble_and_task", lambda *_: loaded)
    monkeypatch.setattr(depth, "read_batches", lambda *_: [{"target": ()}])
    monkeypatch.setattr(depth.curve, "report", lambda *given: seen.append(given[-2:]))
    depth.main(["data", "--path", "a.pt", "--task", "language_modeling", "--cpu"])
    assert seen == [("perplexity", False)]
