"""The image trainer on generated images: resuming, several processes, data, distillation."""

import itertools
import shutil
import sys
import time
from pathlib import Path

import pytest
import score_image
import torch
from PIL import Image

from recurrence.comparison.runs import locked
from tests.support import cli
from tests.support.image_training import (
    COLOURS,
    ELASTIC,
    IMAGES_PER_CLASS,
    IMPORTABLE,
    KILLED,
    SCRIPT,
    SIDE,
    SMALL,
    TEACHER,
    checkpoint,
    flags,
    loaders,
    table,
    train,
    trainer_of,
)
from tests.support.states import same_state
from timm_plugin import accuracy
from timm_plugin import train as train_image
from timm_plugin.training import build, options
from timm_plugin.training.files import record


def expect_weights(one: Path, other: Path, atol: float = 1e-4) -> None:
    """Asserts that two runs have ended with the same weights."""
    weights = (checkpoint(output)["state_dict"] for output in (one, other))
    torch.testing.assert_close(*weights, rtol=0, atol=atol)


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
EVERYTHING["elastic depth"] = [*(*ELASTIC, "--pass-loss", "0.5", "--depth-warmup-updates", "5", "--min-lr", "1e-5")]
EVERYTHING["mixed depth"] = [*ELASTIC, "--mixed-depth", "--depth-warmup-updates", "6"]


@pytest.mark.slow
@pytest.mark.parametrize("more", EVERYTHING.values(), ids=EVERYTHING)
def test_a_killed_run_resumes_bit_for_bit(images, tmp_path, more):
    train(images, tmp_path / "whole", *more)
    cli.python(KILLED, *flags(images, tmp_path / "resumed", *more), fails=True)
    assert len(table(tmp_path / "resumed")) == 1
    train(images, tmp_path / "resumed", *more, "--resume")
    whole, resumed = checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "resumed")
    assert whole["epoch"] == 2
    assert ("state_dict_ema" in whole) == ("--model-ema-decay" in more)
    assert ("amp_scaler" in whole) == ("float16" in more)
    assert float(table(tmp_path / "whole")[-1]["lr"]) == pytest.approx(1e-5 if "--min-lr" in more else 0)
    assert table(tmp_path / "whole")[-1]["train_updates"] == ("6" if "--grad-accum-steps" in more else "12")
    for part in whole.keys() - {"args", "saver"}:
        assert same_state(whole[part], resumed[part]), part
    assert table(tmp_path / "whole") == table(tmp_path / "resumed")
    assert whole["saver"]["best_metric"] == resumed["saver"]["best_metric"]


PLAIN = ["--no-aug", "--lr", "0.01"]
ONE_BATCH = ["--batch-size", "48", *PLAIN]
QUARTERS = ["--batch-size", "12", "--grad-accum-steps", "2", *PLAIN]  # in two processes


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory) -> Path:
    """A run without randomness, one batch per epoch, for comparison with runs in several processes."""
    folder = tmp_path_factory.mktemp("finished")
    train(images, folder, *ONE_BATCH)
    return folder


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    """A copy of that run, to be changed."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.slow
def test_training_lowers_the_loss_and_keeps_the_best_checkpoint(finished):
    rows = table(finished)
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])
    best = max(float(row["eval_top1"]) for row in rows)
    assert checkpoint(finished, "model_best")["metric"] == best
    assert best > 60


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [True, False])
def test_the_cosine_starts_after_the_warm_up_or_with_it(images, tmp_path, prefix):
    """After it, from the peak, as in RingFormer's code; or at the start of training, as timm does by default."""
    more = ["--epochs", "6", "--warmup-epochs", "3", "--lr", "1e-3", *(["--warmup-prefix"] if prefix else [])]
    trainer = trainer_of(images, tmp_path, *more)
    rates = []
    for update in range(6 * trainer.updates + 1):
        trainer.scheduler.step_update(update)
        rates.append(trainer.optimizer.param_groups[0]["lr"])
    warm = 3 * trainer.updates
    assert rates[warm] == pytest.approx(1e-3 if prefix else 5e-4)
    assert rates[-1] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("updates", "warns"), [("11", False), ("12", True)])
