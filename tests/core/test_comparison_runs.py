"""recurrence.comparison.runs: steps that run once, fail, diverge, are killed, share the cores, and are forked."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recurrence.comparison.runs import Command, Run, Runner, Step, check_begun, locked

PYTHON = (sys.executable, "-c")


def step(code, name="train", flags=("--lr", "1"), values=None):
    found = {"count": 1.0} if values is None else values
    return Step(name, (Command((*PYTHON, code)),), f"{name}.log", flags, lambda *_: found)


def run(folder, *steps):
    return Run("looped", 1, folder / "looped" / "seed1", steps, re.compile("FloatingPointError"))


def carried_out(*runs, jobs=1):
    return Runner(jobs).carry_out(runs)


def appends(path, text="x"):
    return f"open({str(path)!r}, 'a').write({text!r})"


def test_a_finished_step_is_not_repeated(tmp_path):
    marks, again = tmp_path / "marks", tmp_path / "again"
    for flags in (("a",), ("a",), ("b",)):
        steps = step(appends(marks)), step(appends(again), "score", flags)
        assert carried_out(run(tmp_path, *steps)) == [{"count": 1.0}]
    assert marks.read_text() == "x"
    assert again.read_text() == "xx", "it is repeated with other flags"


def test_a_failure_is_tried_again_and_a_divergence_is_not(tmp_path):
    marks = tmp_path / "marks"
    broken = run(tmp_path, step(f"{appends(marks)}; raise OSError('disk full')"), step("", "score"))
    failed = {"step": "train", "status": 1}
    for _ in range(2):
        assert carried_out(broken) == [{"failure": "OSError: disk full", **failed}]
    assert marks.read_text() == "xx"
    diverged = run(tmp_path, step(f"{appends(marks)}; raise FloatingPointError('gradients are Nan')"))
    for _ in range(2):
        assert carried_out(diverged) == [
            {"failure": "FloatingPointError: gradients are Nan", "diverged": True, **failed}
        ]
    assert marks.read_text() == "xxx"


def test_a_score_that_is_not_finite_is_a_divergence(tmp_path):
    (values,) = carried_out(run(tmp_path, step("", values={"score": float("nan")})))
    assert values["failure"] == "score is nan"
    assert values["diverged"]


def test_a_training_with_other_flags_is_rejected(tmp_path):
    carried_out(run(tmp_path, step("", flags=("--lr", "2", "--lr=1", "--cpu"))))
    check_begun([run(tmp_path, step("", flags=("--cpu", "--lr=1")))])
    with pytest.raises(ValueError, match=r"--output=.*: holds a run of looped with other flags \(--lr 2 --lr=1\)"):
        check_begun([run(tmp_path, step("", flags=("--cpu", "--lr=1", "--lr", "2")))])


def test_short_options_may_change_their_order(tmp_path):
    carried_out(run(tmp_path, step("", flags=("data", "-s", "de", "-t", "en", "--lr", "-1", "--cpu"))))
    check_begun([run(tmp_path, step("", flags=("data", "--cpu", "-t", "en", "--lr", "-1", "-s", "de")))])
    with pytest.raises(ValueError, match=r"with other flags \(-s de -s fr\)"):
        check_begun([run(tmp_path, step("", flags=("data", "-s", "fr", "-t", "en", "--lr", "-1", "--cpu")))])


def test_jobs_run_at_once_and_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    wait = "import os, pathlib, time; p = pathlib.Path({!r}); p.touch(); print(os.environ['OMP_NUM_THREADS'])\n"
    wait += "while not pathlib.Path({!r}).exists(): time.sleep(0.01)"
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    runs = [
        Run(name, 1, tmp_path / name, (step(code),), re.compile("x"))
        for name, code in {"a": wait.format(one, two), "b": wait.format(two, one)}.items()
    ]
    assert carried_out(*runs, jobs=2) == [{"count": 1.0}] * 2
    assert int((tmp_path / "a" / "train.log").read_text()) == max(1, len(os.sched_getaffinity(0)) // 2)


def test_given_threads_are_those_of_every_library(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code = "import torch; print(torch.__config__.parallel_info())"
    carried_out(Run("a", 1, tmp_path / "a", (step(code),), re.compile("x")))
    told = (tmp_path / "a" / "train.log").read_text()
    assert set(re.findall(r"(?:get_num|_max)_threads\(\) : (\d+)", told)) == {"1"}


def test_two_comparisons_do_not_share_a_folder(tmp_path):
    code = "import sys, pathlib; from recurrence.comparison.runs import locked\n"
    code += "with locked(pathlib.Path(sys.argv[1]), 'held by another'): pass"
    with locked(tmp_path / ".lock"):
        other = subprocess.run([*PYTHON, code, tmp_path / ".lock"], capture_output=True, text=True)
    assert "ValueError: held by another" in other.stderr


def test_a_command_that_is_killed_is_said_to_be(tmp_path):
    killed = run(tmp_path, step("import os; print('INFO', flush=True); os.kill(os.getpid(), 9)"))
    assert carried_out(killed) == [{"failure": "ended by signal 9", "step": "train", "status": 137}]


ANY_COMMAND = """
import json, os, sys
print(sys.argv[1:], __name__, sys.stdin.read() == "", "this" in sys.modules, os.environ["OMP_NUM_THREADS"])
ending = json.loads(sys.argv[1])
if ending < 0:
    sys.stdout.flush()
    os.kill(os.getpid(), -ending)
sys.exit(ending or "a text")
"""


def test_a_fork_runs_and_ends_as_a_command_does(tmp_path, monkeypatch):
    (tmp_path / "anything.py").write_text(ANY_COMMAND)
    monkeypatch.chdir(tmp_path)
    found = {}
    for name, imports in {"own": [], "fork": ["json"]}.items():
        log, runner = tmp_path / name, Runner(imports=imports)
        words = [[sys.executable, "-m", "anything", ending, "b c"] for ending in (3, 0, -9, -15, 4)]
        found[name] = [runner.run(Command.of(*one), log) for one in words], log.read_text()
        assert len(runner.starters) == len(imports)
        runner.close()
    assert found["fork"] == found["own"]
    assert found["own"][0] == [3, 1, -9, -15, 4]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ending_a_comparison_ends_its_commands(tmp_path, ending):
    begun = tmp_path / "begun"
    code = f"""
import signal
from pathlib import Path
from recurrence.comparison.runs import ended_by_signals
from tests.core.test_comparison_runs import carried_out, run, step
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for commands in the background
ended_by_signals()
sleep = "import time, os; open({str(begun)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
carried_out(run(Path({str(tmp_path)!r}), step(sleep)))
"""
    folder = Path(__file__).resolve().parents[2]
    program = subprocess.Popen([*PYTHON, code], cwd=folder, stderr=subprocess.PIPE, text=True)
    while not (begun.exists() and begun.read_text()):
        time.sleep(0.05)
        assert program.poll() is None
    program.send_signal(ending)
    assert "Traceback" not in program.communicate(timeout=60)[1]
    assert program.returncode == 128 + ending
    child = Path(f"/proc/{begun.read_text()}")
    deadline = time.monotonic() + 60
    while child.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists()


def test_a_result_is_read_from_what_its_own_attempt_printed(tmp_path):
    for number in (1, 2):
        command, flags = Command((*PYTHON, f"print({number})")), (str(number),)
        scored = Step("score", (command,), "score.log", flags, lambda _, log: {"score": float(log.split()[0])})
        assert carried_out(run(tmp_path, step(""), scored)) == [{"count": 1.0, "score": number}]
