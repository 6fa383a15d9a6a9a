"""The recipes of image models: the trainer accepts their commands, and the small ones run end to end."""

import json
import re
import sys
from pathlib import Path

import collect
import cost_image  # noqa: E402
import pytest
import results_csv
import timm
import torch
from commands import smaller_model

import timm_plugin  # noqa: E402
from recurrence.count import stored  # noqa: E402
from tests.support.recipes import DATA_ROOT, RECIPES, commands, image_training, needs, recipe
from timm_plugin.training.options import key_value

ROWS = ("plain", "plain_half", "deit", "deit_x2", "deit_half_x2", "sret", "sret_global", "sret_no_lrc")
ROWS += ("ringformer", "uit", "owf")
RUNS = [("digits/run.sh", scale, ()) for scale in ("demo", "smoke")]


def trainings(script: str, *arguments: str, **settings: str) -> list[tuple[str, dict]]:
    """The model and its arguments of every call of train_image.py that a recipe would carry out."""
    found = commands(script, *arguments, **settings)
    trainer = str(RECIPES / "train_image.py")
    return [image_training(words[words.index(trainer) + 1 :]) for words in found if trainer in words]


@pytest.mark.parametrize(("script", "scale", "arguments"), RUNS, ids=str)
def test_the_trainer_takes_every_command(script, scale, arguments, tmp_path):
    calls = trainings(script, *arguments, SCALE=scale, OUT=str(tmp_path), DATA_ROOT="")
    assert len(calls) == 3
    for model, kwargs in calls:
        assert stored(timm.create_model(model, num_classes=10, device="meta", **kwargs)) > 0
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"


def test_scaled_widths_are_divisible():
    """And models of them are built for images of 64 pixels."""
    for name in timm_plugin.MODELS:
        config = timm.create_model(name, device="meta").config
        kwargs = dict(map(key_value, smaller_model(name, 8)))
        small = timm.create_model(name, device="meta", img_size=64, **kwargs).config
        step = 2 * (config.num_heads if isinstance(config.num_heads, int) else config.num_heads[0])
        assert abs(small.embed_dim - config.embed_dim / 8) <= step / 2
        assert small.embed_dim % step == 0
        assert getattr(small, "patch_size", 8) == 8
    assert not smaller_model("resnet50", 8), "the row says its own"


def test_rows_are_of_comparable_size(tmp_path):
    """Sharing stores less, the control stores what the row does that runs half the blocks twice, and depths agree."""
    stores, depths = {}, {}
    for row in ROWS:
        ((name, kwargs),) = trainings("cifar10/train.sh", row, SCALE="small", OUT=str(tmp_path))
        model = timm.create_model(name, num_classes=10, **kwargs | {"img_size": 64})
        stores[row], depths[row] = stored(model), len(model.feature_info)
    assert stores["uit"] < stores["ringformer"] < stores["owf"] < stores["plain"]
    assert stores["deit"] == stores["deit_x2"]
    assert stores["sret"] == stores["sret_global"] > stores["sret_no_lrc"]
    assert abs(stores["deit_half_x2"] - stores["plain_half"]) < 0.02 * stores["plain_half"]
    assert len({depths[row] for row in ("plain", "deit", "deit_half_x2", "ringformer", "uit", "owf")}) == 1
    assert depths["deit_x2"] == 2 * depths["deit"] == 4 * depths["plain_half"]


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
def test_the_demo_reports_what_it_measured(out, output):
    for arch in ("ringformer_vit", "sret_ext"):
        run = out / "digits" / "run" / "smoke" / arch / "s1"
        scores, trained = json.loads((run / "scores.json").read_text()), collect.training(run)
        assert 0 < scores["top1"] <= 100
        assert trained["updates"] == 1437 // 32
        shown = [arch, f"{trained['params']:,}", f"{scores['top1']:.2f} %", f"{scores['mmac']}"]
        assert re.search(r"^" + r"\s+".join(map(re.escape, shown)), output, re.MULTILINE)


@pytest.mark.slow
def test_the_held_out_digits_are_not_trained_on(out, output):
    files = {split: sorted((out / "digits" / "images" / split).rglob("*.png")) for split in ("train", "val")}
    assert {split: len(found) for split, found in files.items()} == {"train": 1437, "val": 360}
    pixels = {split: {path.read_bytes() for path in found} for split, found in files.items()}
    assert not pixels["train"] & pixels["val"]


