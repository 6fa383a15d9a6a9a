"""Loading processes and threads that end with their epoch."""

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fairseq.data.iterators import BackgroundConsumer, BufferedIterator, EpochBatchIterator

from fairseq_plugin.hostfix.replace import replace


def workers_end_with_epoch() -> None:
    """Let the loading processes of an epoch end with it; fairseq makes new ones for the next, and keeps the old.

    They stayed until a garbage collection, a process more for every epoch and every validation.
    """

    def forget_workers(initialise: Callable) -> Callable:
        def __init__(self, *args, **kwargs):
            initialise(self, *args, **kwargs)
            self.persistent_workers = False

        return __init__

    if "persistent_workers" in EpochBatchIterator.__init__.__code__.co_varnames:
        replace(EpochBatchIterator, "__init__", forget_workers)


def readers_end_before_interpreter() -> None:
    """Let the thread that reads ahead end before the interpreter does.

    fairseq leaves it at work where an epoch is not read to its end (``--max-update``), and an interpreter that ends
    while the thread is inside torch now and then aborts.
    """

    def end_before_interpreter(create: Callable) -> Callable:
        def _create_consumer(self) -> None:
            closed, source = threading.Event(), self._iterable
            self._iterable = _Until(closed, source)
            create(self)
            self._iterable = source
            weakref.finalize(self, _close, self._consumer, self._queue, closed)

        return _create_consumer

    replace(BufferedIterator, "_create_consumer", end_before_interpreter)


class _Until:
    """Items until an event is set. Each thread iterates by itself, so that what it reads from ends with it."""

    def __init__(self, closed: threading.Event, items: Iterable[Any]):
        self.closed, self.items = closed, items

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            if self.closed.is_set():
                return
            yield item


def _close(reader: BackgroundConsumer, waiting: queue.Queue, closed: threading.Event) -> None:
    """Ends a thread that may wait for a place in its queue."""
    closed.set()
    while reader.is_alive() and reader is not threading.current_thread():
        while not waiting.empty():
            waiting.get_nowait()
        reader.join(0.05)
