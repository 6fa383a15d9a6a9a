"""Carries out runs of commands, each step once, and ends all of them with this program. Recipes use it, too.

A step's files are in the folder of its run: STEP.flags, with which it was begun, if it has flags; its log; and
STEP.json, its result. A step that has its result is not repeated.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recurrence.comparison.starter import Starter
from recurrence.files import make_folder, open_in_place, read_json, remove, replace, write_text

Values = dict[str, Any]
COUNTS = ("updates", "epochs", "seconds")
UNITS = {"decoding": " s", "inference": " s"}
PAUSE = 0.1  # seconds between two looks at a log


@dataclass(frozen=True)
class Command:
    """A program with its arguments."""

    words: tuple[str, ...]
    output: Path | None = None  # file for what it prints, written once it has succeeded; None for the step's log

    @classmethod
    def of(cls, *words: Any, output: Path | None = None) -> "Command":
        """A command of these words, whatever their types."""
        return cls(tuple(map(str, words)), output)

    def __str__(self) -> str:
        """As a shell would run it."""
        return shlex.join(self.words) + (f" > {shlex.quote(str(self.output))}" if self.output else "")


@dataclass(frozen=True)
class Step:
    """Commands of a run that have one result."""

    name: str  # of the step and its files
    commands: tuple[Command, ...]
    log: str | None = None  # file in the folder of the run, for what they print; None: the terminal
    flags: tuple[str, ...] = ()  # those that must not change between calls
    read: Callable[[Path, str], Values] = lambda folder, log: {}  # (folder of the run, log) -> its result
    repeated: bool = False  # run in every call, because the commands themselves skip what is done


@dataclass(frozen=True)
class Run:
    """A row with a seed: its folder, its steps, and a pattern that is found in the log of a training that diverged."""

    row: str
    seed: int
    folder: Path
    steps: tuple[Step, ...]
    diverged: re.Pattern | None = None  # None: one that fails is always tried again

    def finished(self, step: Step) -> Values | None:
        """The result of an earlier call with the same flags; None if there is none. Raises ValueError if damaged."""
        result = self.folder / f"{step.name}.json"
        if not result.exists() or _options(self.begun(step) or ()) != _options(step.flags):
            return None
        values = read_json(result, dict)
        for name, value in values.items():
            kind = str if name in ("failure", "step") else (int, float)
            if not isinstance(value, kind):
                raise ValueError(
                    f"{result}: {name} is {str(value)[:100]}: must be a {'text' if kind is str else 'number'}"
                )
        return values

    def begun(self, step: Step) -> list[str] | None:
        """The flags with which an earlier call began a step; None if there are none. Raises ValueError if damaged."""
        path = self.folder / f"{step.name}.flags"
        if not path.exists():
            return None
        flags = read_json(path, list)
        if not all(isinstance(word, str) for word in flags):
            raise ValueError(f"{path}: must hold a list of words")
        return flags


@dataclass
class Runner:
    """Runs commands in process groups of their own, and ends them all together.

    Args:
        jobs: runs at once; the cores are divided among them, unless OMP_NUM_THREADS is set.
        show: gets each line that a command adds to the log of its step.
        imports: modules that all commands import, so that :mod:`recurrence.comparison.starter` does it once.
        trainings: how many there are in all, for the time that is left.
    """

    jobs: int = 1
    show: Callable[[str], None] | None = None
    imports: Sequence[str] = ()
    trainings: int = 0
    trained: set[Path] = field(default_factory=set)  # folders of runs whose training has ended
    began: float = field(default_factory=time.monotonic)
    timed: int = 0  # trainings since then
    starters: list[Starter] = field(default_factory=list)  # those without a command
    ended: threading.Event = field(default_factory=threading.Event)
    processes: set[subprocess.Popen] = field(default_factory=set)

    def carry_out(self, runs: Sequence[Run]) -> list[Values]:
        """The results of these runs, see :meth:`result_of`; ValueError as by :func:`check_begun`."""
        check_begun(runs)
        self.trained |= {run.folder for run in runs if run.finished(run.steps[0]) is not None}
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                return list(pool.map(self.result_of, runs))
            except BaseException:
                self.end()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def result_of(self, run: Run) -> Values:
        """Carries out the steps of a run that have no result yet, and returns the results of all steps together.

        `failure` says in one line why a `step` has none, and `status` what a shell reports of its command. A training
        that `diverged` is not repeated, any other failure is.
        """
        make_folder(run.folder)
        found: Values = {}
        for step in run.steps:
            values = run.finished(step)
            if values is None:
                logged = f", logged in {run.folder / step.log}" if step.log else ""
                _say(run, f"{step.name}{logged} ...")
                values = self.attempt(run, step)
                _say(run, f"{step.name}: {_shown(values)}{self.left(run)}")
            found.update(values)
            if "failure" in found:
                break
        return found

    def left(self, run: Run) -> str:
        """How many trainings have ended with that of this run, and about how long the others take."""
        if not self.trainings or run.folder in self.trained:
            return ""
        self.trained.add(run.folder)
        self.timed += 1
        left = self.trainings - len(self.trained)
        minutes = (time.monotonic() - self.began) / self.timed * left / 60
        return f" (training {len(self.trained)} of {self.trainings}; about {minutes:,.0f} minutes left)"

    def attempt(self, run: Run, step: Step) -> Values:
        """Carries out a step, and keeps its result."""
        log, result = run.folder / step.log if step.log else None, run.folder / f"{step.name}.json"
        remove(result)
        if step.flags:
            write_text(run.folder / f"{step.name}.flags", json.dumps(step.flags))
        begin = log.stat().st_size if log and log.exists() else 0
        status = next(filter(None, (self.run(command, log) for command in step.commands)), 0)
        text = log.read_bytes()[begin:].decode(errors="replace") if log else ""
        if self.ended.is_set():
            return {"failure": "interrupted"}
        if status:
            failed = {"step": step.name, "status": status if status > 0 else 128 - status}
            if status < 0:
                return {"failure": f"ended by signal {-status}", **failed}
            lines = [line for line in text.splitlines() if line.strip()]
            values: Values = {"failure": " ".join(lines[-1:])[:200] or f"ended with status {status}", **failed}
            if not (run.diverged and run.diverged.search(text)):
                return values
            values["diverged"] = True
        else:
            try:
                values = step.read(run.folder, text)
            except (OSError, ValueError) as error:
                return {"failure": f"{log}: {error}"}
            wrong = [name for name, value in values.items() if not math.isfinite(value)]
            if wrong:
                failed = {"failure": f"{wrong[0]} is {values[wrong[0]]}", "diverged": True}
                values = {name: value for name, value in values.items() if name not in wrong} | failed
        if not step.repeated:
            write_text(result, json.dumps(values))
        return values

    def run(self, command: Command, log: Path | None = None) -> int:
        """Runs a command to its end, its output appended to a log; returns its status, negative if a signal ended it.

        The command itself writes the log, so that none of it is lost if it outlives this program.
        """
        if self.ended.is_set():
            return -signal.SIGTERM
        threads = str(max(1, cores() // self.jobs))
        # MKL and oneDNN follow OpenMP. All texts are UTF-8, whatever the locale is.
        environment = {"OMP_NUM_THREADS": threads, "PYTHONUTF8": "1", **os.environ}
        if self.imports and log and command.output is None and command.words[:2] == (sys.executable, "-m"):
            return self.fork(command, log, environment)
        part = command.output and command.output.with_name(command.output.name + ".part")
        if part:
            remove(part)
        with (
            open_in_place(log) if log else contextlib.nullcontext() as file,
            open_in_place(part) if part else contextlib.nullcontext() as output,
        ):
            begin = file.tell() if file else 0
            pipes: Any = dict(stdin=subprocess.DEVNULL, stdout=output or file, stderr=file)
            # close_fds: while the command runs, it holds the locks, even if this program is killed.
            process = subprocess.Popen(command.words, env=environment, start_new_session=True, close_fds=False, **pipes)
        self.processes.add(process)
        if self.ended.is_set():
            self.end()
        try:
            for line in appended(log, begin, process) if log and self.show else ():
                self.show(line)
            status = process.wait()
        finally:
            self.processes.discard(process)
        if part and not status:
            replace(part, command.output)
        return status

    def fork(self, command: Command, log: Path, environment: Mapping[str, str]) -> int:
        """As :meth:`run`, in a fork of a process that has imported what the command needs."""
        starter = self.starters.pop() if self.starters else Starter(self.imports, environment)
        self.processes.add(starter.process)
        if self.ended.is_set():
            self.end()
        try:
            return starter.run(command.words[2:], log)
        finally:
            self.processes.discard(starter.process)
            if starter.lives:
                self.starters.append(starter)

    def close(self) -> None:
        """Ends the processes that start commands."""
        while self.starters:
            self.starters.pop().close()

    def end(self) -> None:
        """Ends all commands; none starts any more."""
        self.ended.set()
        for process in list(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def appended(log: Path, begin: int, process: subprocess.Popen) -> Iterator[str]:
    """The lines that a command appends to its log after the first `begin` bytes, until it has ended."""
    with log.open("rb") as file:
        file.seek(begin)
        line, ended = b"", False
        while not ended:
            ended = process.poll() is not None  # before the last look
            for part in file:
                line += part
                if line.endswith(b"\n"):
                    yield line.decode(errors="replace")
                    line = b""
            if not ended:
                time.sleep(PAUSE)
    if line:
        yield line.decode(errors="replace") + "\n"


def cores() -> int:
    """Cores that this process may use or, where the system does not tell (macOS), all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_begun(runs: Sequence[Run]) -> None:
    """Raises ValueError if a training was begun with other flags, before any is started."""
    for run in runs:
        begun, now = run.begun(run.steps[0]), run.steps[0].flags
        changed = _options(now) ^ _options(now if begun is None else begun)
        if changed:
            output, flags = run.folder.parent.parent, " ".join(sorted(changed))
            remedy = f"remove {run.folder} to train it anew, or give another --output"
            raise ValueError(f"--output={output}: holds a run of {run.row} with other flags ({flags}); {remedy}")


