"""A warm interpreter: it imports slow modules once and runs each command in a fork.

As a program, its arguments are a socket and the modules to import. A client connects, sends three file descriptors for
the standard streams and a job as one line of JSON, and receives the fork's process id and, when it has ended, its exit
status (negative for a signal). Closing the connection kills the fork. The client is tests/support/stand_in.py.
"""

import atexit
import contextlib
import functools
import importlib.util
import io
import itertools
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import cli

UPSTREAM = ("fairseq.checkpoint_utils", "fairseq.models", "fairseq.tasks", "fairseq.trainer", "sacrebleu", "timm")
PROGRAMS = ("eval_lm", "generate", "interactive", "preprocess", "train", "validate")
ALL = (*UPSTREAM, *(f"fairseq_cli.{name}" for name in PROGRAMS), "fairseq_plugin", "timm_plugin", "timm_plugin.train")
CHANGES = ("os.rename", "os.remove", "os.link", "shutil.copyfile")
TIMEOUT = 120  # seconds
TRAPS = "WARM_TRAPS"  # the variable that holds a job's


class Ended(NamedTuple):
    """A finished job.

    status: its exit status, or minus the signal that ended it.
    log: what it printed.
    """

    status: int
    log: str

    @property
    def last_line(self) -> str:
        return self.log.strip().splitlines()[-1] if self.log.strip() else ""


class Warm:
    """Starts the interpreter, and programs that run in its forks.

    Args:
        folder: the folder for logs.
        modules: the modules that the interpreter imports; each command imports all others itself.
    """

    def __init__(self, folder: Path, modules: Sequence[str] = ALL):
        self.folder, self.jobs = folder, 0
        self.socket = Path(tempfile.mkdtemp(prefix="warm-")) / "socket"  # a socket's path must be short
        self.environment = {name: value for name, value in os.environ.items() if name not in cli.LAUNCHER_VARIABLES}
        self.environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(cli.REPOSITORY), "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-m", "tests.support.warm", str(self.socket), *modules]
        self.process = subprocess.Popen(
            command, cwd=cli.REPOSITORY, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.process.stdout.readline()  # printed when it listens

    def stand_ins(self) -> Path:
        """A folder of programs that run in forks, for the PATH."""
        folder = self.socket.parent
        text = Path(__file__).with_name("stand_in.py").read_text(encoding="utf-8")
        for name in cli.STAND_INS:
            program = folder / name
            if not program.exists():
                program.write_text(f"#!{sys.executable} -IS\n{text}", encoding="utf-8")
                program.chmod(0o755)
        return folder

    def run(self, *jobs: dict[str, Any]) -> list[Ended]:
        """Runs jobs in parallel and returns when all have ended.

        A job has `argv` and may have `env` and `cwd`; `kill_at`, the number of the change to files before which it
        kills itself; `kill_at_update`, the same for updates; `kill_after`, seconds after which it is killed;
        `most_bytes`, the size limit of files that it writes.
        """
        return [self._end(*begun) for begun in [self._begin(**job) for job in jobs]]

    def _begin(
        self, argv: list, env=None, cwd=".", kill_after=TIMEOUT, **traps
    ) -> tuple[subprocess.Popen, Path, float]:
        self.jobs += 1
        log, (program, *words) = self.folder / f"{self.jobs}.log", map(str, argv)
        if program not in cli.STAND_INS:  # a module, a script or -c
            is_module = program != "-c" and not program.endswith(".py")
            program, words = "python", ["-m", program, *words] if is_module else [program, *words]
        environment = {**self.environment, **(env or {}), TRAPS: json.dumps(traps)}
        with log.open("wb") as output:
            streams = dict(stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            process = subprocess.Popen([self.stand_ins() / program, *words], cwd=cwd, env=environment, **streams)
        return process, log, kill_after

    def _end(self, process: subprocess.Popen, log: Path, seconds: float) -> Ended:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()  # does nothing to one that has ended
        return Ended(process.wait(), log.read_text(errors="replace"))

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self.socket.parent)


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """The server in the interpreter. It ends when its standard input is closed."""

    request_queue_size, max_children = 64, 1000

    def service_actions(self) -> None:
        super().service_actions()
        if select.select([0], [], [], 0)[0] and not os.read(0, 1):
            sys.exit()


class Supervisor(socketserver.BaseRequestHandler):
    """Runs the job of a connection in a fork, and kills it if the client hangs up."""

    def handle(self) -> None:
        _, streams, _, _ = socket.recv_fds(self.request, 1, 3)
        with self.request.makefile() as orders:
            job = json.loads(orders.readline())
        pid = os.fork()
        if not pid:
            self.server.socket.close()
            self.request.close()
            carry_out(job, streams)
        for stream in streams:
            os.close(stream)
        ended = os.pidfd_open(pid)
        with contextlib.suppress(OSError):  # the client is gone
            self.request.sendall(f"{pid}\n".encode())
            if ended not in select.select([ended, self.request], [], [])[0]:
                os.kill(pid, signal.SIGKILL)
            self.request.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())


