"""Carries out the runs of a comparison: several at once, each step once, and all of them ended with this program.

A step's files are in the folder of its run: STEP.flags, with which it was begun; STEP.log; and STEP.json, its result.
A step that has its result is not repeated.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurrence.files import make_folder, open_in_place, read_json, remove, write_text

Values = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A command of a run."""

    name: str  # of its files
    command: tuple[str, ...]
    flags: tuple[str, ...]  # those that must not change between calls
    read: Callable[[Path, str], Values]  # (folder of the run, log) -> its result, once it has succeeded

    @classmethod
    def of_module(cls, name: str, words: Sequence[Any], flags: Sequence[Any], read: Callable[..., Values]) -> "Step":
        """A step that runs a module of Python: its name and its arguments are the words."""
        return cls(name, (sys.executable, "-m", *map(str, words)), tuple(map(str, flags)), read)


@dataclass(frozen=True)
class Run:
    """A row with a seed: its folder, its steps, and what the log of a training says that has diverged."""

    row: str
    seed: int
    folder: Path
    steps: tuple[Step, ...]
    diverged: re.Pattern


class Runner:
    """Runs commands in process groups of their own, and ends them all together.

    Args:
        jobs: runs at once; the cores are divided among them, unless OMP_NUM_THREADS is set.
    """

    def __init__(self, jobs: int):
        self.jobs, self.ended = jobs, threading.Event()
        self.processes: set[subprocess.Popen] = set()
        threads = str(max(1, len(os.sched_getaffinity(0)) // jobs))
        self.environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **os.environ}

    def run(self, command: Sequence[str], log: Path) -> int:
        """Appends the output of a command to its log; returns the status, negative if a signal ended it."""
        with open_in_place(log) as file:
            options: dict[str, Any] = dict(stdout=file, stderr=subprocess.STDOUT, env=self.environment)
            # close_fds: while the command runs, it holds the lock of the folder, even if this program is killed.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, start_new_session=True, close_fds=False, **options
            )
        self.processes.add(process)
        if self.ended.is_set():
            self.end()
        try:
            return process.wait()
        finally:
            self.processes.discard(process)

    def end(self) -> None:
        """Ends all commands; none starts any more."""
        self.ended.set()
        for process in list(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def carry_out(self, runs: Sequence[Run]) -> list[Values]:
        """The results of these runs, see :func:`result_of`; ValueError as by :func:`check_begun`."""
        check_begun(runs)
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                return list(pool.map(lambda run: result_of(run, self), runs))
            except BaseException:
                self.end()
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def result_of(run: Run, runner: Runner) -> Values:
    """Carries out the steps of a run that have no result yet, and returns the results of all steps together.

    `failure` says in one line why a step has none. A training that `diverged` is not repeated, any other failure is.
    """
    make_folder(run.folder)
    found: Values = {}
    for step in run.steps:
        values = _finished(run, step)
        if values is None:
            _show(run, f"{step.name} ...")
            values = _attempt(run, step, runner)
            _show(run, f"{step.name}: {_shown(values)}")
        found.update(values)
        if "failure" in found:
            break
    return found


def _finished(run: Run, step: Step) -> Values | None:
    """The result of an earlier call with the same flags; None if there is none."""
    result, begun = run.folder / f"{step.name}.json", run.folder / f"{step.name}.flags"
    if not begun.exists() or _options(read_json(begun, list)) != _options(step.flags):
        remove(result)
    return read_json(result, dict) if result.exists() else None


def _attempt(run: Run, step: Step, runner: Runner) -> Values:
    log, flags = run.folder / f"{step.name}.log", run.folder / f"{step.name}.flags"
    write_text(flags, json.dumps(step.flags))
    begin = log.stat().st_size if log.exists() else 0
    status = runner.run(step.command, log)
    if runner.ended.is_set():
        return {"failure": "interrupted"}
    text = log.read_bytes()[begin:].decode(errors="replace")
    if status < 0:
        return {"failure": f"ended by signal {-status}"}
    if status:
        lines = [line for line in text.splitlines() if line.strip()]
        values: Values = {"failure": " ".join(lines[-1:])[:200] or f"ended with status {status}"}
        if not run.diverged.search(text):
            return values
        values["diverged"] = True
    else:
        try:
            values = step.read(run.folder, text)
        except (OSError, ValueError) as error:
            return {"failure": f"{log}: {error}"}
        wrong = [name for name, value in values.items() if not math.isfinite(value)]
        if wrong:
            values |= {"failure": f"{wrong[0]} is {values[wrong[0]]}", "diverged": True}
    write_text(run.folder / f"{step.name}.json", json.dumps(values))
    return values


def check_begun(runs: Sequence[Run]) -> None:
    """Raises ValueError if a training was begun with other flags, before any is started."""
    for run in runs:
        begun, now = run.folder / f"{run.steps[0].name}.flags", run.steps[0].flags
        changed = _options(now) ^ _options(read_json(begun, list) if begun.exists() else now)
        if changed:
            output, flags = run.folder.parent.parent, " ".join(sorted(changed))
            raise ValueError(f"--output={output}: holds a run of {run.row} with other flags ({flags})")


def _options(words: Sequence[str]) -> set[str]:
    """The options with their values, in whatever order they were given; of one that is repeated, the last value."""
    return {*{re.split("[ =]", one)[0]: one for one in re.split(" (?=--)", " ".join(map(str, words)))}.values()}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder for this process and its commands. Raises ValueError if another process holds it."""
    make_folder(folder)
    with open_in_place(folder / ".lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"--output={folder}: another comparison is running there, or a command of one") from None
        os.set_inheritable(file.fileno(), True)
        yield


def ended_by_signals() -> None:
    """Lets Ctrl-C, SIGTERM and SIGHUP end this program without a traceback, and its commands with it."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:
            signal.signal(ending, end)


def _show(run: Run, text: str) -> None:
    print(f"{run.row}, seed {run.seed}: {text}", flush=True)


def _shown(values: Values) -> str:
    return ", ".join(
        f"{name} {round(value, 2) if isinstance(value, float) else value}" for name, value in values.items()
    )