def _options(words: Sequence[str]) -> set[str]:
    """The options with their values, in whatever order they were given; of one that is repeated, the last value."""
    return {*{re.split("[ =]", one)[0]: one for one in re.split(" (?=--?[A-Za-z])", " ".join(words))}.values()}


@contextlib.contextmanager
def locked(path: Path, held: str = "") -> Iterator[None]:
    """Holds the lock of a file for this process and its commands, also for one that outlives this process.

    If another process holds it, waits for that, or raises ValueError with the text `held` if there is one.
    """
    make_folder(path.parent)
    with open_in_place(path) as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if held:
                raise ValueError(held) from None
            print(f"waiting for another process, which has locked {path}", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ended_by_signals() -> None:
    """Lets Ctrl-C, SIGTERM and SIGHUP end this program without a traceback, and its commands with it."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:  # as under nohup
            signal.signal(ending, end)


def _say(run: Run, text: str) -> None:
    print(f"{run.row}, seed {run.seed}: {text}", file=sys.stderr, flush=True)


def _shown(values: Values) -> str:
    return ", ".join(_with_unit(name, value) for name, value in values.items()) or "done"


def _with_unit(name: str, value: Any) -> str:
    number = f"{value:,.2f}" if isinstance(value, float) else str(value)
    return f"{number} {name}" if name in COUNTS or "/" in name else f"{name} {number}{UNITS.get(name, '')}"