def main() -> None:
    server = Server(sys.argv[1], Supervisor)
    print(flush=True)
    os.dup2(2, 1)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    server.serve_forever(poll_interval=0.1)


def carry_out(job: dict, streams: list[int]) -> None:
    """Runs a job in this process and exits."""
    status = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False))  # noqa: SIM115
        sys.stdout.reconfigure(line_buffering=True)
        sys.stderr.reconfigure(line_buffering=True)
        os.environ.clear()
        os.environ.update(job["environment"])
        os.chdir(job["cwd"])
        sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
        set_traps(**json.loads(os.environ.pop(TRAPS, "{}")))
        status = command(job["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError):  # closed by the command
                stream.flush()
        os._exit(status)


def set_traps(kill_at: int | None = None, kill_at_update: int | None = None, most_bytes: int | None = None) -> None:
    """See :meth:`Warm.run`."""
    if most_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
    if kill_at is not None:
        die_at_change(kill_at)
    if kill_at_update is not None:
        die_at_update(kill_at_update)


def command(argv: list[str]) -> int:
    """Runs a command as its own process would, including its error message, and returns the exit status."""
    program = cli.SCRIPTS / argv[0]
    is_module = argv[0] != "-c" and not argv[0].endswith(".py") and not program.is_file()
    # As Python sets it while it imports a module's package, when the plugin reads which command is running.
    sys.argv = ["-m", *argv[1:]] if is_module else argv
    sys.excepthook = sys.__excepthook__  # on Python 3.10, pytest's exceptiongroup has replaced it
    if "fairseq_plugin" in sys.modules:  # its repairs depend on the command
        sys.modules["fairseq_plugin.repairs"].apply()
    try:
        if argv[0] == "-c":
            code, sys.argv = argv[1], ["-c", *argv[2:]]
            sys.path.insert(0, "")
            exec(code, {"__name__": "__main__"})
        elif is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
        else:
            argv[0] = str(program if program.is_file() else argv[0])
            sys.path.insert(0, str(Path(argv[0]).resolve().parent))
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        if is_module:
            sys.argv[0] = importlib.util.find_spec(argv[0]).origin  # as it was while the module ran
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def die_at_change(number: int) -> None:
    """Kills this process at its n-th change to files: before a rename, removal or link, or halfway through a write."""
    import torch

    changes = itertools.count()

    def is_due() -> bool:
        return next(changes) >= number

    def watch(event: str, _: tuple) -> None:
        if event in CHANGES and is_due():
            die()

    torch.save = _half_a_save(torch.save, is_due)
    shutil.copyfileobj = _half_a_copy(shutil.copyfileobj, is_due)
    sys.addaudithook(watch)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _half_a_save(save: Callable, is_due: Callable[[], bool]) -> Callable:
    """torch.save, which writes half of the file and dies if it is due."""

    @functools.wraps(save)
    def save_or_die(state, file, *args, **kwargs):
        if not is_due():
            return save(state, file, *args, **kwargs)
        buffer = io.BytesIO()
        save(state, buffer)
        data = buffer.getvalue()
        half = data[: len(data) // 2]
        if isinstance(file, str | Path):
            Path(file).write_bytes(half)
        else:
            file.write(half)
            file.flush()
        die()

    return save_or_die


def _half_a_copy(copy: Callable, is_due: Callable[[], bool]) -> Callable:
    """shutil.copyfileobj, which copies the first bytes and dies if it is due."""

    @functools.wraps(copy)
    def copy_or_die(source, target, *args, **kwargs):
        if not is_due():
            return copy(source, target, *args, **kwargs)
        target.write(source.read()[:1000])
        target.flush()
        die()

    return copy_or_die


def die_at_update(number: int) -> None:
    """Kills this process before its n-th update."""
    from fairseq.trainer import Trainer

    step = Trainer.train_step

    def train_step(self, *args, **kwargs):
        if self.get_num_updates() == number:
            die()
        return step(self, *args, **kwargs)

    Trainer.train_step = train_step


if __name__ == "__main__":
    main()
