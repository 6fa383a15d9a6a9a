"""The recipes of image models: their commands are what the trainer takes, and the small ones run from end to end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import timm

from tests import cli
from tests.test_recipes import RECIPES, commands, recipe, results

sys.path.insert(0, str(RECIPES))

import image_options  # noqa: E402

import timm_plugin  # noqa: E402, F401
from recurrence.count import stored  # noqa: E402

SCRIPTS = ["cifar10/prepare.sh", "cifar10/train.sh", "digits/run.sh"]
ROWS = ["plain", "plain_half", "deit", "deit_x2", "deit_half_x2", "sret", "sret_global", "sret_no_lrc"]
ROWS += ["ringformer", "uit", "owf"]
RUNS = [("digits/run.sh", scale, ()) for scale in ("demo", "smoke")]
RUNS += [("cifar10/train.sh", scale, (row,)) for scale in ("smoke", "cpu", "gpu") for row in ROWS]
PATHS = [str(cli.SCRIPTS), os.environ["PATH"]]
DATA_ROOT = Path(os.environ.get("DATA_ROOT") or "/nonexistent")


def trainings(script: str, *arguments: str, **settings: str) -> list:
    """The options of every call of train_image.py that a recipe would carry out."""
    found = commands(script, *arguments, **settings)
    calls = [words[2:] for words in found if words[0] == "python" and words[1].endswith("train_image.py")]
    return [image_options.parser("").parse_args(call) for call in calls]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_parse(script):
    subprocess.run(["bash", "-n", RECIPES / script], check=True)
    assert os.access(RECIPES / script, os.X_OK)


def test_every_script_is_tried():
    homes = {Path(script).parent for script in SCRIPTS}
    assert {str(path.relative_to(RECIPES)) for home in homes for path in (RECIPES / home).glob("*.sh")} == set(SCRIPTS)


@pytest.mark.parametrize(("script", "scale", "arguments"), RUNS, ids=str)
def test_the_trainer_takes_every_command(script, scale, arguments, tmp_path):
    calls = trainings(script, *arguments, SCALE=scale, OUT=str(tmp_path), DATA_ROOT="")
    assert len(calls) == (2 if script == "digits/run.sh" else 1)
    for call in calls:
        for name, (holds, rule) in image_options.RULES.items():
            assert getattr(call, name) is None or holds(getattr(call, name)), (name, rule)
        timm.create_model(call.model, num_classes=10, img_size=call.img_size, **dict(call.model_kwargs))
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"


def test_rows_have_one_size(tmp_path):
    """Sharing stores less, the control stores what the row does that runs half the blocks twice, and depths agree."""
    stores, depths = {}, {}
    for row in ROWS:
        (call,) = trainings("cifar10/train.sh", row, SCALE="cpu", OUT=str(tmp_path))
        model = timm.create_model(call.model, num_classes=10, img_size=64, **dict(call.model_kwargs))
        stores[row], depths[row] = stored(model), len(model.feature_info)
    assert stores["uit"] < stores["ringformer"] < stores["owf"] < stores["plain"]
    assert stores["deit"] == stores["deit_x2"]
    assert stores["sret"] == stores["sret_global"] > stores["sret_no_lrc"]
    assert abs(stores["deit_half_x2"] - stores["plain_half"]) < 0.02 * stores["plain_half"]
    assert len({depths[row] for row in ("plain", "deit", "deit_half_x2", "ringformer", "uit", "owf")}) == 1
    assert depths["deit_x2"] == 2 * depths["deit"] == 4 * depths["plain_half"]


@pytest.mark.parametrize(
    ("script", "arguments", "settings", "message"),
    [
        ("digits/run.sh", [], {"SCALE": "paper"}, "SCALE=paper: must be demo or smoke"),
        ("cifar10/train.sh", ["sret"], {"SCALE": "paper"}, "SCALE=paper: must be smoke, cpu or gpu"),
        ("cifar10/train.sh", ["resnet"], {}, "ROW=resnet: must be one of those at the head of"),
        ("cifar10/train.sh", [], {}, "usage: "),
        ("cifar10/prepare.sh", [], {"DATA_ROOT": "/nonexistent"}, "DATA_ROOT=/nonexistent: holds no cifar10.tar"),
    ],
)
def test_wrong_settings_are_named(script, arguments, settings, message, tmp_path):
    assert message in recipe(script, *arguments, fails=True, OUT=str(tmp_path), **settings)


def test_without_a_network_the_images_are_asked_for(tmp_path):
    blocked = {"https_proxy": "http://127.0.0.1:9", "DATA_ROOT": ""}
    output = recipe("cifar10/prepare.sh", fails=True, OUT=str(tmp_path), **blocked)
    assert re.search(r"error: CIFAR-10: not downloaded; .*, or set DATA_ROOT", output)


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Where the demo writes."""
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def output(out) -> str:
    """What the demo at scale smoke prints, after it failed once."""
    settings = {"SCALE": "smoke", "OUT": str(out), "THREADS": "1"}
    assert "lower --lr" in recipe("digits/run.sh", "--lr", "1e30", fails=True, **settings)
    return recipe("digits/run.sh", **settings)