def test_a_warm_up_that_never_ends_is_warned_of(images, tmp_path, caplog, updates, warns):
    trainer = trainer_of(images, tmp_path, *ELASTIC, "--depth-warmup-updates", updates)
    assert trainer.args.epochs * trainer.updates == 12
    assert (f"--depth-warmup-updates {updates}: training ends after 12 updates" in caplog.text) == warns


@pytest.mark.slow
def test_two_processes_equal_one_with_the_same_total_batch(images, finished, tmp_path):
    cli.launch(2, SCRIPT, *flags(images, tmp_path, *QUARTERS), env=IMPORTABLE)
    expect_weights(finished, tmp_path)
    for ours, theirs in zip(table(finished), table(tmp_path), strict=True):
        assert float(ours["train_loss"]) == pytest.approx(float(theirs["train_loss"]), abs=1e-4)
        assert ours["eval_top1"] == theirs["eval_top1"]  # all images count once, the sampler's padding does not


@pytest.mark.slow
def test_two_nodes_resume_to_the_same_weights_after_one_crashed(images, finished, tmp_path):
    arguments = flags(images, tmp_path, *QUARTERS)
    cli.two_nodes(KILLED, *arguments, fails=True, env=IMPORTABLE)
    assert len(table(tmp_path)) == 1
    cli.two_nodes(SCRIPT, *arguments, "--resume", env=IMPORTABLE)
    expect_weights(finished, tmp_path)
    assert [row["eval_top1"] for row in table(tmp_path)] == [row["eval_top1"] for row in table(finished)]


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [[], ["--mixed-depth"]], ids=["drawn", "mixed"])
def test_two_processes_draw_the_same_depths(images, mixed, tmp_path):
    """Parameters of skipped passes also have no gradient, as in one process, so the optimizer does not change them."""
    one, two = tmp_path / "one", tmp_path / "two"
    train(images, one, *ELASTIC, *mixed, "--batch-size", "48", "--no-aug")
    cli.launch(2, SCRIPT, *flags(images, two, *ELASTIC, *mixed, "--batch-size", "24", "--no-aug"), env=IMPORTABLE)
    expect_weights(one, two)
    row = table(two)[-1]
    assert {key for key in row if "depth" in key} == {
        f"eval_{end}_depth_{measure}" for end in ("smallest", "largest") for measure in ("loss", "top1", "top5")
    }
    assert row["eval_largest_depth_loss"] == row["eval_loss"] != row["eval_smallest_depth_loss"]


@pytest.mark.parametrize("drawn", [[], ["depth_range=(1,4)", "depth_seed=3"]], ids=["alone", "beside drawn depths"])
def test_mixed_depth_reports_one_run_of_each_block(images, tmp_path, drawn):
    kwargs = [*SMALL, "depth=4", *drawn]  # depths may be drawn by arguments of the model, too
    trainer = trainer_of(images, tmp_path, "--model", "ringformer_vit", "--model-kwargs", *kwargs, "--mixed-depth")
    trainer.task.train()
    trainer.learn(*next(iter(trainer.train_loader)), 0, last=True)
    found = trainer.evaluate()
    assert found["largest_depth_loss"] == found["loss"] != found["smallest_depth_loss"]


def test_every_epoch_augments_the_images_anew(images, tmp_path, monkeypatch):
    def learn(images, *_, **last):
        seen.append(images.flatten(1))
        return torch.zeros(())

    trainer = trainer_of(images, tmp_path)
    monkeypatch.setattr(trainer, "learn", learn)
    epochs = []
    for epoch in (0, 1, 1):
        seen: list[torch.Tensor] = []
        trainer.train(epoch)
        epochs.append(torch.cat(seen))
    first, second, again = epochs
    assert torch.equal(second, again)  # as a resumed run reads it
    assert not torch.equal(first.sort(0)[0], second.sort(0)[0])  # whatever their order


