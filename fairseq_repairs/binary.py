"""Binary data that are not as long as their index says."""

import os
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from fairseq.data import indexed_dataset

from fairseq_repairs.files import require_regular
from fairseq_repairs.replace import before, instead

MAPPED = struct.Struct("<9sQBQ")  # magic, version, code of the type of numbers, count of sentences
INDEXED = struct.Struct("<8s5Q")  # magic, version, code of the type of numbers, its bytes, count of sentences, of sizes


@before(indexed_dataset, "infer_dataset_impl")
def require_files(path: str) -> None:
    """Rejects a pipe or a device in place of data or their index, which fairseq waits for, or reads without end."""
    require_regular(indexed_dataset.index_file_path(path))
    require_regular(indexed_dataset.data_file_path(path))


@instead(indexed_dataset, "make_dataset")
def name_truncated_data(make: Callable, path: str, impl: str, *args, **kwargs) -> Any:
    """Names data that are cut off, or whose index has a false count, before anything reads them.

    fairseq fails in words of numpy that name no file, or in a destructor; with `--dataset-impl lazy` or `cached`, it
    reads what happens to be in memory.
    """
    if impl in ("mmap", "lazy", "cached") and indexed_dataset.IndexedDataset.exists(path):
        index, data = indexed_dataset.index_file_path(path), indexed_dataset.data_file_path(path)
        require_files(path)
        with open(index, "rb") as file:
            _require(data, (_mapped_bytes if impl == "mmap" else _indexed_bytes)(file), f"as {index} says")
    return make(path, impl, *args, **kwargs)


def _mapped_bytes(index: BinaryIO) -> int | None:
    """The bytes of data that a `--dataset-impl mmap` index tells: count sizes, then where each sentence begins."""
    magic, _, code, count = MAPPED.unpack(_head(index, MAPPED.size))
    if magic != indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC:
        return None  # fairseq says what it expects
    _require(index.name, MAPPED.size + count * (4 + 8), f"for the {count:,} sentences of its head")
    if not count:
        raise ValueError(f"{index.name}: has no sentence: must have at least one")
    size, start = (_number(index, at, kind) for at, kind in ((MAPPED.size + 4 * (count - 1), "<i"), (-8, "<q")))
    return start + size * np.dtype(indexed_dataset._code_to_dtype[code]).itemsize


def _indexed_bytes(index: BinaryIO) -> int | None:
    """The bytes of data that an older index tells: two lists of count + 1 places, then the sizes."""
    magic, _, _, width, count, sizes = INDEXED.unpack(_head(index, INDEXED.size))
    if magic != indexed_dataset.IndexedDataset._HDR_MAGIC:
        return None
    _require(index.name, INDEXED.size + 8 * (2 * (count + 1) + sizes), f"for the {count:,} sentences of its head")
    return width * _number(index, INDEXED.size + 8 * (2 * count + 1), "<q")


def _head(index: BinaryIO, size: int) -> bytes:
    head = index.read(size)
    if len(head) < size:
        raise ValueError(f"{index.name}: truncated after {len(head)} bytes")
    return head


def _number(index: BinaryIO, at: int, kind: str) -> int:
    """The number at a place of the file, counted from its end if negative."""
    index.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
    return struct.unpack(kind, index.read(struct.calcsize(kind)))[0]


def _require(path: str, expected: int | None, reason: str) -> None:
    """Raises ValueError for a file of another size; None is any."""
    size = os.path.getsize(path)
    if expected not in (None, size):
        raise ValueError(f"{path}: has {size:,} bytes, not {expected:,} {reason}: truncated, or of other data")