@pytest.mark.slow
def test_the_demo_tells_what_it_measured(out, output):
    failed, _, *done = results.read(out / "digits" / "results.csv")
    assert (failed["arch"], failed["metric"], failed["value"]) == ("ringformer_vit", "top-1 %", "")
    assert [row["metric"] for row in done] == ["top-1 %", "MMAC"] * 2
    for accuracy, cost in zip(done[::2], done[1::2], strict=True):
        assert accuracy["params"] == cost["params"]
        assert 0 < float(accuracy["value"]) <= 100
        shown = [
            accuracy["arch"],
            f"{int(accuracy['params']):,}",
            f"{float(accuracy['value']):.2f} %",
            f"{cost['value']}",
        ]
        assert re.search(r"^" + r"\s+".join(map(re.escape, shown)), output, re.MULTILINE)
        assert accuracy["updates"] == str(1437 // 32)


@pytest.mark.slow
def test_a_run_that_is_terminated_is_no_result(tmp_path):
    script = ["bash", RECIPES / "digits" / "run.sh", "--epochs", "100"]
    settings = {"SCALE": "smoke", "OUT": str(tmp_path), "THREADS": "1", "PATH": os.pathsep.join(PATHS)}
    with subprocess.Popen(
        script, env={**os.environ, **settings}, start_new_session=True, stdout=subprocess.PIPE
    ) as run:
        assert any(b"epoch 1 of 100" in line for line in run.stdout)
        os.killpg(run.pid, signal.SIGTERM)
    assert run.returncode == 143
    assert not (tmp_path / "digits" / "results.csv").exists()


@pytest.mark.slow
def test_the_held_out_digits_are_not_trained_on(out, output):
    files = {split: sorted((out / "digits" / "images" / split).rglob("*.png")) for split in ("train", "val")}
    assert {split: len(found) for split, found in files.items()} == {"train": 1437, "val": 360}
    pixels = {split: {path.read_bytes() for path in found} for split, found in files.items()}
    assert not pixels["train"] & pixels["val"]


@pytest.mark.slow
def test_a_finished_run_is_not_repeated(out, output):
    before = (out / "digits" / "results.csv").read_text()
    assert "finished before" in recipe("digits/run.sh", SCALE="smoke", OUT=str(out))
    assert (out / "digits" / "results.csv").read_text() == before


@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA_ROOT / "cifar10.tar").is_file(), reason="DATA_ROOT names no folder that holds cifar10.tar"
)
def test_cifar10_from_the_tar_to_a_score(tmp_path):
    recipe("cifar10/train.sh", "sret", SCALE="smoke", OUT=str(tmp_path), DATA_ROOT=str(DATA_ROOT), THREADS="1")
    accuracy, cost = results.read(tmp_path / "cifar10" / "results.csv")
    assert (accuracy["row"], accuracy["scale"], accuracy["updates"]) == ("sret", "smoke-5000", "20")
    assert float(cost["value"]) > 1