def test_the_seed_is_that_of_the_first_weights(images, tmp_path):
    one, same, other = (trainer_of(images, tmp_path, "--seed", seed).model.state_dict() for seed in (1, 1, 2))
    assert same_state(one, same)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_weight_decay_and_clipping_act(images, tmp_path, monkeypatch):
    def step():
        gradients.extend(parameter.grad.flatten() for parameter in trainer.model.parameters())

    trainer, gradients = trainer_of(images, tmp_path, "--weight-decay", "0.3", "--clip-grad", "0.001"), []
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0, 0.3}
    monkeypatch.setattr(trainer.optimizer, "step", step)
    trainer.learn(*next(iter(trainer.train_loader)), 0, last=True)
    assert torch.cat(gradients).norm().item() == pytest.approx(0.001, rel=1e-3)


def test_the_averaged_weights_are_evaluated(images, tmp_path):
    trainer = trainer_of(images, tmp_path, "--model-ema-decay", "0.9")
    found = trainer.evaluate()
    torch.nn.init.ones_(trainer.model.head.weight)
    assert trainer.evaluate() == found
    trainer.task.update_ema(step=1)
    assert trainer.evaluate()["loss"] != found["loss"]


def test_coefficients_have_the_same_names_in_several_processes(images, tmp_path):
    trainer = trainer_of(images, tmp_path, "--model", "sret_nano", "--model-kwargs", "embed_dim=8", "depths=(1,1)")
    names = trainer.summary(0, {}, {}).keys()
    assert "train_stages.0.loop.blocks.0.residuals.0.identity" in names
    trainer.task.trainable_module = torch.nn.DataParallel(trainer.model)  # it names modules as torchrun's does
    assert trainer.summary(0, {}, {}).keys() == names


def test_an_evaluation_at_other_depths_leaves_the_full_depth(images, tmp_path):
    trainer = trainer_of(images, tmp_path, *ELASTIC[:-1], "1-6")
    found = trainer.evaluate()
    assert trainer.model.passes is None
    assert found["largest_depth_loss"] != found["loss"] != found["smallest_depth_loss"]
    assert trainer.evaluate() == found


def test_torchvision_resizes_crops_and_augments(images):
    training, _ = loaders(images, "--resize", "20", "--aa", "trivial")
    steps = training.dataset.transform.transforms
    assert [type(step).__name__ for step in steps] == [
        *("Compose", "RandomHorizontalFlip", "TrivialAugmentWide", "MaybePILToTensor"),
    ]
    wide = Image.effect_noise((30, 15), 90)
    assert steps[0].transforms[0](wide).size == (40, 20)
    assert steps[0](wide).size == (SIDE, SIDE)


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
    for split in IMAGES_PER_CLASS:
        cli.run("tar", "-cf", tmp_path / f"{split}.tar", "-C", images / split, *COLOURS)
    splits = ["--train-split", "train.tar", "--val-split", "val.tar"]
    train(tmp_path, tmp_path / "run", *ONE_BATCH, *splits)
    assert same_state(checkpoint(finished)["state_dict"], checkpoint(tmp_path / "run")["state_dict"])


@pytest.mark.slow
def test_soft_distillation_ignores_the_labels(images, finished, tmp_path):
    """All labels are wrong, yet the student reaches the teacher's accuracy."""
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
def test_hard_distillation_learns(images, finished, tmp_path):
    teacher = [*TEACHER, "--teacher-kwargs", *SMALL, "--distillation", "hard"]
    weights = ["--teacher-checkpoint", finished / "model_best.pth.tar", "--mixup", "0.2"]
    train(images, tmp_path / "run", *teacher, *weights, *PLAIN, "--epochs", "6")
    assert float(table(tmp_path / "run")[-1]["eval_top1"]) > 60


