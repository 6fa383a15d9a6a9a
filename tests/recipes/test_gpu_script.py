"""recipes/gpu.sh: what it runs, what it skips, and what it says is left."""

import fcntl
import subprocess
import time
from pathlib import Path

import pytest
import results_csv

from tests.support import cli
from tests.support.recipes import NAMED, RECIPES, commands, recipe

FIRST = {  # the first rows of its tables, which it runs at scale smoke
    "kausik/table2": "recurrent",
    "takase/speed": "vanilla",
    "takase/speed4": "vanilla",
    "sret/table4": "deit",
    "multi30k/published": "transformer",
}


def folder(out: Path, table: str) -> Path:
    """The folder of the run of the first row of a table."""
    return out / table / "smoke" / FIRST[table] / "s1"


def without(out: Path, *tables: str) -> dict[str, str]:
    """Settings for scale smoke, where all tables but these are finished."""
    for table in FIRST.keys() - {*tables}:
        folder(out, table).mkdir(parents=True)
        (folder(out, table) / "metrics.json").touch()
    return {"SCALE": "smoke", "OUT": str(out), "DATA_ROOT": "/nonexistent", "THREADS": "1"}


def test_all_rows_are_of_scale_paper_and_each_table_begins_with_its_first(tmp_path):
    first: dict[str, str] = {}
    for words in commands("gpu.sh", OUT=str(tmp_path)):
        assert words[0] == "SCALE=paper"
        if words[1] != "python":
            table = words[1].removeprefix("recipes/").removesuffix(".sh")
            assert "paper" in NAMED[table].find(words[2]).scales
            first.setdefault(table, words[2])
    assert list(first.items()) == list(FIRST.items())
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"SCALE": "small"}, "SCALE=small: must be paper or smoke"),
        ({"BUDGET": "10m"}, "BUDGET=10m: must be a whole number of at least 1"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "SCALE=paper: needs a GPU; SCALE=smoke runs without one"),
        ({"SCALE": "smoke", "SEED": "one"}, "SEED=one: input should be a valid integer"),
    ],
)
def test_wrong_settings_are_named(settings, message, tmp_path):
    output = recipe("gpu.sh", fails=True, OUT=str(tmp_path), **settings)
    assert output.startswith(f"error: {message}")
    assert output.count("error: ") == 1


@pytest.mark.slow
def test_a_row_that_fails_is_left_and_the_others_are_recorded(tmp_path):
    settings = without(tmp_path, "kausik/table2", "sret/table4")
    output, left = recipe("gpu.sh", fails=True, **settings), "SCALE=smoke recipes/kausik/table2.sh recurrent\n"
    assert "recipes/kausik/table2.sh recurrent: failed with status 1" in output
    assert "DATA_ROOT=/nonexistent: holds no shakespeare/input.txt" in output
    assert output.endswith(f"left:\n{left}")
    assert "images/s" in {one["metric"] for one in results_csv.read(tmp_path / "sret" / "results.csv")}
    (benchmark,) = (tmp_path / "gpu").glob("python*.log")
    assert "Throughput, batch 1" in benchmark.read_text()
    assert recipe("gpu.sh", DRY_RUN="1", **settings) == left


def without_benchmark(out: Path) -> dict[str, str]:
    """Settings for scale smoke, where only a training is left."""
    settings = without(out, "multi30k/published")
    (command, _) = commands("gpu.sh", **settings)
    benchmark = out / "gpu" / f"{'-'.join(command[1:])}.log"
    benchmark.parent.mkdir()
    benchmark.touch()
    return settings


@pytest.mark.slow
def test_what_exceeds_the_budget_is_left(tmp_path):
    settings, left = without_benchmark(tmp_path), "SCALE=smoke recipes/multi30k/published.sh transformer\n"
    assert recipe("gpu.sh", DRY_RUN="1", **settings) == left
    assert recipe("gpu.sh", BUDGET="1", **settings).endswith(f"left:\n{left}")
    assert not (tmp_path / "multi30k" / "results.csv").exists()


@pytest.mark.slow
def test_what_has_begun_ends_with_the_script(tmp_path):
    environment = cli.environment() | without_benchmark(tmp_path) | {"PATH": cli.search_path()}
    lock = folder(tmp_path, "multi30k/published") / ".lock"
    with subprocess.Popen(["bash", RECIPES / "gpu.sh"], env=environment) as script:
        while not lock.exists():
            time.sleep(0.05)
            assert script.poll() is None
        script.terminate()
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if a process of the row still holds it
