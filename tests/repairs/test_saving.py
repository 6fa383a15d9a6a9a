"""Checkpoints are written atomically, and damaged ones are found."""

import errno
import io
import os
import pickle
import signal
from argparse import Namespace
from functools import partial

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from fairseq_repairs import resuming, saving
from fairseq_repairs.checkpoints import load_safely
from fairseq_repairs.files import damage
from tests.support import upstream

STATE = {"model": {"weight": torch.arange(50_000.0)}}
save = checkpoint_utils.torch_persistent_save


class Disk:
    """Lets `after` writes succeed, then fails `times` times with an error code."""

    def __init__(self, monkeypatch, after: int, code: int, times: int = 10**6):
        self.left, self.code, self.times = after, code, times
        monkeypatch.setattr(saving, "PAUSE", 0)
        monkeypatch.setattr("builtins.open", partial(self.open, open))

    def open(self, opened, path, mode="r", *args, **kwargs):
        return OnDisk(self, path) if mode == "xb" else opened(path, mode, *args, **kwargs)

    def take(self) -> None:
        self.left -= 1
        if self.left < 0 and self.times:
            self.times -= 1
            raise OSError(self.code, os.strerror(self.code))


class OnDisk(io.FileIO):
    """A file to write on such a disk."""

    def __init__(self, disk: Disk, path):
        super().__init__(path, "xb")
        self.disk = disk

    def write(self, data) -> int:
        self.disk.take()
        return super().write(data)


@pytest.fixture
def good(tmp_path):
    save(STATE, str(tmp_path / "checkpoint1.pt"))
    return tmp_path


def is_intact(path) -> bool:
    return damage(path) is None and torch.equal(load_safely(path)["model"]["weight"], STATE["model"]["weight"])


@pytest.mark.parametrize("after", range(8))
def test_one_failed_write_is_retried_from_the_start(good, monkeypatch, after):
    """fairseq appends the second try to the partial file of the first and reports a success."""
    Disk(monkeypatch, after, errno.EIO, times=1)
    save(STATE, str(good / "checkpoint2.pt"))
    assert is_intact(good / "checkpoint2.pt")
    assert sorted(os.listdir(good)) == ["checkpoint1.pt", "checkpoint2.pt"]


@pytest.mark.parametrize(("write", "after"), [("torch.save", 0), ("torch.save", 3), ("copy", 0)])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_no_more_is_reported_with_the_newest_intact_checkpoint(good, monkeypatch, write, after, code):
    (good / "checkpoint_last.pt").write_bytes((good / "checkpoint1.pt").read_bytes())
    os.utime(good / "checkpoint_last.pt", (1, 1))
    Disk(monkeypatch, after, code)
    copy = partial(PathManager.copy, str(good / "checkpoint1.pt"), overwrite=True)
    rule = f"^{good}/checkpoint_last.pt: cannot be written: {os.strerror(code)}; the newest .*/checkpoint1.pt$"
    with pytest.raises(OSError, match=rule):
        (copy if write == "copy" else partial(save, STATE))(str(good / "checkpoint_last.pt"))
    assert sorted(os.listdir(good)) == ["checkpoint1.pt", "checkpoint_last.pt"]  # the partial file is removed
    assert is_intact(good / "checkpoint_last.pt")


def test_an_interrupted_save_leaves_the_old_file(good, monkeypatch):
    PathManager.copy(str(good / "checkpoint1.pt"), str(good / "checkpoint_last.pt"))
    assert is_intact(good / "checkpoint_last.pt")
    # A shell that starts the tests in the background makes Python ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(os, "fsync", lambda number: os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            save({"model": {"weight": -STATE["model"]["weight"]}}, str(good / "checkpoint_last.pt"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert is_intact(good / "checkpoint_last.pt")


