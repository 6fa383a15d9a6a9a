"""Runs of rows: from data to a recorded result, what interrupts them, and how results.csv is kept."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import commands
import pytest
import results_csv
import rows
import run as program

from tests.support import cli
from tests.support.recipes import NAMED, RECIPES, SCRIPTS, line, recipe, requested

SMALL = ("--img-size", "32", "--model-kwargs", "embed_dim=32", "num_heads=2", "depth=2")  # of an image model


@pytest.mark.slow
def test_a_failed_run_is_recorded_and_the_next_call_goes_on(tmp_path):
    settings = dict(SCALE="smoke", OUT=str(tmp_path), DATA_ROOT="", THREADS="1")
    recipe("ringformer/table4.sh", "cross_attention_signal", "--max-tokens", "1", fails=True, **settings)
    (failed,) = results_csv.read(tmp_path / "ringformer" / "results.csv")
    assert (failed["metric"], failed["value"], failed["row"]) == ("BLEU of pieces", "", "cross_attention_signal")
    output = recipe("ringformer/table4.sh", "cross_attention_signal", **settings)
    assert '"sentences": 83' in output
    pieces, bleu, chrf = results_csv.read(tmp_path / "ringformer" / "results.csv")[:3]
    assert (pieces["metric"], bleu["metric"], chrf["metric"]) == ("BLEU of pieces", "BLEU", "chrF")
    assert bleu["updates"] == "10"
    assert bleu["cmd"] == "SCALE=smoke SEED=1 recipes/ringformer/table4.sh cross_attention_signal"
    folder = tmp_path / "ringformer" / "table4" / "smoke" / "cross_attention_signal" / "s1"
    assert {"cmd.sh", "env.json", "train.log", "metrics.json"} <= {path.name for path in folder.iterdir()}
    metrics = json.loads((folder / "metrics.json").read_text())
    assert 0 < metrics["core_params"] < metrics["params"]
    before = (tmp_path / "ringformer" / "results.csv").read_text()
    assert "finished before" in recipe("ringformer/table4.sh", "cross_attention_signal", **settings)
    other = recipe("ringformer/table4.sh", "cross_attention_signal", "--dropout", "0.2", fails=True, **settings)
    assert f"holds a run of `{bleu['cmd']}`; use its flags" in other
    assert (tmp_path / "ringformer" / "results.csv").read_text() == before


@pytest.mark.slow
def test_an_image_row_from_the_digits_to_a_score(tmp_path):
    settings = dict(SCALE="smoke", OUT=str(tmp_path), DATA_ROOT="", THREADS="1")
    recipe("ringformer/table2.sh", "ringformer", *SMALL, **settings)
    top1, cost = results_csv.read(tmp_path / "ringformer" / "results.csv")
    assert (top1["metric"], top1["row"], cost["metric"]) == ("top-1 %", "ringformer", "MMAC")
    assert 0 < float(top1["value"]) <= 100
    (tmp_path / "ringformer" / "table2" / "smoke" / "ringformer" / "s1" / "metrics.json").unlink()  # as if killed
    output = recipe("ringformer/table2.sh", "ringformer", "--lr", "2e-3", fails=True, **settings)
    begun = f"SCALE=smoke SEED=1 recipes/ringformer/table2.sh ringformer {' '.join(SMALL)}"
    assert f"holds a run of `{begun}`; use its flags, or " in output


def test_a_diverged_run_is_recorded_in_a_column_of_its_table_and_may_have_other_flags(tmp_path, monkeypatch):
    def diverge(_, run, __) -> None:
        folder = run.folder
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "checkpoints" / "crash.pt").touch()
        raise program.StageFailed("training", 1)

    monkeypatch.setattr(program, "run_stages", diverge)
    for flags in (["--lr", "1e3"], ["--lr", "1e-3"]):
        with pytest.raises(program.StageFailed):
            program.run_row(requested(tmp_path, *flags), NAMED["takase/table1"].runs["cycle"], 1)
    assert {one["metric"] for one in results_csv.read(tmp_path / "takase" / "results.csv")} == {"BLEU newstest2010"}


def test_a_run_goes_on_with_its_batch_of_a_process(tmp_path):
    """More GPUs would take smaller ones, of which an epoch has more, and a checkpoint's place in it counts them."""
    run = NAMED["ilr/table1"].runs["1,1,1,1-rope"]

    def continued(**settings: str) -> None:
        asked = requested(tmp_path, SCALE="paper", **settings)
        found = commands.stages(asked, run, 1)
        folder = commands.run_folder(asked, run, 1)
        if not folder.exists():
            (folder / "checkpoints").mkdir(parents=True)
            (folder / "checkpoints" / "checkpoint_last.pt").touch()
            (folder / "cmd.sh").write_text(f"# {commands.recorded_command(asked, run, 1)}\n{commands.script(found)}")
        program.check_begun(folder, commands.recorded_command(asked, run, 1), found)

    continued(GPUS="8")
    with pytest.raises(rows.TableError, match="^MICRO_BATCH=32: .* was begun with 8: set MICRO_BATCH=8"):
        continued(GPUS="1")
    continued(GPUS="1", MICRO_BATCH="8")


