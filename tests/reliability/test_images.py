"""recipes/train_image.py: kills, full disks, several nodes, and unreadable images."""

import shutil

import pytest
import torch

from fairseq_repairs.parallel import free_port
from tests.support import warm
from tests.support.image_training import SCRIPT, checkpoint, flags, table
from tests.support.states import same_state

pytestmark = pytest.mark.slow

STEPS = 10  # changes to files in the first of two epochs, and some of the second


def trains(images, output, *more, **job) -> dict:
    return {"argv": ["python", SCRIPT, *flags(images, output, "--epochs", "2", "--batch-size", "24", *more)], **job}


@pytest.fixture(scope="module")
def straight(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    warm.succeed(trains(images, folder))
    return folder


@pytest.mark.parametrize("step", range(STEPS))
def test_a_kill_at_every_step_of_a_save(images, straight, tmp_path, step):
    (killed,) = warm.run(trains(images, tmp_path, kill_at=step))
    assert killed.status == -9, killed.log
    warm.succeed(trains(images, tmp_path, "--resume"))
    for name in ("last", "model_best"):
        ours, theirs = checkpoint(tmp_path, name), checkpoint(straight, name)
        assert same_state(ours["state_dict"], theirs["state_dict"]), name
        assert same_state(ours["optimizer"], theirs["optimizer"]), name
        assert (ours["epoch"], ours["metric"]) == (theirs["epoch"], theirs["metric"])
    assert table(tmp_path) == table(straight)


def test_a_full_disk_is_reported_in_one_line(images, straight, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    last = tmp_path / "run" / "last.pth.tar"
    more = ("--epochs", "2", "--resume")
    args = checkpoint(straight)
    args["epoch"] = 0
    torch.save(args, last)
    (ended,) = warm.reject(trains(images, tmp_path / "run", *more, most_bytes=last.stat().st_size // 2))
    assert ended.last_line.startswith(f"train_image.py: error: {tmp_path}/run/tmp.pth.tar: cannot be written, ")
    assert f"{last} is intact" in ended.last_line
    assert not (tmp_path / "run" / "tmp.pth.tar").exists()
    assert checkpoint(tmp_path / "run")["epoch"] == 0


@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_a_damaged_checkpoint_is_named_with_an_intact_one(images, straight, tmp_path, how):
    shutil.copytree(straight, tmp_path / "run")
    last, data = tmp_path / "run" / "last.pth.tar", bytearray((straight / "last.pth.tar").read_bytes())
    data[len(data) // 2] ^= 255
    last.unlink()
    if how != "missing":
        last.write_bytes({"truncated": data[: len(data) // 2], "flipped": data}[how])
    (ended,) = warm.reject(trains(images, tmp_path / "run", "--resume"), status=2)
    told = {"missing": "has no last.pth.tar, but ", "flipped": f"--resume {last}: is damaged in"}
    assert told.get(how, f"--resume {last}: is truncated") in ended.last_line
    assert "model_best.pth.tar" in ended.last_line or "checkpoint-" in ended.last_line


@pytest.mark.parametrize("theirs", ["nothing", "an older one"])
def test_nodes_without_a_shared_folder_stop_with_a_line(images, straight, tmp_path, theirs):
    first, second = tmp_path / "first", tmp_path / "second"
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    shutil.copytree(straight, first)
    if theirs == "an older one":
        older = checkpoint(straight)
        older["epoch"] = 0
        second.mkdir()
        torch.save(older, second / "last.pth.tar")
    env = [{**meeting, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    more = ("--resume", "--epochs", "3", "--batch-size", "12")
    jobs = [trains(images, folder, *more, env=env[rank]) for rank, folder in enumerate((first, second))]
    ended = warm.reject(*jobs, status=2)
    assert all("is not the same on ranks 0 and 1" in one.last_line for one in ended)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_truncated_image_is_named(images, tmp_path, split):
    shutil.copytree(images, tmp_path / "data")
    path = tmp_path / "data" / split / "red" / "0.png"
    path.write_bytes(path.read_bytes()[:200])
    for workers in ("0", "1"):
        (ended,) = warm.reject(trains(tmp_path / "data", tmp_path / "run", "--workers", workers), status=2)
        assert f"{path}: cannot be read as an image: " in ended.log
        assert f"error: DATA {tmp_path / 'data'}: 1 images cannot be read; remove what is damaged" in ended.last_line
