"""The trainer of images, through its real command line, on generated images."""

import csv
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from tests.support import cli

RECIPES = cli.REPOSITORY / "recipes"
SCRIPT = RECIPES / "train_image.py"

import image_options  # noqa: E402
import train_image  # noqa: E402

COLOURS = {"blue": (40, 40, 200), "green": (40, 200, 40), "red": (200, 40, 40)}
SIZES = {"train": 16, "val": 5}  # images a class
PIXELS = 16
TEACHER = ["--teacher", "vit_tiny_patch16_224"]
IMPORTABLE = {"PYTHONPATH": str(cli.REPOSITORY)}
SMALL = ["patch_size=4", "embed_dim=24", "depth=2", "num_heads=2"]
MODEL = ["--model", "vit_tiny_patch16_224", "--model-kwargs", *SMALL, "--img-size", str(PIXELS)]
TRAINING = ["--epochs", "3", "--warmup-epochs", "1", "--batch-size", "12", "--workers", "0", "--device", "cpu"]


def write_images(folder: Path) -> None:
    """Noisy squares of three colours, a folder a class."""
    chance = np.random.default_rng(0)
    for split, count in SIZES.items():
        for name, colour in COLOURS.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.add(colour, chance.normal(0, 90, (PIXELS, PIXELS, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """The folder of the generated images."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder)
    return folder


def flags(images: Path, output: Path, *more) -> list[str]:
    """The script's arguments; the later ones win."""
    return [str(word) for word in (images, *MODEL, *TRAINING, "--output", output, *more)]


def train(images: Path, output: Path, *more, **options) -> str:
    """Run the script."""
    return cli.python(SCRIPT, *flags(images, output, *more), **options)


def checkpoint(output: Path, name: str = "last") -> dict:
    """A checkpoint, under the safe loader."""
    return train_image.load_checkpoint_metadata(output / f"{name}.pth.tar")


def table(output: Path) -> list[dict]:
    """The lines of summary.csv without the times."""
    with (output / "summary.csv").open() as file:
        return [{key: value for key, value in row.items() if key != "train_seconds"} for row in csv.DictReader(file)]


def equal(ours: object, theirs: object) -> bool:
    """Whether two checkpoints hold the same, bit for bit."""
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    return torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def expect_weights(one: Path, other: Path, atol: float = 1e-4) -> None:
    """Two runs have ended with the same weights."""
    weights = (checkpoint(output)["state_dict"] for output in (one, other))
    torch.testing.assert_close(*weights, rtol=0, atol=atol)


def interrupted(images: Path, output: Path, *more) -> None:
    """Start the script and kill it as soon as it tells of the first epoch."""
    command = [sys.executable, str(SCRIPT), *flags(images, output, *more)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | IMPORTABLE) as process:
        assert any("epoch 1 of 3" in line for line in process.stderr)
        process.send_signal(signal.SIGKILL)


EVERYTHING = {
    "plain": ["--resize", "20", "--aa", "trivial", "--clip-grad", "1", "--min-lr", "1e-5"],
    "ema, mixup, bfloat16, workers": [
        *("--model-ema-decay", "0.9", "--mixup", "0.8", "--cutmix", "1", "--amp", "bfloat16", "--workers", "2"),
        *("--aa", "rand-m9-mstd0.5", "--reprob", "0.5"),
        *("--model-kwargs", *SMALL, "drop_path_rate=0.2", "drop_rate=0.1"),
    ],
    "float16, two batches an update": [
        *("--amp", "float16", "--clip-grad", "1", "--opt", "lamb", "--model-ema-decay", "0.9"),
        *("--grad-accum-steps", "2"),
    ],
}
ELASTIC = ["--model", "ringformer_vit", "--model-kwargs", *SMALL, "depth=4", "--depth-range", "1-4"]
EVERYTHING["elastic depth"] = [*ELASTIC, "--pass-loss", "0.5", "--backprop-passes", "2", "--min-lr", "1e-5"]


@pytest.mark.slow
@pytest.mark.parametrize("more", EVERYTHING.values(), ids=EVERYTHING)
def test_an_interrupted_run_ends_as_if_it_had_not_been(images, tmp_path, more):
    train(images, tmp_path / "whole", *more)
    interrupted(images, tmp_path / "resumed", *more)
    assert 1 <= len(table(tmp_path / "resumed")) < 3
    train(images, tmp_path / "resumed", *more, "--resume")
    whole, resumed = checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "resumed")
    assert whole["epoch"] == 2
    assert ("state_dict_ema" in whole) == ("--model-ema-decay" in more)
    assert ("amp_scaler" in whole) == ("float16" in more)
    assert float(table(tmp_path / "whole")[-1]["lr"]) == pytest.approx(1e-5 if "--min-lr" in more else 0)
    assert table(tmp_path / "whole")[-1]["train_updates"] == ("6" if "--grad-accum-steps" in more else "12")
    for part in whole.keys() - {"args", "saver"}:
        assert equal(whole[part], resumed[part]), part
    assert table(tmp_path / "whole") == table(tmp_path / "resumed")
    assert whole["saver"]["best_metric"] == resumed["saver"]["best_metric"]


PLAIN = ["--no-aug", "--lr", "0.01"]
ONE_BATCH = ["--batch-size", "48", *PLAIN]
QUARTERS = ["--batch-size", "12", "--grad-accum-steps", "2", *PLAIN]  # in two processes


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory) -> Path:
    """A run in one batch of all images, without chance: what two processes have to equal."""
    folder = tmp_path_factory.mktemp("finished")
    train(images, folder, *ONE_BATCH)
    return folder


@pytest.mark.slow
def test_learns_and_keeps_the_best(finished):
    rows = table(finished)
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])
    best = max(float(row["eval_top1"]) for row in rows)
    assert checkpoint(finished, "model_best")["metric"] == best
    assert best > 60


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [True, False])
def test_the_cosine_starts_after_the_warm_up_or_with_it(images, tmp_path, prefix):
    """As RingFormer's code has it, from the peak; or as timm has it, at the start of training."""
    more = ["--epochs", "6", "--warmup-epochs", "3", "--lr", "1e-3", *(["--warmup-prefix"] if prefix else [])]
    args = train_image.parser("").parse_args(flags(images, tmp_path, *more))
    trainer = train_image.Trainer(args, train_image.utils.init_distributed_device(args))
    rates = []
    for update in range(6 * trainer.updates + 1):
        trainer.scheduler.step_update(update)
        rates.append(trainer.optimizer.param_groups[0]["lr"])
    warm = 3 * trainer.updates
    assert rates[warm] == pytest.approx(1e-3 if prefix else 5e-4)
    assert rates[-1] == pytest.approx(0, abs=1e-9)


