"""A killed run loses at most one interval: resumed, it ends with the state of an undisturbed run."""

import random
import re
import shutil

import pytest
import torch

from fairseq_repairs.checkpoints import load_safely
from fairseq_repairs.files import damage
from tests.support import cli, warm
from tests.support.states import same_runs

pytestmark = pytest.mark.slow

EPOCHS = ("--max-epoch", "2", "--keep-last-epochs", "1")
# Changes to files: two saves, their copies to _best.pt and _last.pt, and the removal of the first one.
STEPS = 14


def resume(corpus, folder, straight) -> str:
    """Runs the command again after a kill, asserts that it ends as an undisturbed run, and returns its log."""
    assert [path.name for path in folder.glob("*.pt") if damage(path)] == []
    log = warm.succeed(warm.training_job(corpus, folder, *EPOCHS))
    assert same_runs(folder, straight)
    return log


@pytest.mark.parametrize("step", range(STEPS))
def test_a_kill_at_every_step_of_a_save_loses_at_most_one_epoch(corpus, straight, tmp_path, step):
    (ended,) = warm.run(warm.training_job(corpus, tmp_path, *EPOCHS, kill_at=step))
    assert ended.status == -9, ended.log[-2000:]
    log = resume(corpus, tmp_path, straight)
    saved = [line for line in ended.log.splitlines() if "Saved checkpoint" in line]
    if saved:  # the resumed run starts from the last save
        updates = saved[-1].split("@ ")[1].split()[0]
        found = [int(line.split("@ ")[1].split()[0]) for line in log.splitlines() if "Loaded checkpoint" in line]
        assert found[0] >= int(updates)


def test_a_run_has_no_more_steps_than_are_tried(corpus, tmp_path):
    warm.succeed(warm.training_job(corpus, tmp_path, *EPOCHS, kill_at=STEPS))


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_a_random_time(corpus, straight, tmp_path, seed):
    """With a data worker, which is orphaned."""
    seconds = random.Random(seed).uniform(0.2, 3)
    (ended,) = warm.run(warm.training_job(corpus, tmp_path, *EPOCHS, *cli.WORKER, kill_after=seconds))
    assert ended.status in (-9, 0)
    resume(corpus, tmp_path, straight)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_a_killed_run_in_half_precision_ends_with_the_same_weights(corpus, tmp_path, kind):
    """fairseq stores its float32 weights rounded, and a resumed run goes on from those."""
    flags = (*EPOCHS, f"--{kind}", "--fp16-no-flatten-grads")
    straight, killed = (warm.training_job(corpus, tmp_path / name, *flags) for name in ("straight", "killed"))
    ended = warm.run(straight, killed | {"kill_at_update": 7})
    assert [one.status for one in ended] == [0, -9], ended[0].log[-2000:]
    assert "@ 5 updates" in warm.succeed(killed)
    assert same_runs(tmp_path / "killed", tmp_path / "straight")


def test_a_finished_run_stays_as_it_is(corpus, straight, tmp_path):
    folder = shutil.copytree(straight, tmp_path / "run")
    before = (folder / "checkpoint_last.pt").read_bytes()
    (ended,) = warm.run(warm.training_job(corpus, folder, "--max-update", "10"))
    assert "nothing is left to train: 10 updates are done and --max-update 10 is reached" in ended.log
    assert (folder / "checkpoint_last.pt").read_bytes() == before
    warm.run(warm.training_job(corpus, folder, *EPOCHS[2:], "--max-update", "11"))
    assert load_safely(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 11


def meter(folder, name: str) -> dict:
    """What fairseq has counted over the whole training."""
    meters = load_safely(folder / "checkpoint_last.pt")["extra_state"]["metrics"]["default"]
    return next(state for _, key, _, state in meters if key == name)


def test_a_resumed_run_continues_the_count_of_patience(corpus, tmp_path):
    """With a learning rate of 0, no validation is better than the first."""
    flags = ("--lr", "0", "--patience", "2", "--no-epoch-checkpoints")
    warm.succeed(warm.training_job(corpus, tmp_path, *flags, "--max-epoch", "2"))
    before = meter(tmp_path, "train_wall")["sum"]
    (second,) = warm.run(warm.training_job(corpus, tmp_path, *flags, "--max-epoch", "9"))
    assert "early stop since valid performance hasn't improved for last 2 runs" in second.log
    assert meter(tmp_path, "train_wall")["sum"] > before  # of which fairseq forgets the first two epochs
    assert second.log.count("end of epoch") == 1
    (third,) = warm.run(warm.training_job(corpus, tmp_path, *flags, "--max-epoch", "9"))
    assert "nothing is left to train: 15 updates are done and --patience 2 is reached" in third.log
    (anew,) = warm.run(warm.training_job(corpus, tmp_path, *flags, "--max-epoch", "4", "--reset-meters"))
    assert anew.log.count("end of epoch") == 1, anew.log[-2000:]


@pytest.mark.parametrize("updates", [5, 8], ids=["between epochs", "within an epoch"])
def test_a_resumed_run_continues_its_clock(corpus, tmp_path, updates):
    """In an epoch of five updates. fairseq's clock restarts between epochs, and stays at 0 within one.

    Its sums over the whole training restart between epochs, too, and stay as they are from a resuming within one.
    """
    warm.succeed(warm.training_job(corpus, tmp_path, "--max-update", updates))
    before = meter(tmp_path, "train_wall")["sum"]
    state = load_safely(last := tmp_path / "checkpoint_last.pt")
    state["extra_state"]["previous_training_time"] += 1000
    torch.save(state, last)
    log = warm.succeed(warm.training_job(corpus, tmp_path, "--max-epoch", "3"))
    found = [int(seconds) for seconds in re.findall(r'"train_wall": "(\d+)"}', log)]
    assert len(found) > 1
    assert all(1000 <= seconds < 1500 for seconds in found)
    assert meter(tmp_path, "train_wall")["sum"] > before
    assert meter(tmp_path, "wpb")["count"] == 15


@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_the_newest_intact_checkpoint_is_named_and_used_if_allowed(corpus, straight, tmp_path, how):
    (folder := tmp_path / "run").mkdir()
    data = bytearray((straight / "checkpoint2.pt").read_bytes())
    (folder / "checkpoint2.pt").write_bytes(data)
    data[len(data) // 2] ^= 255
    if how != "missing":
        (folder / "checkpoint_last.pt").write_bytes(data if how == "flipped" else data[: len(data) // 2])
    allowed = {"RECURRENCE_RESTORE": "newest"}
    (rejected,) = warm.run(warm.training_job(corpus, folder, *EPOCHS, "--no-save"))
    (taken,) = warm.run(warm.training_job(corpus, folder, *EPOCHS, "--no-save", env=allowed))
    problem = f"{folder}/checkpoint_last.pt is "
    assert problem in rejected.log
    assert f"--restore-file {folder}/checkpoint2.pt or RECURRENCE_RESTORE=newest" in rejected.log
    assert rejected.status == (how != "missing")
    if rejected.status:
        assert rejected.last_line.startswith(f"fairseq-train: error: {problem}")
        assert "Traceback" not in rejected.log
    assert taken.status == 0
    assert "(epoch 3 @ 10 updates)" in taken.log
