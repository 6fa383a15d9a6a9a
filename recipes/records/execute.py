"""Runs the stages of a run, each once, and ends all of its processes when the recipe is ended. common.sh logs by it."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

# fairseq's full log goes to a file. Of fairseq's own lines, the terminal only shows those that match SHOWN_LINE.
FAIRSEQ_LINE = re.compile(r"^[-0-9: ,]+\| (INFO|WARNING) \| ")
MODEL_LINE = re.compile(r"^ *(\([\w-]+\): .*|\))$")  # of the printed model, below the first
SHOWN_LINE = re.compile(r" \| (train_inner|train|valid) \||num\. shared|done training")
ENDINGS = (signal.SIGTERM, signal.SIGHUP)
PAUSE = 0.1  # seconds between two looks at a log


class StageFailed(Exception):
    """A command of a stage failed.

    Args:
        status: as the shell reports it: 128 plus the number of the signal that ended the command, if one did.
    """

    def __init__(self, stage: str, status: int):
        super().__init__(f"{stage}: failed with status {status}")
        self.stage, self.status = stage, status


def show(line: str) -> None:
    """Prints a line of a training's output if it is progress, or not fairseq's."""
    if SHOWN_LINE.search(line) or not (FAIRSEQ_LINE.match(line) or MODEL_LINE.match(line)):
        print(FAIRSEQ_LINE.sub("", line), end="", flush=True)


def log_and_show(output: TextIO, log: Path) -> None:
    """Appends a training's output to its log, and shows its progress."""
    with log.open("a", encoding="utf-8") as file:
        for line in output:
            file.write(line)
            file.flush()
            show(line)


def appended(log: Path, start: int, process: subprocess.Popen) -> Iterator[str]:
    """The lines that a command appends to its log behind so many bytes, until it has ended."""
    with log.open("rb") as file:
        file.seek(start)
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


def run_command(command: str, log: Path | None = None) -> int:
    """Runs a shell command and returns its status. With a log, the output goes there, and progress is shown.

    The command itself writes the log, so that none of it is lost if the command outlives this process.
    """
    with log.open("ab") if log else nullcontext() as file:
        start = file.tell() if file else 0
        output = dict(stdout=file, stderr=subprocess.STDOUT) if file else {}
        # In a process group of its own, so that all of its processes can be ended, those of torchrun too; it inherits
        # the locks.
        process = subprocess.Popen(["bash", "-c", command], start_new_session=True, close_fds=False, **output)

    def end(number: int, _: object) -> None:
        end_command(process)
        sys.exit(128 + number)

    for ending in ENDINGS:
        if signal.getsignal(ending) != signal.SIG_IGN:  # as under nohup
            signal.signal(ending, end)
    try:
        for line in appended(log, start, process) if log else ():
            show(line)
        status = process.wait()
    finally:
        end_command(process)
        process.wait()
    return 128 - status if status < 0 else status


def end_command(process: subprocess.Popen) -> None:
    """Ends all processes of a command, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file, once nobody else does; a command that outlives this process goes on to hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"== waiting for another process, which has locked {path}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_stages(stages: dict[str, list[str]], folder: Path, out: Path) -> None:
    """Runs the stages that have not finished before, in order; a marker in the run's folder tells.

    Args:
        folder: of the run.
        out: of all runs; only one of them prepares data at a time.

    Raises:
        StageFailed: a command failed.
    """
    for stage, commands in stages.items():
        marker = folder / f".{stage}.done"
        if marker.exists():
            print(f"== {stage}: done before", file=sys.stderr)
            continue
        print(f"== {stage}", file=sys.stderr)
        log = folder / "train.log" if stage.startswith("training") else None
        with locked(out / ".preparation.lock") if stage == "preparation" else nullcontext():
            for command in commands:
                status = run_command(command, log)
                if status:
                    raise StageFailed(stage, status)
        if stage != "preparation":  # the scripts of recipes/data skip what they have done
            marker.touch()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the training, and that its output
    sys.stdin.reconfigure(errors="replace")
    log_and_show(sys.stdin, Path(sys.argv[1]))
