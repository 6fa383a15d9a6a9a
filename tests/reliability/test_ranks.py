"""Several ranks: a dying rank ends the others, and all resume from rank 0's checkpoint or none does."""

import shutil

import pytest

from fairseq_repairs.checkpoints import load_safely
from fairseq_repairs.parallel import free_port
from tests.support import cli, warm
from tests.support.states import same_runs

pytestmark = pytest.mark.slow

INTERVAL = ("--batch-size", "16", "--save-interval-updates", "3", "--disable-validation", "--no-epoch-checkpoints")


def ranks(corpus, folders, *flags) -> list[dict]:
    """One job per rank, as torchrun starts them; each saves to its own folder, which the others do not see."""
    for folder in folders:
        folder.mkdir(exist_ok=True)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(folders))}
    return [
        warm.training_job(
            corpus, ".", *INTERVAL, *cli.BACKEND, *flags, env={**meeting, "RANK": str(rank)}, cwd=str(folder)
        )
        for rank, folder in enumerate(folders)
    ]


def updates(folder) -> int:
    return load_safely(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]


@pytest.fixture(scope="module")
def two(corpus, tmp_path_factory):
    """The folder of a run on two ranks, stopped after three of their seven batches of an epoch."""
    folder = tmp_path_factory.mktemp("two")
    for ended in warm.run(*ranks(corpus, [folder] * 2, "--max-update", "3")):
        assert ended.status == 0, ended.log[-2000:]
    return folder


@pytest.mark.parametrize(("holds", "ends"), [(0, 5), (1, 2)], ids=["rank 0 has the state", "rank 1 has it"])
def test_nodes_without_a_shared_folder_resume_from_rank_0(corpus, two, tmp_path, holds, ends):
    """If rank 0 has no checkpoint, all start a new run."""
    folders = [tmp_path / "first", tmp_path / "second"]
    shutil.copytree(two, folders[holds])
    ended = warm.run(*ranks(corpus, folders, "--max-update", str(ends)))
    assert [one.status for one in ended] == [0, 0], [one.log[-1000:] for one in ended]
    assert updates(folders[0]) == ends
    assert ("(epoch 1 @ 3 updates)" in ended[0].log) == (holds == 0)


@pytest.mark.skipif(cli.is_official(), reason="fairseq 0.12.2 has no --continue-once")
def test_nodes_without_a_shared_folder_continue_once_from_rank_0(corpus, two, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    jobs = ranks(corpus, folders, "--continue-once", "start.pt", "--max-update", "5")
    shutil.copy(two / "checkpoint_last.pt", folders[0] / "start.pt")
    ended = warm.run(*jobs)
    assert [one.status for one in ended] == [0, 0], [one.log[-1000:] for one in ended]
    assert "(epoch 1 @ 3 updates)" in ended[0].log
    assert updates(folders[0]) == 5


def test_all_ranks_resume_from_the_float32_weights(corpus, tmp_path):
    """Rank 0 sends them. Of both runs, the last checkpoint is the one of the fifth update."""
    for folder, stops in (("straight", [5]), ("resumed", [3, 5])):
        for stop in stops:
            ended = warm.run(*ranks(corpus, [tmp_path / folder] * 2, "--bf16", "--max-update", str(stop)))
            assert [one.status for one in ended] == [0, 0], [one.log[-1000:] for one in ended]
    assert "(epoch 1 @ 3 updates)" in ended[0].log
    assert same_runs(tmp_path / "resumed", tmp_path / "straight")


def test_ranks_that_read_their_own_files_stop_if_one_has_none(corpus, two, tmp_path):
    ended = warm.reject(*ranks(corpus, [two, tmp_path], "--max-update", "5", "--load-checkpoint-on-all-dp-ranks"))
    assert all("--load-checkpoint-on-all-dp-ranks: " in one.last_line for one in ended)


def test_ranks_that_read_their_own_files_need_only_those(corpus, two, tmp_path):
    """Rank 0 alone has saved others."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        shutil.copy(two / "checkpoint_last.pt", folder)
    shutil.copy(two / "checkpoint_last.pt", folders[0] / "checkpoint_1_3.pt")
    ended = warm.run(*ranks(corpus, folders, "--max-update", "5", "--load-checkpoint-on-all-dp-ranks"))
    assert [one.status for one in ended] == [0, 0], [one.log[-1000:] for one in ended]
    assert updates(folders[0]) == 5


def test_a_truncated_checkpoint_stops_all_ranks_with_one_line(corpus, two, tmp_path):
    data = (two / "checkpoint_last.pt").read_bytes()
    (tmp_path / "checkpoint_last.pt").write_bytes(data[: len(data) // 2])
    ended = warm.reject(*ranks(corpus, [tmp_path] * 2, "--max-update", "5"))
    assert all("checkpoint_last.pt is truncated after" in one.last_line for one in ended)


def test_a_killed_rank_ends_its_peers(corpus, tmp_path):
    jobs = ranks(corpus, [tmp_path] * 2, "--max-epoch", "400", "--no-save")
    jobs[1]["kill_at_update"] = 3
    first, second = warm.run(*jobs)
    assert second.status == -9
    assert first.status == 1, first.log[-1000:]  # it ended by itself; a hanging process would have been killed
    assert "Traceback" not in first.log


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_another_number_of_ranks_resumes_at_the_same_place(corpus, two, tmp_path, before, after):
    """No batch of an epoch is skipped, and fewer batches than there are ranks are repeated."""
    folder = two
    if before == 1:
        folder = tmp_path / "one"
        warm.succeed(warm.training_job(corpus, folder, *INTERVAL, "--max-update", "11"))
    flags = ("--restore-file", folder / "checkpoint_last.pt", "--max-epoch", "1")
    jobs = ranks(corpus, [tmp_path / "new"] * after, *flags)
    if after == 1:
        jobs = [warm.training_job(corpus, tmp_path / "new", *INTERVAL, *flags)]
    ended = warm.run(*jobs)
    assert [one.status for one in ended] == [0] * after, [one.log[-1500:] for one in ended]
    done = {1: 11, 2: 6}[before]
    assert f"saved by {before} ranks, now there are {after}: epoch 1 resumes after {done // after * after} batches" in (
        ended[0].log
    )
    total = 14
    left = -(-(total - done // after * after) // after)
    assert updates(tmp_path / "new") - updates(folder) == left


def test_a_place_after_the_end_of_the_epoch_is_explained(corpus, two, tmp_path):
    flags = ("--restore-file", two / "checkpoint_last.pt", "--batch-size", "128", "--max-update", "5")
    (ended,) = warm.reject(warm.training_job(corpus, tmp_path, *flags))
    assert "--reset-dataloader starts at epoch 1" in ended.last_line
    assert "fairseq developers" not in ended.log
