"""The recipes of image models: the trainer accepts their commands, the small ones run, and what a model costs."""

import json
import re
import sys
from pathlib import Path

import collect
import cost_image
import pytest
import timm
import torch
from kinds.images import smaller_model
from torch import nn

import timm_plugin
from recurrence.count import stored
from recurrence.papers.ringformer import LevelSignal
from tests.core.test_count import Small, images
from tests.support.recipes import TRAINER, commands, image_training, recipe
from timm_plugin.training.options import key_value

ROWS = ("plain", "plain_half", "deit", "deit_x2", "deit_half_x2", "sret", "sret_global", "sret_no_lrc")
ROWS += ("ringformer", "uit", "owf")


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
        found = commands("cifar10/train.sh", row, SCALE="small", OUT=str(tmp_path))
        (words,) = (words[2:] for words in found if words[1] == TRAINER)
        name, kwargs = image_training(words)
        model = timm.create_model(name, num_classes=10, **kwargs | {"img_size": 64})
        stores[row], depths[row] = stored(model), len(model.feature_info)
    assert stores["uit"] < stores["ringformer"] < stores["owf"] < stores["plain"]
    assert stores["deit"] == stores["deit_x2"]
    assert stores["sret"] == stores["sret_global"] > stores["sret_no_lrc"]
    assert abs(stores["deit_half_x2"] - stores["plain_half"]) < 0.02 * stores["plain_half"]
    assert len({depths[row] for row in ("plain", "deit", "deit_half_x2", "ringformer", "uit", "owf")}) == 1
    assert depths["deit_x2"] == 2 * depths["deit"] == 4 * depths["plain_half"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, str]:
    """Where the demo at scale smoke writes, and what it prints after it failed once."""
    out = tmp_path_factory.mktemp("out")
    settings = {"SCALE": "smoke", "OUT": str(out), "THREADS": "1"}
    assert "lower --lr" in recipe("digits/run.sh", "--lr", "1e30", "--img-size", "8", fails=True, **settings)
    return out / "digits", recipe("digits/run.sh", **settings)


@pytest.mark.slow
def test_the_demo_reports_what_it_measured(demo):
    for arch in ("ringformer_vit", "sret_ext"):
        run = demo[0] / "run" / "smoke" / arch / "s1"
        scores, trained = json.loads((run / "scores.json").read_text()), collect.training(run)
        assert 0 < scores["top1"] <= 100
        assert trained["updates"] == 1437 // 32
        shown = [arch, f"{trained['params']:,}", f"{scores['top1']:.2f} %", f"{scores['mmac']}"]
        assert re.search(r"^" + r"\s+".join(map(re.escape, shown)), demo[1], re.MULTILINE)


@pytest.mark.slow
def test_the_held_out_digits_are_not_trained_on(demo):
    files = {split: sorted((demo[0] / "images" / split).rglob("*.png")) for split in ("train", "val")}
    assert {split: len(found) for split, found in files.items()} == {"train": 1437, "val": 360}
    pixels = {split: {path.read_bytes() for path in found} for split, found in files.items()}
    assert not pixels["train"] & pixels["val"]


def test_a_row_first_trains_its_teacher_and_what_it_starts_from(tmp_path):
    """Of which no flag is the user's. A dry run prints the teacher before each of its students."""
    settings = dict(OUT=str(tmp_path), DATA_ROOT="")
    found = commands("sret/table5.sh", "t_384", "--epochs=1", SCALE="small", **settings)
    trained = [words for words in found if TRAINER in words]
    assert [words[words.index("--model") + 1] for words in trained] == 2 * ["sret_s_global", "sret_t"]
    assert ["--epochs=1" in words for words in trained] == [False, False, False, True]
    folders = [Path(words[words.index("--output") + 1]) for words in trained]
    assert folders[0] == folders[2]
    assert [folder.parts[-3] for folder in folders[1:]] == ["small-full", "small-full", "small-full-1"]
    for student in trained[1::2]:
        assert student[student.index("--teacher-checkpoint") + 1] == f"{folders[0]}/last.pth.tar"
    assert f"checkpoint_path={folders[1]}/last.pth.tar" in trained[3]
    found = commands("sret/table5.sh", "t_384", SCALE="paper", GPUS="8", **settings)
    assert [words[words.index("--model") + 1] for words in found if TRAINER in words] == ["sret_t", "sret_t"]