def test_two_processes_equal_one_with_the_same_total_batch(images, finished, tmp_path):
    cli.launch(2, SCRIPT, *flags(images, tmp_path, *QUARTERS), env=IMPORTABLE)
    expect_weights(finished, tmp_path)
    for ours, theirs in zip(table(finished), table(tmp_path), strict=True):
        assert float(ours["train_loss"]) == pytest.approx(float(theirs["train_loss"]), abs=1e-4)
        assert ours["eval_top1"] == theirs["eval_top1"]  # all images count once, the sampler's padding does not


@pytest.mark.slow
def test_two_nodes_that_were_stopped_go_on_to_the_same_end(images, finished, tmp_path):
    program, settings = (SCRIPT, *flags(images, tmp_path, *QUARTERS)), dict(env=IMPORTABLE)
    cli.two_nodes(*program, until="epoch 1 of 3", **settings)
    assert 1 <= len(table(tmp_path)) < 3
    cli.two_nodes(*program, "--resume", **settings)
    expect_weights(finished, tmp_path)
    assert [row["eval_top1"] for row in table(tmp_path)] == [row["eval_top1"] for row in table(finished)]


@pytest.mark.slow
def test_two_processes_draw_the_same_depths(images, tmp_path):
    """And weights of passes that did not run stay: with one process a pass that did not run has no gradient at all."""
    one, two = tmp_path / "one", tmp_path / "two"
    train(images, one, *ELASTIC, "--batch-size", "48", "--no-aug")
    cli.launch(2, SCRIPT, *flags(images, two, *ELASTIC, "--batch-size", "24", "--no-aug"), env=IMPORTABLE)
    expect_weights(one, two)
    row = table(two)[-1]
    assert {key for key in row if "depth" in key} == {
        f"eval_{end}_depth_{measure}" for end in ("smallest", "largest") for measure in ("loss", "top1", "top5")
    }
    assert row["eval_largest_depth_loss"] == row["eval_loss"] != row["eval_smallest_depth_loss"]


