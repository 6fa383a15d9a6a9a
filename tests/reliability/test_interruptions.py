"""Kills at any moment, and full disks. Resumed, a run of either trainer ends as an undisturbed one, bit for bit.

`make fuzz` tries more than the other tests, at other moments each time.
"""

import itertools
import os
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairseq_repairs.files import damage
from tests.reliability.readers import make_folders, readers
from tests.support import warm
from tests.support.image_training import SCRIPT, checkpoint, flags, table
from tests.support.states import same_runs, same_state

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("ROUNDS", 0))
TOGETHER = 4 if ROUNDS else 1
KILLS, DISKS = (3 * ROUNDS, ROUNDS // 2) if ROUNDS else (1, 1)  # of each trainer
SEED = random.randrange(10**6) if ROUNDS else 0
SIZES = (1 << 12, 1 << 16)  # of a disk, in bytes
CHANGES = 16  # to files, while a run of two epochs saves
LONGEST = 8  # kills before a run may end


class Trainer(NamedTuple):
    """A trainer: a job that trains or resumes in a folder, the folder of an undisturbed run, and what must be equal."""

    job: Callable[..., dict[str, Any]]
    straight: Path
    same: Callable[[Path, Path], bool]


def same_images(ours: Path, theirs: Path) -> bool:
    """Whether two runs of the image trainer have the same checkpoints and tables."""
    pairs = [[checkpoint(folder, name) for folder in (ours, theirs)] for name in ("last", "model_best")]
    parts = [
        (one[part], other[part]) for one, other in pairs for part in ("state_dict", "optimizer", "epoch", "metric")
    ]
    return all(same_state(*pair) for pair in parts) and table(ours) == table(theirs)


@pytest.fixture(scope="module", params=["text", "images"])
def trainer(request, corpus, straight, tmp_path_factory) -> Trainer:
    if request.param == "text":
        epochs = ("--max-epoch", "2", "--keep-last-epochs", "1")
        return Trainer(
            lambda folder, at=None: warm.training_job(corpus, folder, *epochs, **(at or {})), straight, same_runs
        )
    images, more = request.getfixturevalue("images"), ("--epochs", "2", "--batch-size", "24", "--resume")
    folder = tmp_path_factory.mktemp("straight")

    def job(folder: Path, at: dict[str, float] | None = None) -> dict[str, Any]:
        return {"argv": ["python", SCRIPT, *flags(images, folder, *more)], **(at or {})}

    warm.succeed(job(folder))
    return Trainer(job, folder, same_images)


def test_kills_lose_no_checkpoint(trainer, tmp_path):
    """Until so many have hit a run, in chains of kills: at a change to files, or at any time."""
    chance, kills, chains = random.Random(SEED), 0, 0
    while kills < KILLS:
        folders = [tmp_path / str(chains + number) for number in range(TOGETHER)]
        for _ in range(chance.randint(1, LONGEST)):
            moments = [moment(chance) for _ in folders]
            for ended, folder in zip(warm.run(*map(trainer.job, folders, moments)), folders):
                assert ended.status in (-9, 0), ended.log[-2000:]
                assert "Traceback" not in ended.log
                assert broken(folder) == [], moments
                kills += ended.status == -9
        for ended, folder in zip(warm.run(*map(trainer.job, folders)), folders):
            assert ended.status == 0, ended.log[-2000:]
            assert trainer.same(folder, trainer.straight), SEED
            assert [path for path in folder.iterdir() if "tmp" in path.name] == []
        chains += TOGETHER
    print(f"{kills} kills in {chains} chains, seed {SEED}: equal")


def moment(chance: random.Random) -> dict[str, float]:
    """When a job is killed."""
    if chance.random() < 0.6:
        return {"kill_at": chance.randrange(CHANGES)}
    return {"kill_after": chance.uniform(0.3, 6)}


def broken(folder: Path) -> list[Path]:
    """The damaged checkpoints of a folder, without those of which a kill has left a part."""
    found = [path for path in folder.glob("*") if path.suffix in (".pt", ".tar") and "tmp" not in path.name]
    return [path for path in found if damage(path)]


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A folder that is a disk of its own."""
    (tmp_path / "disk").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path / "disk"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    yield tmp_path / "disk"
    subprocess.run(["umount", tmp_path / "disk"], check=True)


def test_full_disks_lose_no_checkpoint(trainer, disk):
    chance, full, needed = random.Random(SEED), 0, sum(path.stat().st_size for path in trainer.straight.rglob("*.*"))
    for number in range(DISKS):
        folder = disk / str(number)
        resize(disk, int(chance.uniform(0.05, 1) * needed))
        (ended,) = warm.run(trainer.job(folder))
        full += ended.status != 0
        assert "Traceback" not in ended.log
        assert ended.status == 0 or ("error: " in ended.last_line and str(folder) in ended.last_line), ended.last_line
        assert broken(folder) == []
        assert [path for path in folder.glob("*") if "tmp" in path.name] == []
        resize(disk, 8 * needed)
        warm.succeed(trainer.job(folder))
        assert trainer.same(folder, trainer.straight), SEED
        subprocess.run(["rm", "-r", folder], check=True)
    print(f"{full} full disks of {DISKS}, seed {SEED}: equal")


def test_a_full_disk_leaves_no_part_of_a_file(honest, disk):
    """Of every command that writes a new file or folder; trainers and recipes write straight into a folder."""
    commands = {tuple(words) for found in readers().values() for words in found if "new" in words}
    tried, full = random.Random(SEED).sample(sorted(commands), len(commands) if ROUNDS else 1), 0
    make_folders(honest, tried)
    for words, size in itertools.product(tried, SIZES):
        resize(disk, size)
        there = [f"{disk}/new" if word == "new" else word for word in words]
        (ended,) = warm.run({"argv": there, "cwd": honest, "kill_after": 300})
        full += ended.status != 0
        named = f"error: .*({disk}|sentencepiece)"  # whose library does not report a full disk
        assert ended.status == 0 or re.search(named, ended.last_line), (words, ended.last_line)
        assert "Traceback" not in ended.log, words
        part = [path for path in disk.rglob("*") if path.is_file() and "-m" in words and ended.status]
        assert part == [], words
        subprocess.run(["rm", "-rf", disk / "new"], check=True)
    print(f"{full} full disks of {2 * len(tried)}, {len(tried)} commands")


def resize(disk: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)