@pytest.mark.slow
def test_compiled_training_ends_with_the_same_weights(images, finished, tmp_path):
    train(images, tmp_path, *ONE_BATCH, "--compile")
    expect_weights(finished, tmp_path, atol=1e-3)


@pytest.mark.slow
def test_a_run_is_neither_overwritten_nor_changed(images, finished, rejected):
    for more, message in (
        ([], "holds a run; add --resume"),
        (["--resume", *PLAIN], "--batch-size 12: must be 48, as in the run"),
    ):
        assert message in rejected(train_image.main, *flags(images, finished, *more))


@pytest.mark.slow
def test_what_is_said_of_more_epochs_can_be_pasted(images, finished, tmp_path, rejected):
    run = shutil.copytree(finished, tmp_path / "a run")
    error = rejected(train_image.main, *flags(images, run, *ONE_BATCH, "--resume", "--epochs", "9"))
    assert f"start a new run with --model-kwargs 'checkpoint_path={run}/last.pth.tar'" in error


@pytest.mark.slow
def test_a_run_older_than_an_option_resumes_with_its_default(images, copied, monkeypatch, rejected):
    state = torch.load(copied / "last.pth.tar", weights_only=False)
    del state["args"].min_lr
    torch.save(state, copied / "last.pth.tar")
    again = flags(images, copied, *ONE_BATCH, "--resume")
    monkeypatch.setattr(sys, "argv", ["train_image.py", *again])
    train_image.main()
    error = rejected(train_image.main, *again, "--min-lr", "0.001")
    assert "--min-lr 0.001: must be 0.0, as in the run" in error


@pytest.mark.slow
def test_a_run_is_scored_at_the_size_of_its_images(copied):
    assert score_image.model_of(copied)[1] == SIDE
    (copied / "summary.csv").write_text("epoch,eval_top1\n")
    with pytest.raises(ValueError, match="summary.csv: has no epoch"):
        score_image.scores(copied)


@pytest.mark.slow
def test_damaged_files_of_a_run_are_named(images, copied, rejected):
    again = flags(images, copied, *ONE_BATCH, "--resume")
    for content in ("1,2\n3,4\n", "epoch,train_loss\nnone,1\n"):
        (copied / "summary.csv").write_text(content)
        assert f"--output {copied}/summary.csv: has no epochs" in rejected(train_image.main, *again)
    for other in ({"state_dict": {}}, [1]):
        torch.save(other, copied / "last.pth.tar")
        error = rejected(train_image.main, *again)
        assert f"--resume {copied}/last.pth.tar: must be a checkpoint of train_image.py" in error


def test_a_damaged_checkpoint_is_not_scored(tmp_path, rejected):
    (tmp_path / "last.pth.tar").write_bytes(b"half of it")
    assert f"{tmp_path}/last.pth.tar: not a checkpoint that can be read" in rejected(accuracy.main, tmp_path)
    torch.save({"head.weight": torch.zeros(2)}, tmp_path / "last.pth.tar")
    assert f"must name the model of {tmp_path}/last.pth.tar" in rejected(accuracy.main, tmp_path)


def test_a_run_is_scored_on_its_own_classes_only(images, tmp_path, rejected):
    args = options.parser("").parse_args(flags(tmp_path / "images", tmp_path))
    args.num_classes = 3
    saved = dict(arch=args.model, args=args, state_dict=build.build("model", args, num_classes=3).state_dict())
    torch.save(saved, tmp_path / "last.pth.tar")
    assert f"cannot be read in {tmp_path}/images: no such folder" in rejected(accuracy.main, tmp_path)
    for split in ("train", "val"):
        (tmp_path / "images" / split).mkdir(parents=True)
        (tmp_path / "images" / split / "red").symlink_to(images / split / "red")
    assert f"RUN={tmp_path}: its images must have 3 classes, like the model, not 1" in rejected(accuracy.main, tmp_path)