@pytest.mark.parametrize(
    ("how", "named"), [("empty", "empty"), ("truncated", "truncated after"), ("flipped", "damaged in")]
)
def test_damage_is_found_and_named(good, how, named):
    path = good / "checkpoint2.pt"
    data = bytearray((good / "checkpoint1.pt").read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes({"empty": b"", "truncated": data[: len(data) // 2], "flipped": data}[how])
    assert damage(path).startswith(named)
    assert saving.newest_intact(good / "checkpoint_last.pt") == good / "checkpoint1.pt"
    if how != "flipped":  # torch reads a file with wrong checksums
        for load in (checkpoint_utils.load_checkpoint_to_cpu, load_safely):
            with pytest.raises(pickle.UnpicklingError, match=rf"^{path}: not an intact checkpoint: {how}"):
                load(str(path))


@pytest.mark.parametrize("place", [6, 8])  # in an entry of the directory: the version, a mark of encryption
def test_a_flipped_bit_of_the_directory_is_damage(good, place):
    path = good / "checkpoint2.pt"
    data = bytearray((good / "checkpoint1.pt").read_bytes())
    data[data.index(b"PK\1\2") + place] ^= 65
    path.write_bytes(data)
    assert damage(path)
    assert saving.newest_intact(good / "checkpoint_last.pt") == good / "checkpoint1.pt"


def test_the_remedy_names_the_option_of_the_damaged_file(good):
    path = good / "checkpoint2.pt"
    path.write_bytes(b"")
    for name in ("restore_file", "finetune_from_model"):
        options = Namespace(**{"restore_file": "checkpoint_last.pt", "finetune_from_model": None, name: str(path)})
        with pytest.raises(ValueError, match=f"is empty; --{name.replace('_', '-')} {good / 'checkpoint1.pt'} or "):
            resuming._choose(str(path), options)


def test_a_link_to_a_file_that_is_gone_is_no_checkpoint(good):
    (good / "checkpoint_last.pt").symlink_to("gone.pt")
    assert saving.newest_intact(good / "checkpoint_last.pt") == good / "checkpoint1.pt"


def test_zeros_are_damage_and_the_old_format_is_not(good):
    path = good / "checkpoint2.pt"
    path.write_bytes(bytes(1000))  # what a loss of power may leave
    assert damage(path).startswith("truncated after")
    torch.save(STATE, path, _use_new_zipfile_serialization=False)
    assert is_intact(path)


def test_a_file_is_no_folder_of_checkpoints(good):
    with pytest.raises(NotADirectoryError, match=r"^--save-dir .*checkpoint1\.pt: is a file, must be a folder$"):
        checkpoint_utils.verify_checkpoint_directory(str(good / "checkpoint1.pt"))


def test_updates_that_end_an_epoch_are_saved_too(data, tmp_path):
    flags = ("--no-epoch-checkpoints", "--save-interval-updates", "1", "--max-epoch", "2")
    last = load_safely(upstream.run_training("transformer", data["text"], tmp_path, *flags))
    saved = sorted(int(path.stem.rpartition("_")[2]) for path in tmp_path.glob("checkpoint_*_*.pt"))
    assert saved == list(range(1, last["optimizer_history"][-1]["num_updates"] + 1))


def test_of_updates_that_end_an_epoch_the_newest_are_kept(data, tmp_path):
    three_an_epoch = ("--max-epoch", "4", "--batch-size", "16")
    saving_each = ("--no-epoch-checkpoints", "--save-interval-updates", "3", "--keep-interval-updates", "2")
    upstream.run_training("transformer", data["text"], tmp_path, *three_an_epoch, *saving_each)
    names = {path.name for path in tmp_path.glob("checkpoint_*_*.pt")}
    assert names == {"checkpoint_3_9.pt", "checkpoint_4_12.pt"}


NAMES = ("_last", "_best", "3", "_3_500", ".best_bleu_21.5034", ".best_rouge-l_-0.1250")


@pytest.mark.parametrize("suffix", ["", "-a", "-shard1"])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_resumes_from_none_of_another_suffix(tmp_path, name, suffix):
    """Of another training in the same folder, or of another rank."""
    own = tmp_path / f"checkpoint{name}{suffix}.pt"
    for number, other in enumerate(("", "-a", "-b", "-shard1", "-shard10")):
        path = tmp_path / f"checkpoint{name}{other}.pt"
        save(STATE, str(path))
        os.utime(path, (number, number))
    assert saving.newest_intact(tmp_path / f"checkpoint_last{suffix}.pt") == own
    own.unlink()
    assert saving.newest_intact(tmp_path / f"checkpoint_last{suffix}.pt") is None


def test_a_suffix_may_begin_with_a_digit(tmp_path):
    """Epoch 1 of the suffix 2 is named like epoch 12 of none."""
    save(STATE, str(tmp_path / "checkpoint12.pt"))
    assert saving.newest_intact(tmp_path / "checkpoint_last2.pt") == tmp_path / "checkpoint12.pt"
