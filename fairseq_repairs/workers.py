"""Data loader workers are forks, and end with their epoch, as their threads do."""

import inspect
import multiprocessing
import queue
import sys
import threading
import weakref
from typing import Any

from fairseq.data.iterators import BackgroundConsumer, BufferedIterator, EpochBatchIterator
from torch.utils.data import DataLoader

from fairseq_repairs.replace import after

# Whether workers are kept by an attribute; fairseq 0.12.2 has none.
BY_ATTRIBUTE = "persistent_workers" in inspect.signature(EpochBatchIterator.__init__).parameters


@after(EpochBatchIterator, "__init__", where=BY_ATTRIBUTE)
def end_workers_with_epoch(built: None, batches: EpochBatchIterator, *args, **kwargs) -> None:
    """Ends the workers of an epoch with it; fairseq starts new ones for the next epoch and keeps the old.

    They stay until a garbage collection, one process more for every epoch and every validation.
    """
    batches.persistent_workers = False


@after(EpochBatchIterator, "__init__")
def fork_workers(built: None, batches: EpochBatchIterator, *args, **kwargs) -> None:
    """Forks the workers of a rank that fairseq has spawned, as those of a single process are.

    Such a rank would spawn them: they would not have these repairs, and could not unpickle a data set that holds its
    task. Where processes are not forked (macOS, Python 3.14), the training process itself reads the batches.
    """
    if sys.platform == "linux" and multiprocessing.parent_process() is not None:
        multiprocessing.set_start_method("fork", force=True)
    if multiprocessing.get_start_method() != "fork":
        batches.num_workers = 0


@after(EpochBatchIterator, "_get_iterator_for_epoch", where=not BY_ATTRIBUTE)
def end_loader_s_workers_with_epoch(iterator: Any, *args, **kwargs) -> None:
    """The same in fairseq 0.12.2, where the loader keeps its workers."""
    reader = getattr(iterator, "_itr", None)
    if isinstance(reader, BufferedIterator) and isinstance(reader._iterable, DataLoader):
        vars(reader._iterable)["persistent_workers"] = False  # not yet read by the loader


@after(BufferedIterator, "_create_consumer")
def end_readers_before_exit(created: None, reader: BufferedIterator) -> None:
    """Ends the thread that reads batches ahead before the interpreter exits.

    fairseq leaves it running if an epoch is not finished (`--max-update`), and an interpreter that exits while the
    thread is inside torch sometimes aborts.
    """
    weakref.finalize(reader, _close, reader._consumer, reader._queue)


def _close(reader: BackgroundConsumer, waiting: queue.Queue) -> None:
    """Ends a thread that may be waiting because its queue is full."""
    reader._max_len = 0  # the batch that it reads is its last one
    while reader.is_alive() and reader is not threading.current_thread():
        while not waiting.empty():
            waiting.get_nowait()
        reader.join(0.05)
