"""Starts commands `python -m MODULE ...` as forks of a process that has imported the libraries once.

That process computes nothing, so that a fork of it computes what a process of its own does, bit for bit: no seed, no
thread of OpenMP and no GPU has been used. A fork has the arguments, the standard streams and the end of a command.
"""

import contextlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from recurrence.files import open_in_place

PROGRAM = "from recurrence.comparison.starter import serve; serve()"


class Starter:
    """A process that runs one command at a time, in a session of its own.

    Args:
        imports: modules that it imports first, none of which may look at the command.
        environment: of the commands.
    """

    def __init__(self, imports: Sequence[str], environment: Mapping[str, str]):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            close_fds=False,  # it and its forks hold the locks, even if this program is killed
            text=True,
        )

    def run(self, words: Sequence[str], log: Path) -> int:
        """Runs a module with its arguments, its output appended to a log; returns its status, negative for a signal."""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([str(log), *words]), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        return int(answer) if answer else self.process.wait()

    @property
    def lives(self) -> bool:
        """Whether it can run another command."""
        return self.process.poll() is None

    def close(self) -> None:
        """Lets the process end."""
        self.process.communicate()


def serve() -> None:
    """Imports the modules that the command line names, and runs each command of the standard input in a fork."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for what an import prints
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            log, *words = json.loads(line)
            become(words, Path(log))
            return  # to the interpreter, which ends as that of a command does
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def become(words: Sequence[str], log: Path) -> None:
    """Makes this process the one of `python -m MODULE ...`."""
    with open(os.devnull, "rb") as nothing, open_in_place(log) as file:
        for stream, number in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(stream.fileno(), number)
    if not getattr(sys.flags, "safe_path", False):  # which Python 3.10 lacks
        sys.path[0] = os.getcwd()
    sys.argv = ["-m", *words[1:]]  # as Python has it while it imports the package
    sys.argv[0] = importlib.util.find_spec(words[0]).origin
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
