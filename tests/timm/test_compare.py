"""python -m timm_plugin.compare: controls of every image model, what is rejected, and a comparison from end to end."""

import itertools
import json
import time
from functools import cache
from unittest.mock import Mock

import pandas as pd
import pytest
import timm

from recurrence import count
from recurrence.comparison.controls import as_large
from recurrence.comparison.rows import Length
from recurrence.comparison.runs import Run, check_begun
from tests.support import cli, vision
from timm_plugin import compare
from timm_plugin.training import options


@cache
def options_of(architecture):
    return timm.create_model(architecture, device="meta").config.options()


def control(name, model, blocks, **sizes):
    wanted = {**vars(model.config), **model.config.unshared(blocks), **sizes}
    architecture = wanted.pop("model", vision.CASES[name][0])
    given = {option: wanted[option] for option in options_of(architecture) if option in wanted}
    return timm.create_model(architecture, device="meta", **given)


@vision.every_registered_structure
def test_controls_of_every_model(structure):
    model = vision.fresh(structure)
    if structure.startswith("owf"):
        with pytest.raises(ValueError, match="One Wide FFN shares only its MLP, so no block runs more than once"):
            model.config.unshared([1])
        return
    blocks = [len(loop.blocks) for loop in model.loops()]
    passes = [loop.passes for loop in model.loops()]
    once, deep = control(structure, model, blocks), control(structure, model, passes)
    assert [loop.order for loop in once.loops()] == [tuple(range(number)) for number in blocks]
    assert [loop.order for loop in deep.loops()] == [tuple(range(number)) for number in passes]
    target = count.stored(model)
    assert count.stored(once) <= target <= count.stored(deep)

    def pairs(layers, sizes):
        def sized(*steps):
            return control(structure, model, layers, **sizes(*steps))

        found = sized(*as_large("narrow", lambda *steps: count.stored(sized(*steps)), target))
        assert 0.96 * target <= count.stored(found) <= target
        loops = zip(model.loops(), found.loops())
        return [[loop.blocks[0].self_attn for loop in pair] for pair in loops if pair[0].blocks[0].self_attn]

    for old, new in pairs(passes, model.config.narrower_heads):
        assert old.heads == new.heads
    for old, new in pairs(blocks, model.config.more_heads):
        assert old.qkv.in_features * new.heads == new.qkv.in_features * old.heads


def test_a_projection_after_each_run_of_the_stack_follows_its_one_run():
    sizes = dict(depth=2, loops=3, img_size=32, loop_order="external", nll=True)
    model = timm.create_model("recursive_deit_tiny", **sizes)
    once = control("recursive_deit_tiny", model, [2])
    projections = [[own.projection is not None for own in each.loop.own] for each in (model, once)]
    assert projections == [[False, True] * 3, [False, True]]
    assert count.stored(once) < count.stored(model)
    with pytest.raises(ValueError, match="'external': with nll=True .*; leave out the rows that do not have . blocks"):
        model.config.unshared([6])


def test_a_pyramid_is_widened_to_even_widths():
    assert vision.fresh("sret_t", embed_dim=10).config.more_heads(2, 0)["embed_dim"] == 30


MODEL = ["--model", "ringformer_vit", "--img-size", "16", "--model-kwargs"]
MODEL += ["patch_size=4", "embed_dim=24", "depth=3", "num_heads=2", "signal_rank_divisor=4"]
FLAGS = ["--epochs", "2", "--warmup-epochs", "0", "--batch-size", "12", "--workers", "0", "--device", "cpu"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--model", "vit_tiny_patch16_224"], "--model=vit_tiny_patch16_224: must be a looped model of timm_plugin"),
        (["--model-kwargs", "depth=1"], "runs each of its blocks once"),
        (["--depth-rang", "1-2"], "unrecognized arguments: --depth-rang 1-2"),  # it would be of all rows
        (["--seed", "3"], "--seed 3: is set by --seeds"),
        (["--model-kwargs", "pretrained=1"], "--model-kwargs pretrained=1: must not be given, because the other rows"),
        (["--epochs", "0"], "--epochs 0: must be > 0"),
        (["--seeds", "1,40000"], "--seeds 40000: must be in 0 .. 32767"),
        (["--rates", "1e-2,1e-4", "--min-lr", "5e-4"], "--min-lr 0.0005: must be <= --lr 0.0001"),
        (["--model-kwargs", "width=3"], "unexpected keyword argument 'width'"),
        (["--val-split", "none"], "--val-split none: must be a folder or a .tar file"),
    ],
)
def test_wrong_options_are_rejected_before_anything_is_trained(images, tmp_path, rejected, words, rule):
    assert rule in rejected(compare.main, images, "--output", tmp_path / "out", *MODEL, *FLAGS, *words)
    assert not (tmp_path / "out").exists()