def test_a_finished_row_is_read_however_it_was_trained(tmp_path, capsys):
    """A row that goes on from it may train on a single GPU, where the first needed a flag."""
    table, asked = NAMED["sret/table5"], requested(tmp_path, "--aug-repeats", "0", SCALE="paper", DRY_RUN="1")
    with pytest.raises(rows.TableError, match="^GPUS=1: repeated augmentation"):
        program.run_row(asked, table.runs["t_384"], 1)
    plain = asked.model_copy(update={"flags": []})
    finished = commands.run_folder(plain, table.runs["t_distilled"], 1) / "metrics.json"
    finished.parent.mkdir(parents=True)
    finished.touch()
    program.run_row(asked, table.runs["t_384"], 1)
    assert "t_384" in capsys.readouterr().out


def test_a_run_is_recorded_with_the_machine_that_trained_it(tmp_path, monkeypatch):
    """Its scoring was interrupted, and went on elsewhere."""

    def stages(_, run, __) -> None:
        if not (run.folder / "training.json").exists():
            (run.folder / "training.json").touch()
            raise program.StageFailed("scoring", 130)
        (run.folder / "scores.json").write_text('{"bleu": 5.0}')

    monkeypatch.setattr(program, "run_stages", stages)
    results = str(tmp_path / "results.csv")
    for machine, gpus in (("H100", "8"), ("H100 elsewhere", "1")):
        monkeypatch.setattr(program.collect, "device", partial(str, machine))
        asked = requested(tmp_path, SCALE="paper", GPUS=gpus, RESULTS=results)
        with pytest.raises(program.StageFailed) if machine == "H100" else nullcontext():
            program.run_row(asked, NAMED["takase/table1"].runs["cycle"], 1)
    (found,) = results_csv.read(Path(results))
    assert (found["value"], found["device"]) == ("5.0", "8 x H100")


def test_processes_that_a_flag_asks_for_are_recorded(tmp_path):
    settings = dict(SCALE="paper", GPUS="4")
    assert requested(tmp_path, **settings).processes == 4
    assert requested(tmp_path, "--cpu", "--distributed-world-size", "2", **settings).processes == 2
    assert requested(tmp_path, "--distributed-world-size=1", **settings).processes == 1


def test_more_processes_than_gpus_are_rejected_before_anything_runs(tmp_path, monkeypatch):
    asked, table = requested(tmp_path, SCALE="paper", GPUS="8"), NAMED["sret/table1"]
    for gpus in (0, 8):  # without a GPU, processes run on the CPU
        monkeypatch.setattr("torch.cuda.device_count", lambda gpus=gpus: gpus)
        program.check_machine(asked, table)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(program.TableError, match="GPUS=8: must be at most 2, the GPUs of this machine"):
        program.check_machine(asked, table)


