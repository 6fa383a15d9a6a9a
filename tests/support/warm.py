"""A warm interpreter: it imports slow modules once and runs each command in a fork.

As a program, its arguments are a socket and the modules to import. A client connects, sends three file descriptors for
the standard streams and a job as one line of JSON, and receives the fork's process id and, when it has ended, its exit
status (negative for a signal). Closing the connection kills the fork. The client is tests/support/stand_in.py.
"""

import atexit
import contextlib
import functools
import gc
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
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import cli
from tests.support.confined import confine

UPSTREAM = ("fairseq.checkpoint_utils", "fairseq.models", "fairseq.tasks", "fairseq.trainer", "sacrebleu", "timm")
UPSTREAM += ("pydantic.main",)  # with which the recipes read their tables
PROGRAMS = ("eval_lm", "generate", "interactive", "preprocess", "train", "validate")
ALL = (*UPSTREAM, *(f"fairseq_cli.{name}" for name in PROGRAMS), "fairseq_plugin", "timm_plugin", "timm_plugin.train")
CHANGES = ("os.rename", "os.remove", "os.link", "shutil.copyfile")
TORN = 1000  # bytes of a file whose writer is killed
TIMEOUT = 120  # seconds
TRAPS = "WARM_TRAPS"  # the variable that holds a job's


# The client


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


@functools.cache
def stand_ins(*modules: str) -> Path:
    """A folder of programs, for the PATH, that run in forks of one interpreter, which has imported these modules.

    Each command imports all other modules itself. The interpreter ends with this process.
    """
    folder = Path(tempfile.mkdtemp(prefix="warm-"))  # a socket's path must be short
    text = Path(__file__).with_name("stand_in.py").read_text(encoding="utf-8")
    for name in cli.STAND_INS:
        (folder / name).write_text(f"#!{sys.executable} -IS\n{text}", encoding="utf-8")
        (folder / name).chmod(0o755)
    command = [sys.executable, "-m", "tests.support.warm", folder / "socket", *modules]
    process = subprocess.Popen(
        command, cwd=cli.REPOSITORY, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()  # printed when it listens
    atexit.register(process.communicate)  # which closes its standard input
    return folder


def environment() -> dict[str, str]:
    ours = {"PYTHONPATH": str(cli.REPOSITORY), "PYTHONWARNINGS": "ignore"}
    return cli.environment() | ours


def run(*jobs: dict[str, Any]) -> list[Ended]:
    """Runs jobs in parallel, in an interpreter that has imported the plugins, and returns when all have ended.

    A job has `argv` and may have `env` and `cwd`; `kill_at`, the number of the change to files at which it kills
    itself; `kill_at_update`, the same for updates; `kill_after`, seconds after which it is killed; `most_bytes`, the
    size limit of files that it writes; `confine`, as of :func:`tests.support.confined.confine`; `stdin`, a file.
    """
    programs = stand_ins(*ALL)
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(lambda job: _run(programs, **job), jobs))


def _run(programs: Path, argv: list, env=None, cwd=".", kill_after=TIMEOUT, stdin=os.devnull, **traps) -> Ended:
    command = [programs / argv[0], *map(str, argv[1:])]
    settings = {**environment(), **(env or {}), TRAPS: json.dumps(traps)}
    with tempfile.TemporaryFile("w+", errors="replace") as log, open(stdin) as typed:
        streams = dict(stdin=typed, stdout=log, stderr=log)
        try:
            status = subprocess.call(command, cwd=cwd, env=settings, timeout=kill_after, **streams)
        except subprocess.TimeoutExpired:  # it has been killed
            status = -signal.SIGKILL
        log.seek(0)
        return Ended(status, log.read())


def training_job(corpus, folder: Path, *flags, **job) -> dict[str, Any]:
    """A job that trains the small translation model on the corpus; `job` is what else `run` reads."""
    common = ("--batch-size", "64", "--dropout", "0.1", "--update-epoch-batch-itr", "True", "--log-interval", "100")
    return {"argv": ["fairseq-train", *cli.train_command(corpus.data, folder, *common, *flags)], **job}


def succeed(job: dict[str, Any]) -> str:
    """Runs a job that must succeed, and returns what it printed."""
    (ended,) = run(job)
    assert ended.status == 0, ended.log[-2000:]
    return ended.log