def loaders(images: Path, *more) -> list:
    """The two loaders of a run with these options."""
    args = image_options.parser("").parse_args(flags(images, images / "none", *more))
    args.distributed = torch.distributed.is_initialized()
    *sets, args.num_classes = train_image.datasets(args)
    return train_image.make_loaders(args, train_image.build("model", args), sets, torch.device("cpu"))


def test_torchvision_resizes_crops_and_augments(images):
    training, _ = loaders(images, "--resize", "20", "--aa", "trivial")
    steps = training.dataset.transform.transforms
    assert [type(step).__name__ for step in steps] == [
        *("Compose", "RandomHorizontalFlip", "TrivialAugmentWide", "MaybePILToTensor"),
    ]
    wide = Image.effect_noise((30, 15), 90)
    assert steps[0].transforms[0](wide).size == (40, 20)
    assert steps[0](wide).size == (PIXELS, PIXELS)


def test_an_image_is_repeated_in_different_augmentations(images, tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        chosen = list(loaders(images, "--aug-repeats", "3")[0].sampler)
    finally:
        torch.distributed.destroy_process_group()
    assert len(chosen) == 48
    assert sorted(chosen) == sorted(3 * list(set(chosen)))


@pytest.mark.slow
def test_splits_may_be_tar_files(images, finished, tmp_path):
    for split in SIZES:
        cli.run("tar", "-cf", tmp_path / f"{split}.tar", "-C", images / split, *COLOURS)
    splits = ["--train-split", "train.tar", "--val-split", "val.tar"]
    train(tmp_path, tmp_path / "run", *ONE_BATCH, *splits)
    assert equal(checkpoint(finished)["state_dict"], checkpoint(tmp_path / "run")["state_dict"])


@pytest.mark.slow
def test_a_student_learns_from_a_teacher_alone(images, finished, tmp_path):
    """Labels that are all wrong do no harm: the teacher's are learnt, not they."""
    names = list(COLOURS)
    for name, wrong in zip(names, names[1:] + names[:1], strict=True):
        (tmp_path / "data" / "train").mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / "train" / wrong).symlink_to(images / "train" / name)
    (tmp_path / "data" / "val").symlink_to(images / "val")
    teacher = [*TEACHER, "--teacher-kwargs", *SMALL, "--temperature", "2"]
    weights = ["--teacher-checkpoint", finished / "model_best.pth.tar"]
    train(tmp_path / "data", tmp_path / "run", *teacher, *weights, *PLAIN, "--epochs", "6")
    assert float(table(tmp_path / "run")[-1]["eval_top1"]) > 60
    assert not any("teacher" in name for name in checkpoint(tmp_path / "run")["state_dict"])


@pytest.mark.slow
def test_a_student_learns_labels_and_a_teachers_class(images, finished, tmp_path):
    teacher = [*TEACHER, "--teacher-kwargs", *SMALL, "--distillation", "hard"]
    weights = ["--teacher-checkpoint", finished / "model_best.pth.tar", "--mixup", "0.2"]
    train(images, tmp_path / "run", *teacher, *weights, *PLAIN, "--epochs", "6")
    assert float(table(tmp_path / "run")[-1]["eval_top1"]) > 60


@pytest.mark.slow
def test_compiled(images, finished, tmp_path):
    train(images, tmp_path, *ONE_BATCH, "--compile")
    expect_weights(finished, tmp_path, atol=1e-3)