def test_of_reruns_the_last_counts_that_succeeded(tmp_path):
    lines = [line(row="r", seed=seed, value=value) for seed, value in (("1", "5"), ("1", "6"), ("1", ""), ("2", ""))]
    for one in lines:
        results_csv.append(tmp_path / "results.csv", [one])
    found = [(one["seed"], one["value"]) for one in results_csv.read(tmp_path / "results.csv")]
    assert found == [("1", "6"), ("2", "")]


def test_a_line_that_a_full_disk_has_cut_costs_no_other(tmp_path):
    """Wherever it is cut, also in a quoted column and in the last one."""
    path, values = tmp_path / "results.csv", dict(row="r", value="5", device="CPU, 1 thread", cmd='a.sh r --x "1, 2"')
    results_csv.append(path, [line(seed="1", **values)])
    before = path.read_bytes()
    results_csv.append(path, [line(seed="2", **values)])
    whole = path.read_bytes()
    for end in range(len(before), len(whole)):
        path.write_bytes(whole[:end])
        assert [one["seed"] for one in results_csv.read(path)] == ["1"]
        results_csv.append(path, [line(seed="3", **values)])
        assert [one["seed"] for one in results_csv.read(path)] == ["1", "3"], whole[:end]


def waits(path: Path) -> str:
    """A shell's loop that ends when a file is there."""
    return f"until [ -e {path} ]; do sleep 0.05; done"


LOCK = """
import sys, pathlib
from recurrence.comparison.runs import Command, Runner, locked
with locked(pathlib.Path(sys.argv[1])):
    Runner().run(Command(("bash", "-c", sys.argv[2])))
"""


def test_two_processes_take_turns_even_if_one_is_killed_and_its_command_goes_on(tmp_path):
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cli.REPOSITORY)
    command = [sys.executable, "-c", LOCK, tmp_path / "run" / ".lock"]
    with subprocess.Popen([*command, f"echo locked; {waits(tmp_path / 'end')}"], **pipes) as first:
        assert first.stdout.readline() == "locked\n"
        first.kill()
        second = subprocess.Popen([*command, "echo locked"], **pipes)
        assert "waiting for another process" in second.stderr.readline()
        assert second.poll() is None
        (tmp_path / "end").touch()
    assert second.communicate(timeout=60)[0] == "locked\n"


LOG = """
import sys, pathlib
from recurrence.comparison.runs import Command, Runner
runner = Runner(show=lambda line: print(line, end="", flush=True))
runner.run(Command(("bash", "-c", sys.argv[2])), pathlib.Path(sys.argv[1]))
"""


@pytest.mark.parametrize("killed", [True, False])
def test_the_log_is_complete_even_if_the_recipe_is_killed_and_its_command_goes_on(tmp_path, killed):
    """From the log, the next call takes the number of updates and the seconds."""
    log = tmp_path / "train.log"
    log.write_text("before\n")
    train = f"echo first; {waits(tmp_path / 'on')}; echo second; echo '| train | third'; printf last >&2"
    pipes = dict(stdout=subprocess.PIPE, text=True, cwd=cli.REPOSITORY)
    with subprocess.Popen([sys.executable, "-c", LOG, log, train], **pipes) as recipe:
        assert recipe.stdout.readline() == "first\n"
        if killed:
            recipe.kill()
            recipe.wait()
        (tmp_path / "on").touch()
        rest, _ = recipe.communicate()
    assert rest == ("" if killed else "second\n| train | third\nlast\n")
    for _ in range(100):
        if log.read_text().endswith("last"):
            break
        time.sleep(0.1)
    assert log.read_text() == "before\nfirst\nsecond\n| train | third\nlast"