def reject(*jobs: dict[str, Any], status: int = 1) -> list[Ended]:
    """Runs jobs in parallel that must fail with this status, each with one line and without a traceback."""
    found = run(*jobs)
    assert [ended.status for ended in found] == [status] * len(jobs), [ended.log[-2000:] for ended in found]
    for ended in found:
        assert "error: " in ended.last_line
        assert "Traceback" not in ended.log
        assert "Exception ignored" not in ended.log
    return found


# The interpreter


def main() -> None:
    """Starts a supervisor for each connection, until the standard input is closed."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        print(flush=True)
        os.dup2(2, 1)
        for name in sys.argv[2:]:
            importlib.import_module(name)
        gc.freeze()  # so that a fork's garbage collection does not copy all memory
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the supervisors
        while 0 not in select.select([0, listener], [], [])[0]:
            client, _ = listener.accept()
            if not os.fork():
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                supervise(client)
                os._exit(0)
            client.close()
    shutil.rmtree(Path(sys.argv[1]).parent)


def supervise(client: socket.socket) -> None:
    """Runs the job of a connection in a fork, and kills it if the client hangs up."""
    _, streams, _, _ = socket.recv_fds(client, 1, 3)
    with client.makefile() as orders:
        job = json.loads(orders.readline())
    pid = os.fork()
    if not pid:
        client.close()
        carry_out(job, streams)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(pid)
    with contextlib.suppress(OSError):  # the client is gone
        client.sendall(f"{pid}\n".encode())
        if ended not in select.select([ended, client], [], [])[0]:
            os.kill(pid, signal.SIGKILL)
        client.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())


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
        for name, value in json.loads(os.environ.pop(TRAPS, "{}")).items():
            trap = {
                "kill_at": die_at_change,
                "kill_at_update": die_at_update,
                "most_bytes": limit_files,
                "confine": confine,
            }
            trap[name](value)
        status = command(*job["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError):  # closed by the command
                stream.flush()
        os._exit(status)


def command(first: str, *words: str) -> int:
    """Runs a command as its own process would, including its error message, and returns the exit status.

    Args:
        first: -m, -c, a script of Python, or the name of an installed program.
        words: what follows; after -m the module, after -c the code.
    """
    # For a module, as Python sets it while it imports the package, when the plugin reads which command is running.
    sys.argv = [first, *(words[1:] if first in ("-m", "-c") else words)]
    sys.excepthook = sys.__excepthook__  # on Python 3.10, pytest's exceptiongroup has replaced it
    of_timm = first == "-m" and words[0].startswith("timm_plugin.")  # its own process would not import the repairs
    if "fairseq_repairs" in sys.modules and not of_timm:  # these depend on the command
        sys.modules["fairseq_repairs.commands"].restore_cli_logging()
        sys.modules["fairseq_repairs.messages"].print_errors_in_one_line()
    try:
        if first == "-c":
            sys.path.insert(0, "")
            exec(words[0], {"__name__": "__main__"})
        elif first == "-m":
            sys.path.insert(0, os.getcwd())
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv[0] = str(cli.SCRIPTS / first if (cli.SCRIPTS / first).is_file() else first)
            sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        if first == "-m":
            sys.argv[0] = importlib.util.find_spec(words[0]).origin  # as it was while the module ran
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


# Traps


def die(*_) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def limit_files(size: int, then: Callable | signal.Handlers = signal.SIG_IGN) -> None:
    """Lets each write to a file beyond this size fail, with a signal that `then` handles."""
    signal.signal(signal.SIGXFSZ, then)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def die_at_change(number: int) -> None:
    """Kills this process at its n-th change to files: before a rename, removal or link, or in the middle of a write."""
    import torch

    changes = itertools.count()

    def watch(event: str, _: tuple) -> None:
        if event in CHANGES and next(changes) >= number:
            die()

    def torn(write: Callable) -> Callable:
        @functools.wraps(write)
        def write_or_die(*args, **kwargs):
            if next(changes) >= number:
                limit_files(TORN, die)
            return write(*args, **kwargs)

        return write_or_die

    torch.save, shutil.copyfileobj = torn(torch.save), torn(shutil.copyfileobj)
    sys.addaudithook(watch)


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