def test_every_value_of_an_option_that_adds_them_up_tells_runs_apart(images, tmp_path):
    def run(depth):
        words = [str(images), "--model-kwargs", f"depth={depth}", *MODEL, *FLAGS, "--output", str(tmp_path)]
        words.remove("depth=3")
        comparison = compare.ImageComparison(options.parser("").parse_args(words), words)
        (row,) = comparison.rows(["looped"])
        assert row.passes == depth
        return Run("looped", 1, tmp_path, tuple(comparison.steps(row, 1, tmp_path)), comparison.diverged)

    begun = run(2)
    (tmp_path / "train.flags").write_text(json.dumps(begun.steps[0].flags))
    check_begun([begun])
    with pytest.raises(ValueError, match=r"holds a run of looped with other flags \(--model-kwargs depth="):
        check_begun([run(4)])


def comparison_of(images, output, *words, model=MODEL):
    words = [str(images), *model, *FLAGS, "--output", str(output), *map(str, words)]
    return compare.ImageComparison(options.parser("").parse_args(words), words)


def words_of(step):
    (command,) = step.commands
    return list(command.words)


def test_equal_time_of_few_epochs_also_shortens_the_warm_up(images, tmp_path):
    model = ["--model", "sret_nano.cifar10", "--img-size", "32"]
    comparison = comparison_of(images, tmp_path, "--epochs", "6", "--warmup-epochs", "5", model=model)
    train, _ = comparison.steps(*comparison.rows(["looped"]), 7, tmp_path, Length(3, 0.5))
    words = words_of(train)
    args = options.parser("").parse_args(words[words.index(str(images)) :])
    options.check(args)
    assert (args.epochs, args.warmup_epochs, args.seed) == (3, 2.5, 7)


def test_every_step_imports_the_users_module(images, tmp_path):
    module = tmp_path / "own_module.py"
    module.write_text("")
    comparison = comparison_of(images, tmp_path, "--user-module", module)
    for step in comparison.steps(*comparison.rows(["looped"]), 1, tmp_path):
        words = words_of(step)
        assert words[words.index("--user-module") + 1] == str(module)


def test_speed_and_time_count_every_batch_of_an_update(images, tmp_path, monkeypatch):
    comparison = comparison_of(images, tmp_path, "--grad-accum-steps", "2")
    (tmp_path / "summary.csv").write_text("epoch,train_seconds,eval_loss\n0,2.0,0.5\n1,4.0,0.75\n")
    found = comparison._trained(tmp_path, "")
    assert found == {"epochs": 2, "seconds": 6, "images/s": 2 * 48 / 6, "validation": 0.75}
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)  # a batch takes a second
    assert comparison.seconds(*comparison.rows(["looped"])) == 2 * 4


def test_a_dry_run_builds_few_models(images, tmp_path, monkeypatch, capsys):
    """The looped one in the trainer, seven for each of three widths, two for each row, which is timed, and a preset."""
    create = Mock(side_effect=timm.create_model)
    monkeypatch.setattr(timm, "create_model", create)
    compare.main([str(images), "--output", str(tmp_path / "out"), *MODEL, *FLAGS, "--depth-range", "1-3", "--dry-run"])
    said = capsys.readouterr().out
    assert "| half_time " in said
    assert (
        "\n# half_time: the commands of half, with the number of epochs that comes nearest to the time of looped\n"
        in said
    )
    assert "# about 0 minutes (looped 1 x 0.0, once" in said
    assert create.call_count <= 1 + 3 * 7 + 2 * 6 + 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_comparison_from_end_to_end(images, tmp_path):
    output = tmp_path / "out"
    words = ["-m", "timm_plugin.compare", images, "--output", output, "--rows", "storage", *MODEL, *FLAGS]
    words += ["--depth-range", "1-3", "--rates", "1e-9,1e-2"]
    cli.python(*words)
    runs = pd.read_csv(output / "runs.csv")
    assert list(zip(runs["row"], runs["rate"])) == [("looped", 0.01), ("storage", 0.01)]
    assert runs[["score", "seconds", "inference"]].notna().all(axis=None)
    assert "one seed, so no interval" in (output / "comparison.md").read_text()
    assert not [line for line in cli.python(*words).splitlines() if line.endswith("...")]
