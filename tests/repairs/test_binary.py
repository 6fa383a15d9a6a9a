"""Binary data that are cut off, or whose index has a false count, are named."""

import os
import struct
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary, indexed_dataset

import fairseq_repairs  # noqa: F401
from tests.support import upstream

SENTENCES = [torch.tensor(row) for row in ([5, 6, 2], [2], [7, 8, 9, 10, 2])]
HEAD = {"mmap": 26, "lazy": 48, "cached": 48}
COUNT = {"mmap": 18, "lazy": 32, "cached": 32}  # where an index has the number of sentences


@pytest.fixture(params=HEAD)
def impl(request) -> str:
    return request.param


@pytest.fixture
def path(impl, tmp_path) -> Path:
    """The two files of the sentences."""
    builder = indexed_dataset.make_builder(str(tmp_path / "x.bin"), impl, vocab_size=20)
    for sentence in SENTENCES:
        builder.add_item(sentence)
    builder.finalize(str(tmp_path / "x.idx"))
    return tmp_path / "x"


def read(path: Path, impl: str) -> list[list[int]]:
    found = indexed_dataset.make_dataset(str(path), impl, fix_lua_indexing=True)
    if found.supports_prefetch:
        found.prefetch(range(len(found)))
    return [found[index].tolist() for index in range(len(found))]


def test_whole_data_are_read(path, impl):
    assert read(path, impl) == [sentence.tolist() for sentence in SENTENCES]


@pytest.mark.parametrize("left", [0, 1, -1])
def test_cut_data_are_named(path, impl, left):
    data = path.with_suffix(".bin")
    whole = data.read_bytes()
    data.write_bytes(whole[:left])
    rule = f"^{data}: has {len(whole[:left])} bytes, not {len(whole)} as {path}.idx says: truncated"
    with pytest.raises(ValueError, match=rule):
        read(path, impl)


@pytest.mark.parametrize("beyond", [-40, -1, 0, 1, 30])
def test_a_cut_index_is_named(path, impl, beyond):
    index = path.with_suffix(".idx")
    left = max(HEAD[impl] + beyond, 0)
    index.write_bytes(index.read_bytes()[:left])
    with pytest.raises(ValueError, match=f"^{index}: (truncated after {left} bytes|has {left} bytes, not [0-9]+ for)"):
        read(path, impl)


@pytest.mark.parametrize("count", [0, 2, 4, 2**60])
def test_a_false_count_is_named(path, impl, count):
    index = path.with_suffix(".idx")
    whole, at = index.read_bytes(), COUNT[impl]
    index.write_bytes(whole[:at] + struct.pack("<Q", count) + whole[at + 8 :])
    with pytest.raises(ValueError, match=f"^{index}: has .* for the {count:,} sentences of its head"):
        read(path, impl)


def test_a_training_names_them(data, tmp_path):
    for file in data["text"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    cut = tmp_path / "train.en-de.de.bin"
    cut.write_bytes(cut.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"^{cut}: has 100 bytes, not "):
        upstream.run_training("transformer", tmp_path, tmp_path / "run")


@pytest.mark.parametrize("kind", [".bin", ".idx"])
def test_a_pipe_is_named(path, impl, kind):
    file = path.with_suffix(kind)
    file.unlink()
    os.mkfifo(file)
    for use in (lambda path: read(path, impl), lambda path: indexed_dataset.infer_dataset_impl(str(path))):
        with pytest.raises(ValueError, match=f"^{file}: must be a file, not a folder, a pipe or a device"):
            use(path)


def test_a_dictionary_without_end_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 38)
    for name, rule in (("pipe", "must be a file"), ("large", "has 274,877,906,944 bytes: must be <= 268,435,456")):
        with pytest.raises(ValueError, match=f"^{tmp_path}/{name}: {rule}"):
            Dictionary.load(str(tmp_path / name))
