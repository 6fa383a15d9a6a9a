"""Archives of models are unpacked into a folder of their own, and nothing else is moved or removed."""

import io
import os
import tarfile
from pathlib import Path

import pytest
import torch
from fairseq import file_utils
from fairseq.models.transformer import TransformerModel

import fairseq_repairs  # noqa: F401


def write(path: Path, *names: str) -> Path:
    """An archive of files that hold their own names."""
    with tarfile.open(path, f"w:{path.suffix[1:]}") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def contents(folder: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(folder).iterdir()}


@pytest.mark.parametrize(
    "names",
    [
        ["model/model.pt", "model/dict.txt"],
        ["model.pt", "dict.txt"],
        ["model.pt", "model_2.pt"],
        ["one/model.pt"],
        ["model.pt"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("ending", ["gz", "bz2"])
def test_an_archive_is_unpacked_and_stays(names, ending, tmp_path):
    path = write(tmp_path / f"one.tar.{ending}", *names)
    before = path.read_bytes()
    for _ in range(2):
        assert contents(file_utils.load_archive_file(str(path))) == {os.path.basename(name): name for name in names}
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_a_download_is_replaced_by_its_folder(tmp_path, monkeypatch):
    """In fairseq's cache, from which the next call takes it."""
    path = write(tmp_path / "0123.tar.gz", "model/model.pt").rename(tmp_path / "0123")
    monkeypatch.setattr(file_utils, "cached_path", lambda archive_file: str(path))
    for _ in range(2):
        assert file_utils.load_archive_file("https://x.org/model.tar.gz") == str(path)
    assert contents(path) == {"model.pt": "model/model.pt"}


def test_an_absolute_name_moves_no_file(tmp_path):
    other = tmp_path / "thesis.txt"
    other.write_text("mine")
    path = write(tmp_path / "one.tar.gz", str(other))
    with pytest.raises(OSError, match=r"model\.pt"):
        TransformerModel.from_pretrained(str(path), "model.pt", str(tmp_path))
    assert other.read_text() == "mine"
    assert path.exists()


@pytest.mark.parametrize("member", ["../outside.txt", "model/../../outside.txt"])
def test_a_name_outside_is_rejected(member, tmp_path):
    path = write(tmp_path / "one.tar.gz", "model/model.pt", member)
    with pytest.raises(ValueError, match=f"^{path}: must be an archive whose names stay within it: "):
        file_utils.load_archive_file(str(path))
    assert os.listdir(tmp_path) == [path.name]


def test_what_is_no_archive_is_named(tmp_path):
    torch.save({"model": {}}, tmp_path / "model.pt")  # given with its folder, in place of it
    rule = "must be a folder or an archive of one, not a file in it"
    with pytest.raises(ValueError, match=f"^{tmp_path}/model.pt: {rule}$"):
        file_utils.load_archive_file(str(tmp_path / "model.pt"))
    with pytest.raises(FileNotFoundError, match="^/nowhere: no such folder or archive"):
        file_utils.load_archive_file("/nowhere")
    assert file_utils.load_archive_file(str(tmp_path)) == str(tmp_path)


def test_an_archive_that_unpacks_without_measure_is_not_unpacked(tmp_path):
    with tarfile.open(path := tmp_path / "bomb.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("model/model.pt")
        archive.addfile(member)
        member.size = 1 << 40
        archive.fileobj.write(member.tobuf())
    with pytest.raises(ValueError, match=f"^{path}: must unpack to <= 1,073,741,824 bytes"):
        file_utils.load_archive_file(str(path))


@pytest.mark.parametrize("kind", ["pipe", "cut", "changed"])
def test_an_archive_that_cannot_be_read_is_named(kind, tmp_path):
    path = write(tmp_path / "one.tar.xz", *(f"model/{number}" for number in range(1000)))
    data = bytearray(path.read_bytes())
    path.unlink()
    data[len(data) // 3] ^= 255
    os.mkfifo(path) if kind == "pipe" else path.write_bytes(data[: len(data) // 2] if kind == "cut" else data)
    with pytest.raises(ValueError, match=f"^{path}: must be a"):
        file_utils.load_archive_file(str(path))