def test_a_run_knows_where_its_images_are_from_any_folder(images, tmp_path, monkeypatch):
    places = []
    monkeypatch.setattr(train_image.Trainer, "run", lambda trainer: places.append(Path(trainer.args.data)))
    monkeypatch.setattr(sys, "argv", ["train_image.py", *flags(Path(images.name), tmp_path)])
    monkeypatch.chdir(images.parent)
    train_image.main()
    (place,) = places
    assert place.is_absolute()
    assert place.samefile(images)


def test_a_run_on_a_device_that_is_not_here_is_scored_on_the_cpu(images, tmp_path, monkeypatch):
    args = options.parser("").parse_args(flags(images, tmp_path, "--device", "xpu:0"))
    args.num_classes = 3
    saved = dict(arch=args.model, args=args, state_dict=build.build("model", args, num_classes=3).state_dict())
    torch.save(saved, tmp_path / "last.pth.tar")
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)  # a batch takes a second
    found = accuracy.measured(tmp_path)
    assert 0 <= found["top1"] <= 100
    assert found["seconds"] == pytest.approx(2)  # 15 images in batches of 12


def test_a_nan_loss_stops_the_run(images, tmp_path, monkeypatch):
    more = ["--lr", "1e30", "--weight-decay", "0", "--warmup-epochs", "0"]
    monkeypatch.setattr(sys, "argv", ["train_image.py", *flags(images, tmp_path / "run", *more)])
    with pytest.raises(
        SystemExit, match=r"^train_image.py: error: loss nan in epoch \d: lower --lr, or set --clip-grad"
    ):
        train_image.main()


def test_two_trainings_do_not_share_a_folder(images, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_image.py", *flags(images, tmp_path)])
    with locked(tmp_path / ".training.lock"), pytest.raises(SystemExit, match="another training is running there"):
        train_image.main()


def test_the_mean_loss_is_exact_in_half_precision(images, tmp_path, monkeypatch):
    trainer = trainer_of(images, tmp_path)
    trainer.train_loader, trainer.updates = [(None, None)] * 1000, 1000
    monkeypatch.setattr(trainer, "learn", lambda *_, **last: torch.tensor(1.5, dtype=torch.bfloat16))
    assert trainer.train(0)["loss"] == 1.5


def test_a_table_of_an_older_version_may_have_other_columns(tmp_path):
    table = tmp_path / "summary.csv"
    table.write_text("epoch,train_loss,old\n0,1,2\n")
    record(table, 1, {"epoch": 1, "train_loss": 3})
    assert table.read_text() == "epoch,train_loss,old\n0,1,2\n1,3,\n"


def test_an_infinite_loss_stops_the_run_too(images, tmp_path, monkeypatch):
    trainer = trainer_of(images, tmp_path)
    monkeypatch.setattr(trainer, "learn", lambda *_, **last: torch.tensor(torch.inf))
    with pytest.raises(ArithmeticError, match="^loss inf in epoch 1: lower --lr, or set --clip-grad"):
        trainer.train(0)


def test_updates_and_orders_of_images_are_counted_over_all_epochs(images, tmp_path, monkeypatch):
    trainer, seen, orders = trainer_of(images, tmp_path, "--grad-accum-steps", "2", "--seed", "2"), [], []
    trainer.args.distributed = True
    trainer.train_loader.sampler.set_epoch = orders.append
    monkeypatch.setattr(trainer, "learn", lambda *given, last: seen.append((given[2], last)) or torch.zeros(()))
    monkeypatch.setattr(train_image.utils, "reduce_tensor", lambda loss, _: loss)
    monkeypatch.setattr(train_image.utils, "distribute_bn", lambda *_, **__: None)
    assert [trainer.train(epoch)["updates"] for epoch in (0, 1)] == [2, 4]
    assert seen == [(update, last) for update in range(4) for last in (False, True)]
    assert orders == [2 << 16, (2 << 16) + 1]


def test_the_seed_is_that_of_the_draws_of_depths(images, tmp_path):
    (depth,) = trainer_of(images, tmp_path, *ELASTIC, "--seed", "2").model.training_depths
    assert depth.seed == 2