def test_results_that_cannot_be_written_are_found_before_the_run(tmp_path):
    settings = dict(SCALE="smoke", OUT=str(tmp_path / "out"), RESULTS=str(tmp_path), DATA_ROOT="")
    output = recipe("ringformer/table4.sh", "ringformer", fails=True, **settings)
    assert f"error: [Errno 21] Is a directory: '{tmp_path}'" in output
    assert not list(tmp_path.rglob("train.log"))


def test_the_images_of_a_pixel_row_are_those_that_are_prepared(tmp_path):
    """A tenth of them is an experiment of its own."""
    run = NAMED["kausik/table4"].runs["regular"]
    (tmp_path / "cifar10_full.tgz").touch()
    for scale, root in itertools.product(("smoke", "small", "paper"), ("", str(tmp_path), "/nonexistent")):
        asked = requested(tmp_path, SCALE=scale, DATA_ROOT=root)
        (prepare,), (train,) = (map(str, commands.stages(asked, run, 1)[one]) for one in ("preparation", "training"))
        form = "digits/images" if "digits/prepare" in prepare else f"cifar10/{asked.cifar10}"
        assert (f"CIFAR10={asked.cifar10}" in prepare) == ("cifar10/prepare" in prepare)
        assert f"{tmp_path}/{form}" in train
        assert (asked.recorded_scale(run) == "small-5000") == ((scale, root) == ("small", "/nonexistent"))


@pytest.mark.parametrize("script", ["ringformer/table1", "ringformer/figure3", "pronounce/run", "data/imagenet"])
def test_help_explains_a_script_and_starts_nothing(script, tmp_path):
    path = RECIPES / f"{script}.sh"
    expected = program.__doc__ if path in SCRIPTS else path.read_text().splitlines()[1].removeprefix("# ")
    for word in ("-h", "--help"):
        output = recipe(f"{script}.sh", word, OUT=str(tmp_path / "out"), DATA_ROOT="")
        assert output.splitlines()[0] == expected.splitlines()[0]
        assert 'source "$(' not in output  # nothing but the head
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_count_is_recorded(tmp_path):
    settings = dict(SCALE="smoke", OUT=str(tmp_path), THREADS="1")
    recipe("ringformer/flops.sh", "ringformer", **settings)
    assert "finished before by `SCALE=smoke" in recipe("ringformer/flops.sh", "ringformer", **settings)
    words = recipe("ringformer/flops.sh", "ringformer", "--throughput", "1", **settings, fails=True)
    assert "holds a run of `SCALE=smoke SEED=1 recipes/ringformer/flops.sh ringformer`; use its flags" in words
    found = {row["metric"]: row["value"] for row in results_csv.read(tmp_path / "ringformer" / "results.csv")}
    assert found["GFLOPs as published"] == "19.0302"


def test_a_reader_that_has_ended_is_no_error():
    command = [sys.executable, RECIPES / "records" / "run.py", RECIPES / "takase" / "table1.sh", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 128 + signal.SIGPIPE


def gone(find: list[str]) -> bool:
    """Whether a command finds no process; one that has been killed may take a moment to disappear."""
    for _ in range(50):
        if not subprocess.run(find, capture_output=True).stdout:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_terminated_is_no_result(ending, tmp_path):
    if signal.getsignal(ending) == signal.SIG_IGN:
        pytest.skip("the tests run under nohup, whose signal recipes ignore, too")
    script = ["bash", RECIPES / "ringformer" / "table2.sh", "uit", "--epochs", "100", *SMALL]
    settings = {"OUT": str(tmp_path), "THREADS": "1", "PATH": cli.search_path()}
    environment = {**os.environ, **settings, "DATA_ROOT": ""}
    with subprocess.Popen(script, env=environment, start_new_session=True, stdout=subprocess.PIPE) as running:
        assert any(b"epoch 1 of 100" in line for line in running.stdout)
        os.killpg(running.pid, ending)
        running.communicate()  # until it has ended, somebody reads
    assert running.returncode == 128 + ending
    assert not (tmp_path / "ringformer" / "results.csv").exists()
    assert gone(["pgrep", "-f", f"train_image.py.*{tmp_path}"])
