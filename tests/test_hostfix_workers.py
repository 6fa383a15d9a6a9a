"""Loading processes and threads end with their epoch."""

import gc
import multiprocessing
import threading

import torch
from fairseq.data.iterators import BackgroundConsumer, EpochBatchIterator

import fairseq_plugin  # noqa: F401  the repairs


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


def test_a_reader_ends_with_an_iterator_that_is_not_read_to_its_end():
    iterator = batches(buffer_size=2)
    assert next(iterator.next_epoch_itr(shuffle=False)) == [0, 1]
    assert len(readers()) == 1
    del iterator
    gc.collect()
    assert readers() == []
    assert multiprocessing.active_children() == []