def printed(main, monkeypatch, capsys, *arguments: str) -> str:
    """What a tool prints, called in this process."""
    monkeypatch.setattr(sys, "argv", ["tool", *arguments])
    main()
    return capsys.readouterr().out


def test_speed_is_that_of_images_beside_deit(monkeypatch):
    """A batch of the model takes 2 s, one of DeiT-Tiny 3 s."""

    def ratios(work, rounds, base):
        assert {name: run() for name, run in work.items()} == {"model": None, "deit": None}
        assert (rounds, base) == (30, "deit")
        return {"model": (2.0, 2 / 3), "deit": (3.0, 1.0)}

    monkeypatch.setattr("benchmarks.vision.ratios", ratios)
    model = timm.create_model("recursive_deit_tiny", loops=2, img_size=32)
    assert cost_image.speed(model, 32, 4) == {"images_per_s": 2.0, "speed_over_deit": 1.5}


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


def test_costs_of_timms_own_models(monkeypatch, capsys, rejected):
    """SReT's Table 4: Swin-T has 4.5 GFLOPs."""
    costs = json.loads(printed(cost_image.main, monkeypatch, capsys, "swin_tiny_patch4_window7_224"))
    assert (costs["params"], round(costs["gmac"], 1)) == (28_288_354, 4.5)
    assert "ARCH=swin_vast: must be a registered model" in rejected(cost_image.main, "swin_vast")
    small = ["embed_dim=24", "depth=1", "num_heads=2"]
    assert "in_chans=1: must be 3" in rejected(cost_image.main, "plain_vit", *small, "in_chans=1")
    assert "img_size=(32, 16): must be one side" in rejected(cost_image.main, "plain_vit", *small, "img_size=(32,16)")


# The operations that RingFormer's paper counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "giga"), [("plain_vit", 17.6357), ("owf_vit", 17.6357), ("uit", 17.6373), ("ringformer_vit", 18.3401)]
)
def test_ringformer_flops(name, giga):
    """For one more image in a batch; UiT's tables are added up from their halves once for all of them."""
    model = timm.create_model(name).eval()
    one, two = (cost_image.ringformer_flops(model, images(number=number)).total() for number in (1, 2))
    assert (two - one) / 1e9 == pytest.approx(giga, abs=5e-5)
    passes, tokens, width = 12, 197, 768
    assert one - (two - one) == (passes * tokens * width if name == "uit" else 0)


def test_every_kind_of_operation_counts():
    products = 60 * 18 + 2 * (2 * 2 * 5 * 4 * 3)  # B 2, T 5, S 4, C 6, H 2
    found = cost_image.ringformer_flops(Small(), torch.randn(2, 5, 6)).total()
    assert found == 5 * 60 + products + 2 * 2 * 5 * 4 + 6 * 60 + 3 * 60


@pytest.mark.parametrize(("targets", "before"), [(3, False), (1, False), (1, True)])
def test_the_published_form_of_a_signal_gives_its_values(targets, before):
    signal, source = LevelSignal(targets, 6, 6, 2, before), torch.randn(3, 5, 6)
    nn.init.normal_(signal.up), nn.init.normal_(signal.down)
    torch.testing.assert_close(cost_image._multiplied_out(signal, source), signal(source), atol=1e-5, rtol=1e-5)


def test_a_model_without_signals_has_one_count():
    plain = timm.create_model("plain_vit", img_size=32, depth=1, embed_dim=24, num_heads=2).eval()
    assert cost_image.published_ringformer_flops(plain, images(32)) == cost_image.ringformer_flops(plain, images(32))
