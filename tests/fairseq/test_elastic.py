"""Elastic depth in fairseq: which architectures support it, its losses, resuming and several ranks."""

import re
from pathlib import Path

import pytest
import torch
from fairseq.criterions import FairseqCriterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from torch import Tensor, nn

from fairseq_plugin.elastic import OPTIONS, elastic_criterion, reported_depths
from fairseq_repairs.checkpoints import load_safely
from recurrence.elastic import at_depths
from recurrence.loop import Loop
from tests.support import cli, language, models
from tests.support.flags import parser
from tests.support.states import same_state

WITHOUT_OPTIONS = ("vanilla", "one_wide_ffn", "recurrent_lm")  # families
UNSHARED = ("takase_vanilla", "s2t_vanilla", "vanilla_lm")  # presets of families that share
NO_FEWER = "ilr"  # of a reuse map


def has_options(arch: str) -> bool:
    return not arch.startswith(WITHOUT_OPTIONS) or arch.startswith(UNSHARED)


def is_elastic(arch: str) -> bool:
    return has_options(arch) and not arch.startswith((*UNSHARED, NO_FEWER))


def at(arch: str, depth: int) -> list[str]:
    """Flags that build an architecture at a depth."""
    flags = ["--decoder-layers", str(depth)]
    if arch not in language.ARCHS:
        flags += ["--encoder-layers", str(depth)]
    return flags + (["--block-loops", str(depth // 2)] if arch.startswith("recursive") else [])


def ends(arch: str) -> tuple[int, int]:
    """The smallest depth of its tiny model, and one beyond the default if it allows that."""
    blocks = {len(loop.blocks) for loop in models.tiny(arch).loops_by_side().values()}
    return max(blocks), 4 if arch in models.ARCHS and models.has_static_levels(arch) else 6


def depths(arch: str) -> list[int]:
    smallest, largest = ends(arch)
    even = arch.startswith("recursive") or "sequence" in arch
    return [depth for depth in range(smallest, largest + 1) if not even or depth % 2 == 0]


@models.every_model
def test_depth_options_exist_for_families_that_share_blocks(arch):
    assert (set(OPTIONS) <= {action.dest for action in parser(arch)._actions}) == has_options(arch)


@pytest.mark.parametrize("arch", [arch for arch in models.REPRESENTS if has_options(arch) and not is_elastic(arch)])
def test_a_depth_range_is_rejected_for_orders_without_a_shorter_form(arch):
    reason = "cannot run at depth 2" if arch.startswith(NO_FEWER) else "needs a block that runs again"
    with pytest.raises(ValueError, match=rf"--depth-range=2-4: .*{reason}.*\((encoder|decoder)\)"):
        elastic(arch, "--depth-range", "2-4")


every_elastic_model = pytest.mark.parametrize("arch", [arch for arch in models.REPRESENTS if is_elastic(arch)])


def elastic(arch: str, *flags: str) -> nn.Module:
    """A tiny model, prepared for training."""
    model = models.tiny(arch, *flags)
    model.train_elastic(1)
    return model


def ranged(arch: str) -> nn.Module:
    """One that draws from all its depths."""
    return elastic(arch, "--depth-range", "-".join(map(str, ends(arch))))


@every_elastic_model
def test_every_depth_equals_the_model_of_that_depth(arch):
    model, batch = ranged(arch), models.inputs(arch)
    assert {loop.training_depth.depths for loop in model.loops_by_side().values()} == {tuple(depths(arch))}
    for depth in depths(arch):
        built = models.tiny(arch, *at(arch, depth), seed=1)
        built.load_state_dict(model.state_dict())
        with torch.no_grad(), at_depths(dict.fromkeys(model.loops_by_side().values(), depth)):
            torch.testing.assert_close(model(*batch)[0], built(*batch)[0], rtol=0, atol=0)


def drawn(model: nn.Module, updates: int) -> list[tuple[int, ...]]:
    """The passes of each stack at each update."""
    found = []
    for update in range(updates):
        model.train().set_num_updates(update)
        found.append(tuple(len(loop.running) for loop in model.loops_by_side().values()))
    return found


@every_elastic_model
def test_updates_draw_depths_and_evaluation_runs_all_passes(arch):
    model = ranged(arch)
    found = drawn(model, updates=12)
    assert len(set(found)) > 1
    assert all(len(set(passes)) == 1 for passes in found)  # the same for encoder and decoder
    assert all(len(loop.running) == loop.passes for loop in model.eval().loops_by_side().values())


def test_stacks_of_two_depths_are_drawn_together():
    model = elastic("cycle", "--encoder-layers", "8", "--depth-range", "4-8,2-4")
    assert set(drawn(model, updates=60)) == {(4, 2), (5, 2), (5, 3), (6, 3), (7, 3), (7, 4), (8, 4)}


# Losses


def sample(arch: str) -> dict:
    """A batch as fairseq's dataset collates it."""
    if arch in language.ARCHS:
        (text,) = models.inputs(arch)
        net_input = dict(src_tokens=text, src_lengths=None)
    else:
        source, lengths, text = models.inputs(arch)
        net_input = dict(src_tokens=source, src_lengths=lengths, prev_output_tokens=text)
    wanted = text.roll(-1, dims=1)
    return dict(net_input=net_input, target=wanted, ntokens=int(wanted.ne(1).sum()))


def criterion(arch: str, elastic: bool = False) -> FairseqCriterion:
    task = models.task_of(arch)
    adaptive = arch.endswith("_lm")  # presets with an adaptive softmax, which only its own loss can train
    kind, rest = (AdaptiveLoss, ()) if adaptive else (LabelSmoothedCrossEntropyCriterion, (0.1,))
    return (elastic_criterion(kind) if elastic else kind)(task, False, *rest)


def loss_at(model: nn.Module, arch: str, depths: dict[Loop, int]) -> Tensor:
    """The loss of the model that runs at these depths, without elastic depth."""
    with at_depths(depths):
        return criterion(arch)(model, sample(arch))[0]


def expect_loss(model: nn.Module, arch: str, expected: Tensor, reported: Tensor) -> None:
    """Asserts that elastic depth trains with this loss and its gradients, and reports that of all passes."""
    batch = sample(arch)
    loss, size, log = criterion(arch, elastic=True)(model, batch)
    torch.testing.assert_close(loss, expected)
    assert (log["loss"], size) == (reported.detach(), batch["ntokens"])
    gradients = (torch.autograd.grad(each, list(model.parameters())) for each in (loss, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arch", "flags", "step"),
    [
        ("ringformer_base", [], 1),
        ("cycle", [], 1),
        ("universal", [], 1),
        ("s2t_universal", [], 1),
        ("cycle_lm", ["--adaptive-softmax-dropout", "0"], 1),
        ("ilr_small", ["--block-loops", "3", "--inject-embedding"], 3),  # which repeats the entire stack
    ],
)
def test_pass_loss_is_the_mean_over_models_whose_decoder_ends_earlier(arch, flags, step):
    model = elastic(arch, *cli.WITHOUT_DROPOUT, "--pass-loss", "0.5", *flags).train()
    decoder = model.loops_by_side()["decoder"]
    ends = range(len(decoder.blocks), decoder.passes + 1, step)
    *earlier, whole = (loss_at(model, arch, {decoder: depth}) for depth in ends)
    expect_loss(model, arch, whole + 0.5 * sum(earlier) / len(earlier), whole)


def test_a_loop_with_injected_inputs_is_built_at_its_smallest_depth():
    arch, loops = "ilr_small", ("--inject-embedding", "--inject-adapter", "--depth-range", "3-6", "--block-loops")
    model, once = models.tiny(arch, *loops, "2"), models.tiny(arch, *loops, "1", seed=1)
    once.load_state_dict(model.state_dict())
    assert loss_at(once, arch, {}) == loss_at(model, arch, {model.loops_by_side()["decoder"]: 3})


@every_elastic_model
def test_mixed_depth_is_the_mean_over_two_models(arch):
    adaptive = ("--adaptive-softmax-dropout", "0") if arch.endswith("_lm") else ()
    model = elastic(arch, *cli.WITHOUT_DROPOUT, *adaptive, "--mixed-depth").train()
    once = {loop: len(loop.blocks) for loop in model.loops_by_side().values()}
    deep, shallow = loss_at(model, arch, {}), loss_at(model, arch, once)
    expect_loss(model, arch, (deep + shallow) / 2, deep)


def test_validation_reports_the_loss_at_three_depths():
    arch = "ringformer_base"
    model = elastic(arch, "--depth-range", "1-6")
    with torch.no_grad():
        loss, _, log = criterion(arch, elastic=True)(model, sample(arch))
        for name, depth in (("smallest_depth", 1), ("default_depth", 4), ("largest_depth", 6)):
            built = models.tiny(arch, *at(arch, depth), seed=1)
            built.load_state_dict(model.state_dict())
            assert log[f"{name}/loss"] == loss_at(built, arch, {})
    assert loss == log["loss"] == log["default_depth/loss"]
    assert set(reported_depths(model)) == {"smallest_depth", "default_depth", "largest_depth"}


def test_validation_at_mixed_depth_reports_one_run_of_each_block_and_all_passes():
    found = reported_depths(elastic("cycle", "--mixed-depth"))
    assert [list(depths.values()) for depths in found.values()] == [[2, 2], [4, 4], [4, 4]]


@pytest.mark.parametrize(
    ("arch", "flags", "message"),
    [
        ("ringformer_base", "--depth-range 4", "--depth-range=4: must be MIN-MAX, such as 1-6, or two of them"),
        ("universal_lm", "--depth-range 1-4,2-3", "--depth-range=1-4,2-3: must be MIN-MAX, such as 1-6$"),
        ("ringformer_base", "--depth-range 1-4,3-2", r"--depth-range=3-2: must be .* 1 <= MIN < MAX \(decoder\)"),
        ("universal", "--depth-range 1-6", r"--depth-range=1-6: MAX must be <= 4, because .* \(encoder\)"),
        ("ringformer_base", "--depth-warmup-updates 9", "--depth-warmup-updates=9: needs --depth-range or --pass"),
        ("ringformer_base", "--mixed-depth --pass-loss 1", "--mixed-depth: does not go with --pass-loss=1.0"),
        ("ringformer_base", "--decoder-layers 1 --mixed-depth", r"--mixed-depth: the order 0 has .* \(decoder\)"),
        ("sequence", "--pass-loss 1", "--pass-loss=1.0: no earlier pass is the end of a model of fewer"),
    ],
)
def test_wrong_depth_options_are_rejected(arch, flags, message):
    with pytest.raises(ValueError, match=message):
        elastic(arch, *flags.split())


# fairseq's own commands

DEPTH = ("--encoder-layers", "4", "--decoder-layers", "4", "--depth-range", "1-4")
LESS = ("--pass-loss", "0.5", "--weight-decay", "0.5", "--depth-warmup-updates", "6")
SHORT = ("--batch-size", "8", "--max-update", "8", "--save-interval-updates", "4")
FLAGS = (*DEPTH, *LESS, *SHORT)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_safely(folder / "checkpoint_last.pt")["model"]


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory) -> tuple[Path, str]:
    """Folder and log of a training of 8 updates."""
    folder = tmp_path_factory.mktemp("elastic")
    return folder, cli.train(corpus.data, folder, *FLAGS)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_weights(corpus, trained, tmp_path):
    folder, log = trained
    again = cli.train(corpus.data, tmp_path, *FLAGS, "--restore-file", folder / "checkpoint_1_4.pt")
    assert [line["loss"] for line in cli.logged(again)] == [line["loss"] for line in cli.logged(log)][4:]
    assert same_state(weights(tmp_path), weights(folder))


@pytest.mark.slow
def test_validation_at_the_smallest_depth_is_that_of_a_model_of_that_depth(corpus, trained):
    folder, log = trained
    (valid,) = (line for line in cli.logged(log, "valid") if line["valid_num_updates"] == 8)
    assert valid["valid_largest_depth_loss"] == valid["valid_default_depth_loss"] == valid["valid_loss"]
    command = ("fairseq-validate", corpus.data, *cli.HOST, "--batch-size", "8")
    overrides = "{'encoder_layers': 1, 'decoder_layers': 1}"
    found = cli.run(*command, "--path", folder / "checkpoint_last.pt", "--model-overrides", overrides)
    assert re.search(rf"\| loss {valid['valid_smallest_depth_loss']:g} ", found)
    assert valid["valid_smallest_depth_loss"] != valid["valid_loss"]


@pytest.mark.slow
def test_a_warm_up_that_never_ends_is_warned_of(corpus, trained, tmp_path):
    _, log = trained
    warning = "--depth-warmup-updates=6: not reached within the 2 updates of this training"
    assert "not reached" not in log
    assert warning in cli.train(corpus.data, tmp_path, *FLAGS, "--max-update", "2", "--disable-validation")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "backend"),
    [
        ((*DEPTH, *LESS), "pytorch_ddp"),
        ((*DEPTH, *LESS), "legacy_ddp"),
        ((*DEPTH, "--mixed-depth"), "pytorch_ddp"),
    ],
    ids=["drawn", "drawn, legacy", "mixed"],
)
def test_two_ranks_equal_one_process(corpus, backend, depth, tmp_path):
    """Losses and weights agree; gradients of zero would move and decay the weights of skipped passes."""
    flags = (*depth, *SHORT, *cli.WITHOUT_DROPOUT, "--disable-validation")
    one, two = tmp_path / "one", tmp_path / "two"
    alone = cli.train(corpus.data, one, *flags, "--update-freq", "2")
    together = cli.torchrun(2, *cli.train_command(corpus.data, two, *flags, "--ddp-backend", backend))
    assert [line["loss"] for line in cli.logged(together)] == pytest.approx(
        [line["loss"] for line in cli.logged(alone)], abs=0.0011
    )
    torch.testing.assert_close(weights(two), weights(one), rtol=1e-4, atol=1e-5)
