"""An interpreter that has imported what takes long and runs each command in a fork, so that none costs a start.

As a program its arguments are the modules to import. It reads orders, a JSON list of jobs a line, runs the jobs of a
line side by side, and answers with their exit statuses, of which a negative one is a signal's.
"""

import atexit
import functools
import importlib
import io
import json
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import cli

UPSTREAM = ("fairseq.checkpoint_utils", "fairseq.models", "fairseq.tasks", "fairseq.trainer", "sacrebleu", "timm")
PROGRAMS = ("eval_lm", "generate", "interactive", "preprocess", "train", "validate")
ALL = (*UPSTREAM, *(f"fairseq_cli.{name}" for name in PROGRAMS), "fairseq_plugin", "timm_plugin", "train_image")
CHANGES = ("os.rename", "os.remove", "os.link", "shutil.copyfile")
TIMEOUT = 120  # seconds


class Ended(NamedTuple):
    """status: 0, or minus the signal that ended it; log: what it printed."""

    status: int
    log: str

    @property
    def last_line(self) -> str:
        return self.log.strip().splitlines()[-1] if self.log.strip() else ""


class Warm:
    """The interpreter, from the side of the tests.

    Args:
        folder: for the logs.
        modules: what it imports. What is ours is imported by each command anew unless it is among them.
    """

    def __init__(self, folder: Path, modules: Sequence[str] = ALL):
        self.folder, self.orders = folder, 0
        environment = {name: value for name, value in os.environ.items() if name not in cli.LAUNCHER_VARIABLES}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(cli.REPOSITORY), "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-m", "tests.support.warm", *modules]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process = subprocess.Popen(command, cwd=cli.REPOSITORY, env=environment, **pipes)

    def run(self, *jobs: dict[str, Any]) -> list[Ended]:
        """Run jobs side by side until all have ended.

        A job has `argv`, the program first, and may have `env`, `cwd` and `input`; `kill_at`, the number of the change
        to its files at which it kills itself; `kill_at_update`, the number of the update; `kill_after`, seconds;
        `most_bytes`, the largest file that it may write.
        """
        self.orders += 1
        logs = [self.folder / f"{self.orders}-{index}.log" for index in range(len(jobs))]
        order = [{**job, "argv": [str(word) for word in job["argv"]], "log": str(log)} for job, log in zip(jobs, logs)]
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        statuses = json.loads(self.process.stdout.readline())
        return [Ended(status, log.read_text(errors="replace")) for status, log in zip(statuses, logs)]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, str(cli.REPOSITORY / "recipes"))
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        jobs = json.loads(line)
        children = {start(job): (index, job) for index, job in enumerate(jobs)}
        answers.write(json.dumps(waited(children)) + "\n")
        answers.flush()


def waited(children: dict[int, tuple[int, dict]]) -> list[int]:
    """The status of each child, killed when its time has come."""
    statuses, begin = [0] * len(children), time.monotonic()
    left = dict(children)
    while left:
        for pid, (index, job) in list(left.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                statuses[index] = os.waitstatus_to_exitcode(status)
                del left[pid]
            elif time.monotonic() - begin > job.get("kill_after", TIMEOUT):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return statuses


def start(job: dict) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdin = io.TextIOWrapper(io.BytesIO(job.get("input", "").encode()))
        sys.stdout.reconfigure(line_buffering=True)
        sys.stderr.reconfigure(line_buffering=True)
        os.environ.update(job.get("env", {}))
        os.chdir(job.get("cwd", "."))
        if "most_bytes" in job:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["most_bytes"], resource.RLIM_INFINITY))
        if "kill_at" in job:
            kill_at(job["kill_at"])
        if "kill_at_update" in job:
            kill_at_update(job["kill_at_update"])
        status = command(job["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def command(argv: list[str]) -> int:
    """Run a command as its own program would, its last words included."""
    program = cli.SCRIPTS / argv[0]
    is_module = argv[0] != "-c" and not argv[0].endswith(".py") and not program.is_file()
    if "fairseq_plugin" in sys.modules:  # what it does depends on the command
        sys.argv = ["-m" if is_module else argv[0], *argv[1:]]  # as Python sets it while it imports a module's package
        sys.modules["fairseq_plugin.hostfix"].apply()
    sys.argv = argv
    try:
        if argv[0] == "-c":
            exec(argv[1], {"__name__": "__main__"})
        elif is_module:
            runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
        else:
            argv[0] = str(program if program.is_file() else argv[0])
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def kill_at(number: int) -> None:
    """Kill this process at its n-th change to files: a rename, a removal, a link, or half of a write."""
    import torch

    left = number

    def count() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def watch(event: str, _: tuple) -> None:
        if event in CHANGES and count():
            die()

    def half_of(write):
        @functools.wraps(write)
        def written(state, file, *args, **kwargs):
            if count():
                whole = io.BytesIO()
                write(state, whole)
                data = whole.getvalue()
                if isinstance(file, str | Path):
                    Path(file).write_bytes(data[: len(data) // 2])
                else:
                    file.write(data[: len(data) // 2])
                    file.flush()
                die()
            return write(state, file, *args, **kwargs)

        return written

    def half_a_copy(copy):
        @functools.wraps(copy)
        def copied(source, target, *args, **kwargs):
            if count():
                target.write(source.read()[:1000])
                target.flush()
                die()
            return copy(source, target, *args, **kwargs)

        return copied

    torch.save = half_of(torch.save)
    shutil.copyfileobj = half_a_copy(shutil.copyfileobj)
    sys.addaudithook(watch)


def kill_at_update(number: int) -> None:
    """Kill this process before its n-th update."""
    from fairseq.trainer import Trainer

    step = Trainer.train_step

    def train_step(self, *args, **kwargs):
        if self.get_num_updates() == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *args, **kwargs)

    Trainer.train_step = train_step


if __name__ == "__main__":
    main()