REFUSED = {
    "--hflip 2.0: must be in 0 .. 1": ["--hflip", "2"],
    "--reprob 2.0: must be in 0 .. 1": ["--reprob", "2"],
    "--smoothing -0.5: must be in 0 .. 1": ["--smoothing", "-0.5"],
    "--img-size 0: must be > 0": ["--img-size", "0"],
    "--clip-grad 0.0: must be > 0": ["--clip-grad", "0"],
    "--workers -1: must be >= 0": ["--workers", "-1"],
    "--weight-decay -1.0: must be >= 0": ["--weight-decay", "-1"],
    "--color-jitter -1.0: must be >= 0": ["--color-jitter", "-1"],
    "--temperature 0.0: must be > 0": ["--temperature", "0"],
    "--batch-size -8: must be > 0": ["--batch-size", "-8"],
    "--cutmix -1.0: must be >= 0": ["--cutmix", "-1"],
    "--warmup-epochs -1: must be >= 0": ["--warmup-epochs", "-1"],
    "--grad-accum-steps 0: must be > 0": ["--grad-accum-steps", "0"],
    "--batch-size 25: must be <= 24, the images a process": ["--batch-size", "25", "--grad-accum-steps", "2"],
    "--min-lr -1.0: must be >= 0": ["--min-lr", "-1"],
    "--aug-repeats -1: must be >= 0": ["--aug-repeats", "-1"],
    "--aug-repeats 3: timm has it for several processes alone": ["--aug-repeats", "3"],
    "--resize 0: must be > 0": ["--resize", "0"],
    "--resize 15: must be >= 16, the side of the images": ["--resize", "15"],
    "--aa trivial: must not be given with --no-aug": ["--aa", "trivial", "--no-aug"],
    "--dataset cifar10: must be torch/NAME": ["--dataset", "cifar10"],
    "--dataset torch/cifar10: not in ": ["--dataset", "torch/cifar10"],
    "--dataset torch/cifar11: not in ": ["--dataset", "torch/cifar11"],
    "--device abacus: must be a device of this machine": ["--device", "abacus"],
    "--lr 0.0: must be > 0": ["--lr", "0"],
    "--epochs 0: must be > 0": ["--epochs", "0"],
    "--mixup -1.0: must be >= 0": ["--mixup", "-1"],
    "--model vit_enormous: must be a registered model": ["--model", "vit_enormous"],
    "--teacher vit_enormous: must be a registered model": ["--teacher", "vit_enormous"],
    "--scale [0.5, 0.1]: must be two shares": ["--scale", "0.5", "0.1"],
    "--crop-pct 1.5: must be > 0 and <= 1": ["--crop-pct", "1.5"],
    "--model-ema-decay 1.0: must be > 0 and < 1": ["--model-ema-decay", "1"],
    "--opt hope: must be an optimiser of timm": ["--opt", "hope"],
    "--seed -1: must be in 0 .. 32767": ["--seed", "-1"],
    "--train-split practice: must be a folder or a .tar file in ": ["--train-split", "practice"],
    "--val-split test: must be a folder or a .tar file in ": ["--val-split", "test"],
    "--teacher-checkpoint nothing.pth: must be a file": [*TEACHER, "--teacher-checkpoint", "nothing.pth"],
    "--temperature 2.0: needs --teacher": ["--temperature", "2"],
    "--distillation hard: needs --teacher": ["--distillation", "hard"],
    "--temperature 2.0: must be 1 with --distillation hard": [
        *(*TEACHER, "--distillation", "hard", "--temperature", "2"),
    ],
    "--warmup-epochs 3: must be < --epochs 3": ["--warmup-epochs", "3"],
    "--batch-size 3: must be even with Mixup or CutMix": ["--batch-size", "3", "--cutmix", "1"],
    "--batch-size 49: must be <= 48, the images a process": ["--batch-size", "49"],
    "--model-kwargs: 'depth': must be key=value": ["--model-kwargs", "depth"],
    "unexpected keyword argument 'dept'": ["--model-kwargs", "dept=3"],
    "--depth-range: 4-4: must be MIN-MAX with 1 <= MIN < MAX": ["--depth-range", "4-4"],
    "--depth-range: 4: must be MIN-MAX": ["--depth-range", "4"],
    "--depth-range (1, 4): must not be given with vit_tiny_patch16_224, which has no loop": ["--depth-range", "1-4"],
    "--depth-distribution poisson: needs --depth-range": ["--depth-distribution", "poisson"],
    "--pass-loss 0.0: must be > 0": ["--pass-loss", "0"],
    "--backprop-passes 0: must be > 0": ["--backprop-passes", "0"],
    "depth_range=2-9: the order 0 0 0 cannot run at 9 passes": [
        *("--model", "uit", "--model-kwargs", *SMALL, "depth=3", "--depth-range", "2-9"),
    ],
    "--pass-loss 1.0: must not be given with --teacher": [
        *("--model", "uit", "--model-kwargs", *SMALL, "--pass-loss", "1", *TEACHER),
    ],
    "--amp: invalid choice: 'fp8'": ["--amp", "fp8"],
}


