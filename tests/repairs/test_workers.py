"""Data loader workers and threads end with their epoch."""

import multiprocessing
import threading

import pytest
import torch
from fairseq.data.iterators import BackgroundConsumer, EpochBatchIterator

import fairseq_repairs  # noqa: F401
from tests.support import cli


class Numbers(torch.utils.data.Dataset):
    """0 .. 39."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


def batches(**options) -> EpochBatchIterator:
    return EpochBatchIterator(Numbers(), list, [[i, i + 1] for i in range(0, 40, 2)], num_workers=1, **options)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, BackgroundConsumer)]


def test_no_process_outlives_its_epoch():
    kept = []
    for epoch in (1, 2, 3):
        kept.append(batches(buffer_size=10, epoch=epoch))  # as fairseq keeps them, until a garbage collection
        assert sum(map(len, kept[-1].next_epoch_itr(shuffle=False))) == 40
        for reader in readers():
            reader.join()
        assert multiprocessing.active_children() == []


ENDS_EARLY = """
import atexit
atexit.register(lambda: print("at exit", len(readers())))  # runs last
from tests.repairs.test_workers import batches, readers
epoch = batches(buffer_size=2).next_epoch_itr(shuffle=False)
print("first", next(epoch), len(readers()))
"""


@pytest.mark.slow
def test_a_reader_ends_before_the_interpreter():
    *_, first, last = cli.python("-W", "ignore", "-c", ENDS_EARLY, fresh=True).splitlines()
    assert first == "first [0, 1] 1"
    assert last == "at exit 0"
