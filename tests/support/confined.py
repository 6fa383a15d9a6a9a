"""Watches a job of the warm interpreter: what it changes outside a folder, and how much memory it takes."""

import atexit
import os
import re
import resource
import sys
import tempfile
from pathlib import Path

MOST = 4 << 30  # bytes of address space that a job may add
CHANGES = ("remove", "rename", "mkdir", "rmdir", "link", "symlink", "truncate", "chmod", "chown", "utime", "mkfifo")
PLACES = {"rename": slice(2), "link": slice(2), "symlink": slice(1, 2)}  # of what changes, among the arguments
RUNS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "socket.connect", "urllib.Request")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SHARED = ("/dev/null", "/dev/shm/", "/dev/tty", "/proc/self/")


def confine(settings: dict) -> None:
    """Reports each change outside `folder`, each program and each connection, and at the end the memory, in `report`.

    Its lines are an event and what it was about; the last one is "memory" and the bytes that were added at the peak.
    """
    folder, report = settings["folder"], os.open(settings["report"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    tempfile.tempdir = None  # which this interpreter has found before
    before, process = memory("VmRSS"), os.getpid()
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + MOST, resource.RLIM_INFINITY))

    def within(path: object) -> bool:
        if not isinstance(path, str | bytes):
            return True  # an open file
        full = os.path.abspath(os.fsdecode(path))
        return full.startswith((f"{folder}/", *SHARED)) or full == folder

    def meets(address: object) -> bool:
        """Whether processes of one training meet there; hostile files name port 9."""
        return address[0] == "127.0.0.1" and address[1] != 9 if isinstance(address, tuple) else within(address)

    def watch(event: str, args: tuple) -> None:
        name = event.removeprefix("os.")
        if event == "open":
            effect = args[2] is not None and args[2] & WRITING and not within(args[0])
        elif event in RUNS:
            effect = event != "socket.connect" or not meets(args[1])
        else:
            effect = name in CHANGES and not all(map(within, args[PLACES.get(name, slice(1))]))
        if effect:
            os.write(report, f"{event} {' '.join(map(str, args))!r:.300}\n".encode())

    def end() -> None:
        if os.getpid() == process:
            os.write(report, f"memory {memory('VmHWM') - before}\n".encode())

    atexit.register(end)
    sys.addaudithook(watch)


def memory(kind: str) -> int:
    """Bytes of this process, as the kernel counts them."""
    return 1024 * int(re.search(rf"{kind}:\s*(\d+)", Path("/proc/self/status").read_text())[1])
