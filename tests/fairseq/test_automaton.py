"""The cellular automaton: its rows, a target for each number of passes, and models that go on beyond their training."""

import json
import re
from argparse import Namespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf

from fairseq_plugin.elastic import at_depths
from fairseq_plugin.tasks.answers import AnswerCrossEntropy
from fairseq_plugin.tasks.automaton import START, AutomatonConfig, AutomatonTask, after
from tests.support import cli, models
from tests.support.elastic import criterion_of

TINY = ["--decoder-embed-dim", "16", "--decoder-attention-heads", "2", "--decoder-layers", "1", "--post-norm"]


def automaton(**values) -> AutomatonTask:
    few = dict(train_texts=8, valid_texts=4, seed=1)
    return AutomatonTask(OmegaConf.structured(AutomatonConfig(**{**few, **values})))


def texts(task: AutomatonTask, split: str, epoch: int = 1) -> dict:
    """All rows of a subset as one batch."""
    task.load_dataset(split)
    dataset = task.dataset(split)
    dataset.set_epoch(epoch)
    return dataset.collater([dataset[i] for i in range(len(dataset))])


def test_rule_110_by_its_table():
    """Wolfram's table of rule 110, 111 to 000: 0 1 1 0 1 1 1 0; the cell itself is the last of the three."""
    table = dict(zip(("111", "110", "101", "100", "011", "010", "001", "000"), (0, 1, 1, 0, 1, 1, 1, 0)))
    row = np.random.default_rng(1).integers(2, size=40)
    padded = "00" + "".join(map(str, row))
    assert after(row[None], 110)[0].tolist() == [table[padded[i : i + 3]] for i in range(40)]


def test_the_answer_is_the_row_that_many_steps_later():
    task = automaton(cells=10, steps=4, train_texts=64)
    batch = texts(task, "train")
    source, target = batch["net_input"]["src_tokens"], batch["target"]
    asked = source[:, 0] - START + 1
    assert set(asked.tolist()) == {1, 2, 3, 4}
    assert target[:, 0].eq(task.answers.pad()).all()
    assert batch["ntokens"] == 640
    for row, steps, answer in zip(source[:, 1:].numpy(), asked, target[:, 1:]):
        for _ in range(int(steps)):
            row = after(row, 110)
        assert row.tolist() == answer.tolist()


def test_passes_as_steps_have_a_target_each():
    task = automaton(cells=10, steps=4, pass_steps=True)
    batch = texts(task, "train")
    source, target = batch["net_input"]["src_tokens"], batch["target"]
    assert target.shape == (8, 4, 11)
    assert source[:, 0].eq(START).all()
    assert batch["ntokens"] == 80
    row = source[:, 1:].numpy()
    for step in range(4):
        row = after(row, 110)
        assert row.tolist() == target[:, step, 1:].tolist()


def test_parity_is_that_of_the_last_cells():
    rows = automaton(parity=True).draw(np.random.default_rng(1), texts=8, cells=10, steps=12)
    for step, row in enumerate(rows):
        window = [rows[0][:, max(0, cell - step) : cell + 1].sum(1) % 2 for cell in range(10)]
        assert row.tolist() == np.stack(window, axis=1).tolist()


def loss_at(model, batch: dict, passes: int) -> torch.Tensor:
    """The sum of the losses against the row after as many steps as passes run."""
    with at_depths(model, {"decoder": passes}):
        logits = model(**batch["net_input"])[0]
    return F.cross_entropy(logits[:, 1:].flatten(0, 1), batch["target"][:, passes - 1, 1:].flatten(), reduction="sum")


def test_the_target_is_that_of_the_passes_that_run():
    task = automaton(cells=6, steps=5, pass_steps=True)
    model, batch = models.build("ilr_small", *TINY, "--reuse-map", "3", on=task), texts(task, "train")
    criterion = criterion_of(task, AnswerCrossEntropy)
    for passes in (1, 3, 5):
        with at_depths(model, {"decoder": passes}):
            loss, size, _ = criterion(model, batch)
        assert size == 48
        torch.testing.assert_close(loss, loss_at(model, batch, passes))


def test_the_pass_loss_compares_every_pass_with_its_own_step():
    task = automaton(cells=6, steps=3, pass_steps=True)
    model, batch = models.build("ilr_small", *TINY, "--reuse-map", "3", on=task), texts(task, "train")
    loss, _, _ = criterion_of(task, AnswerCrossEntropy, pass_loss=0.5)(model.train(), batch)
    expected = loss_at(model, batch, 3) + 0.5 * (loss_at(model, batch, 1) + loss_at(model, batch, 2)) / 2
    torch.testing.assert_close(loss, expected)


def test_more_passes_than_steps_are_rejected():
    task, answers = automaton(steps=5, pass_steps=True), "answer_cross_entropy"
    with pytest.raises(ValueError, match=re.escape("--steps=5: must be >= 6, the largest number of passes")):
        models.build("ilr_small", *TINY, "--reuse-map", "6", on=task)
    with pytest.raises(ValueError, match=re.escape("--steps=5: must be >= 6, the largest number of passes")):
        task.build_criterion(Namespace(_name=answers, criterion=answers, depth_range="1-6"))
    with pytest.raises(ValueError, match=re.escape("--depth-range=1-6,1-2: must be MIN-MAX, such as 1-6")):
        task.build_criterion(Namespace(_name=answers, criterion=answers, depth_range="1-6,1-2"))


def test_passes_as_steps_need_their_criterion():
    task = automaton(steps=5, pass_steps=True)
    with pytest.raises(ValueError, match="--criterion=cross_entropy: must be answer_cross_entropy with --pass-steps"):
        task.build_criterion(Namespace(_name="cross_entropy", criterion="cross_entropy", sentence_avg=False))


def trained(folder, *flags: str) -> dict[str, float]:
    """Exact matches of a model of width 64 by the number of steps, as the recipes score them."""
    model = "--arch ilr_small --decoder-layers 1 --post-norm --decoder-embed-dim 64 --decoder-ffn-embed-dim 128"
    model += " --decoder-attention-heads 4 --criterion answer_cross_entropy"
    learning = "--optimizer adam --adam-betas (0.9,0.98) --lr 3e-3 --lr-scheduler cosine --warmup-updates 50"
    learning += " --clip-norm 1 --batch-size 64 --update-epoch-batch-itr True"
    saving = "--disable-validation --no-epoch-checkpoints --save-dir"
    words = f"--task automaton {model} {learning} {saving}".split()
    cli.run("fairseq-train", *cli.HOST, *words, folder, *flags)
    scorer = cli.REPOSITORY / "recipes" / "metrics" / "automaton.py"
    log = cli.python(str(scorer), "--path", folder / "checkpoint_last.pt", "--texts", "100")
    return json.loads(log[log.index("{") :])


@pytest.mark.slow
def test_a_loop_goes_on_beyond_its_trained_depth(tmp_path):
    """Where its block, run once and told the number of steps, fails although it was trained on it."""
    steps = ["--pass-steps", "--dropout", "0.1", "--reuse-map", "6", "--depth-range", "1-6", "--pass-loss", "1"]
    steps += ["--max-update", "200"]
    looped, once = trained(tmp_path / "looped", *steps), trained(tmp_path / "once", "--max-update", "500")
    for passes in (6, 10, 24):
        assert looped[f"exact_match_at_{passes}"] >= 80
    assert once["exact_match_at_1"] >= 80
    assert once["exact_match_at_10"] <= 20