def refusal(monkeypatch, capsys, *words: str) -> str:
    """What the script says as it refuses its arguments, in this process."""
    monkeypatch.setattr(sys, "argv", ["train_image.py", *words])
    with pytest.raises(SystemExit, match="2"):
        train_image.main()
    return capsys.readouterr().err


@pytest.mark.parametrize(("message", "more"), REFUSED.items(), ids=[" ".join(more) for more in REFUSED.values()])
def test_wrong_options_are_named_before_any_work(images, tmp_path, monkeypatch, capsys, message, more):
    assert message in refusal(monkeypatch, capsys, *flags(images, tmp_path / "run", *more))
    assert not (tmp_path / "run").exists()


def test_every_rule_is_tried():
    tried = {word for more in REFUSED.values() for word in more}
    assert {f"--{name.replace('_', '-')}" for name in image_options.RULES} <= tried


def test_the_commands_of_the_readme_are_taken():
    text = (RECIPES / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    calls = [line.split("recipes/train_image.py")[1] for line in text.splitlines() if "recipes/train_image.py " in line]
    assert len(calls) == 4
    for call in calls:
        args = image_options.parser("").parse_args(shlex.split(call))
        assert timm.is_model(args.model)
        assert args.teacher is None or timm.is_model(args.teacher)


def test_classes_must_agree(images, tmp_path, monkeypatch, capsys):
    (tmp_path / "train").symlink_to(images / "train")
    (tmp_path / "val" / "blue").mkdir(parents=True)
    (tmp_path / "val" / "blue" / "0.png").symlink_to(images / "val" / "blue" / "0.png")
    told = refusal(monkeypatch, capsys, *flags(tmp_path, tmp_path / "run"))
    assert "--val-split val: must hold the classes of train, blue, green, red" in told


@pytest.mark.slow
def test_a_run_is_neither_overwritten_nor_changed(images, finished, monkeypatch, capsys):
    for more, message in (
        ([], "holds a run; add --resume"),
        (["--resume", *PLAIN], "--batch-size 12: must be 48, as in the run"),
    ):
        assert message in refusal(monkeypatch, capsys, *flags(images, finished, *more))


@pytest.mark.slow
def test_a_run_from_before_an_option_goes_on_with_its_default(images, finished, tmp_path, monkeypatch, capsys):
    shutil.copytree(finished, tmp_path / "run")
    state = torch.load(tmp_path / "run" / "last.pth.tar", weights_only=False)
    del state["args"].min_lr
    torch.save(state, tmp_path / "run" / "last.pth.tar")
    again = flags(images, tmp_path / "run", *ONE_BATCH, "--resume")
    monkeypatch.setattr(sys, "argv", ["train_image.py", *again])
    train_image.main()
    told = refusal(monkeypatch, capsys, *again, "--min-lr", "0.001")
    assert "--min-lr 0.001: must be 0.0, as in the run" in told


def test_a_loss_that_is_no_number_stops_the_run(images, tmp_path, monkeypatch):
    more = ["--lr", "1e30", "--weight-decay", "0", "--warmup-epochs", "0"]
    monkeypatch.setattr(sys, "argv", ["train_image.py", *flags(images, tmp_path / "run", *more)])
    with pytest.raises(
        SystemExit, match=r"^train_image.py: error: loss nan in epoch \d: lower --lr, or set --clip-grad"
    ):
        train_image.main()