@pytest.mark.slow
@needs("cifar10.tar")
def test_cifar10_from_the_tar_to_a_score(tmp_path):
    recipe("cifar10/train.sh", "sret", SCALE="smoke", OUT=str(tmp_path), DATA_ROOT=str(DATA_ROOT), THREADS="1")
    accuracy, cost = results_csv.read(tmp_path / "cifar10" / "results.csv")
    assert (accuracy["row"], accuracy["scale"], accuracy["updates"]) == ("sret", "smoke", "20")
    assert float(cost["value"]) > 1


@pytest.mark.slow
def test_a_row_that_is_distilled_first_trains_its_teacher(tmp_path):
    settings = dict(SCALE="smoke", OUT=str(tmp_path), THREADS="1", DATA_ROOT="")
    recipe("sret/table5.sh", "t_distilled", "--temperature", "2", **settings)
    teacher, _, student, cost = results_csv.read(tmp_path / "sret" / "results.csv")
    assert [teacher["row"], student["row"]] == ["s_global", "t_distilled"]
    assert {run["scale"] for run in (teacher, student, cost)} == {"smoke"}
    told = [student[name] for name in ("table", "arch", "updates", "paper_value")]
    assert told == ["SReT 5", "sret_t", "28", ""]
    assert student["cmd"] == "SCALE=smoke SEED=1 recipes/sret/table5.sh t_distilled --temperature 2"
    folder = tmp_path / "sret" / "table5" / "smoke" / "t_distilled" / "s1"
    assert {"cmd.sh", "env.json", "train.log", "metrics.json"} <= {path.name for path in folder.iterdir()}
    assert "--teacher sret_s_global" in (folder / "cmd.sh").read_text()


def printed(main, monkeypatch, capsys, *arguments: str) -> str:
    """What a tool prints, called in this process."""
    monkeypatch.setattr(sys, "argv", ["tool", *arguments])
    main()
    return capsys.readouterr().out


def test_speed_is_measured_in_turn_with_deit(monkeypatch):
    """By a clock that a batch moves on: the model takes 2 s, DeiT-Tiny 3 s, and the warming up 100 s more."""
    now, turns, packed = [0.0], [], []

    class Timed(torch.nn.Module):
        def __init__(self, seconds):
            super().__init__()
            self.seconds = seconds

        def forward(self, images):
            assert images.shape == (4, 3, 8, 8)
            assert packed == [2.0, 3.0]  # as in all measurements of throughput
            turns.append(self.seconds)
            now[0] += self.seconds + (100 if len(turns) <= 2 else 0)

    monkeypatch.setattr(cost_image.timm, "create_model", lambda name, loops, img_size: Timed(3.0))
    monkeypatch.setattr("benchmarks.common.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("benchmarks.vision.pack", lambda model: packed.append(model.seconds))
    assert cost_image.speed(Timed(2.0), 8, 4) == {"images_per_s": 2.0, "speed_over_deit": 1.5}
    assert turns == [2.0, 3.0] * 31


def test_costs_are_counted(monkeypatch, capsys):
    """As published, each of 8 signals is multiplied out and applied to one of 5 tokens; here it takes its rank."""
    small = ["img_size=32", "depth=2", "embed_dim=384", "num_heads=2", "num_classes=10"]
    text = printed(cost_image.main, monkeypatch, capsys, "ringformer_vit", *small, "--throughput", "2")
    costs = json.loads(text)
    signals, width, rank, tokens = 8, 384, 24, 5
    expected = signals * (rank * width**2 + width**2 - 2 * rank * width * tokens) / 1e9
    assert costs["gflops_published"] - costs["gflops"] == pytest.approx(expected, abs=1.1e-4)
    assert 0 < costs["gmac"] < costs["gflops"]
    assert costs["images_per_s"] > 0
    assert costs["speed_over_deit"] > 0


def test_costs_of_timms_own_models(monkeypatch, capsys):
    """SReT's Table 4: Swin-T has 4.5 GFLOPs."""
    costs = json.loads(printed(cost_image.main, monkeypatch, capsys, "swin_tiny_patch4_window7_224"))
    assert (costs["params"], round(costs["gmac"], 1)) == (28_288_354, 4.5)
    with pytest.raises(SystemExit, match="2"):
        printed(cost_image.main, monkeypatch, capsys, "swin_vast")
    assert "ARCH=swin_vast: must be a registered model" in capsys.readouterr().err
