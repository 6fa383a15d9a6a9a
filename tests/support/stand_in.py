"""A stand-in for a program on the PATH: runs it in a fork of the warm interpreter in tests/support/warm.py.

Copies of this file are named `python`, `fairseq-train` and so on, in the folder of the interpreter's socket. The fork
gets this process's arguments, folder, environment, streams and signals, and is killed with it. Python options that a
fork cannot support start a new interpreter instead.
"""

import json
import os
import signal
import socket
import sys

here = os.path.dirname(os.path.abspath(sys.argv[0]))
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "python":
    while words and (words[0] == "-u" or words[0].startswith("-W")):
        words = words[2 if words[0] == "-W" else 1 :]
    if not (words and (words[0] in ("-m", "-c") or words[0].endswith(".py"))):
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
else:
    words = [name, *words]

with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.path.join(here, "socket"))
    job = {"argv": words, "cwd": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(server, [b"\n"], [0, 1, 2])
    server.sendall(json.dumps(job).encode() + b"\n")
    answers = server.makefile()
    pid = int(answers.readline())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    status = int(answers.readline() or -signal.SIGKILL)
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
sys.exit(status)
