"""Elastic depth in fairseq: which architectures support it, its options, its draws and its losses."""

from argparse import Namespace
from contextlib import nullcontext

import pytest
import torch
from fairseq import options
from fairseq.criterions import FairseqCriterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from torch import Tensor, nn

from fairseq_plugin import elastic
from fairseq_plugin.elastic import ElasticCrossEntropy, at_depths, loops_by_side, trained_with
from tests.support import cli, language, models
from tests.support.elastic import criterion_of, run_by

UNSHARED = ("vanilla", "one_wide_ffn", "takase_vanilla", "s2t_vanilla", "recurrent_lm")
NO_FEWER = "ilr"  # of a reuse map


def is_elastic(arch: str) -> bool:
    return not arch.startswith((*UNSHARED, NO_FEWER))


every_elastic_model = pytest.mark.parametrize("arch", [arch for arch in models.REPRESENTS if is_elastic(arch)])


def at(arch: str, depth: int) -> list[str]:
    """Flags that build an architecture at a depth."""
    flags = ["--decoder-layers", str(depth)]
    if arch not in language.ARCHS:
        flags += ["--encoder-layers", str(depth)]
    return flags + (["--block-loops", str(depth // 2)] if arch.startswith("recursive") else [])


def ends(arch: str) -> tuple[int, int]:
    """The smallest depth of its tiny model, and one beyond the default if it allows that."""
    blocks = {len(loop.blocks) for loop in models.loops(models.tiny(arch))}
    return max(blocks), 4 if arch in models.ARCHS and models.has_static_levels(arch) else 6


def range_of(arch: str) -> str:
    """The option that draws from all its depths."""
    return "-".join(map(str, ends(arch)))


def depths(arch: str) -> list[int]:
    smallest, largest = ends(arch)
    even = arch.startswith("recursive") or "sequence" in arch
    return [depth for depth in range(smallest, largest + 1) if not even or depth % 2 == 0]


def both(model: nn.Module, depth: int) -> dict[str, int]:
    """The same depth for each of a model's stacks."""
    return dict.fromkeys(loops_by_side(model), depth)


# The options


def test_an_option_of_depth_beside_another_criterion_names_its_own(capsys):
    words = ["data", "--task", "translation", "--arch", "cycle", "--depth-range", "1-4"]
    with pytest.raises(SystemExit, match="2"):
        options.parse_args_and_arch(options.get_training_parser(), words)
    assert "--depth-range is an option of --criterion elastic_cross_entropy" in capsys.readouterr().err


@pytest.mark.parametrize("criterion", ["elastic_cross_entropy", "answer_cross_entropy"])
@pytest.mark.parametrize("arch", ["ringformer_base", "transformer"])
def test_the_criterion_takes_them(arch, criterion):
    words = ["data", "--arch", arch, "--optimizer", "adam", "--depth-range", "1-4", "--mixed-depth", "--pass-loss", "1"]
    args = options.parse_args_and_arch(options.get_training_parser(), [*words, "--criterion", criterion])
    assert (args.depth_range, args.mixed_depth, args.pass_loss, args.depth_warmup_updates) == ("1-4", True, 1.0, 0)


@pytest.mark.parametrize("arch", [arch for arch in models.REPRESENTS if not is_elastic(arch)])
def test_a_depth_range_is_rejected_for_models_without_a_shorter_form(arch):
    reason = r".*(needs a block that runs more than once|cannot run at depth 2).*\((encoder|decoder)\)"
    if arch == "recurrent_lm":
        reason = "needs a model that loops over depth"
    with pytest.raises(ValueError, match=rf"--depth-range=2-4: {reason}"):
        criterion(arch, depth_range="2-4").training_depths(models.tiny(arch))


@pytest.mark.parametrize(
    ("arch", "flags", "task"),
    [("transformer_tiny", (), "ringformer_base"), ("recurrent_lm", ("--decoder-layers", "1"), "recurrent_lm")],
)
def test_a_model_without_loops_over_depth_is_rejected(arch, flags, task):
    model = models.build(arch, *flags, on=models.task_of(task))
    with pytest.raises(ValueError, match="^--depth-range=1-2: needs a model that loops over depth$"):
        criterion(task, depth_range="1-2")(model, sample(task))


@pytest.mark.parametrize(
    ("arch", "given", "message"),
    [
        ("ringformer_base", dict(depth_range="4"), "--depth-range=4: must be MIN-MAX, such as 1-6, or two of them"),
        ("universal_lm", dict(depth_range="1-4,2-3"), "--depth-range=1-4,2-3: must be MIN-MAX, such as 1-6$"),
        ("ringformer_base", dict(depth_range="1-4,3-2"), r"--depth-range=3-2: must be .* 1 <= MIN < MAX \(decoder\)"),
        ("universal", dict(depth_range="1-6"), r"--depth-range=1-6: MAX must be <= 4, because .* \(encoder\)"),
        ("cycle", dict(depth_warmup_updates=9), "--depth-warmup-updates=9: needs --depth-range or --pass-loss"),
        ("cycle", dict(depth_range="2-4", depth_warmup_updates=-1), "--depth-warmup-updates=-1: must be >= 1"),
        ("cycle", dict(pass_loss=-0.5), "--pass-loss=-0.5: must be > 0"),
        ("cycle", dict(mixed_depth=True, pass_loss=1.0), "--mixed-depth: conflicts with --pass-loss=1.0"),
        ("takase_vanilla", dict(mixed_depth=True), r"--mixed-depth: the order 0 1 2 3 has no .* \(encoder\)"),
        ("sequence", dict(pass_loss=1.0), "--pass-loss=1.0: needs an earlier pass at which a shallower model"),
    ],
)
def test_wrong_options_are_rejected(arch, given, message):
    with pytest.raises(ValueError, match=message):
        criterion(arch, **given).training_depths(models.tiny(arch))


OPTIMIZER = "its optimizer moves and decays all parameters at every update"


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_an_optimizer_that_moves_idle_passes_is_rejected(kind):
    model = models.tiny("ringformer_base")
    with pytest.raises(ValueError, match=f"--{kind}: {OPTIMIZER}.*; must be --amp$"):
        criterion("ringformer_base", depth_range="1-4", **{kind: True}).training_depths(model)
    for given in ({f"memory_efficient_{kind}": True, "depth_range": "1-4"}, {"mixed_depth": True}):
        criterion("ringformer_base", **{kind: True}, **given).training_depths(model)
    criterion("universal", depth_range="1-4", **{kind: True}).training_depths(models.tiny("universal"))


@pytest.mark.parametrize(
    ("of", "given", "message"),
    [
        ("cycle_lm", dict(mixed_depth=True), "--ddp-backend=pytorch_ddp: must be legacy_ddp with an adaptive softmax"),
        ("cycle_lm", dict(mixed_depth=True, ddp_backend="legacy_ddp"), None),
        # Only the decoder leaves out passes.
        ("ringformer_base", dict(depth_range="4-6,1-4"), "--find-unused-parameters: must be given in several"),
        ("ringformer_base", dict(depth_range="4-6,1-4", find_unused_parameters=True), None),
        ("ringformer_base", dict(depth_range="4-6"), None),
        ("ringformer_base", dict(depth_range="1-4", ddp_backend="legacy_ddp"), "--ddp-backend=legacy_ddp: gives zero"),
        ("ringformer_base", dict(mixed_depth=True, find_unused_parameters=True), "--mixed-depth: its two runs"),
    ],
)
def test_several_ranks_need_a_backend_that_fits(of, given, message, monkeypatch):
    monkeypatch.setattr(elastic, "get_global_world_size", lambda: 2)
    loss, model = criterion(of, **given), models.tiny(of)
    with pytest.raises(ValueError, match=f"^{message}") if message else nullcontext():
        loss.training_depths(model)


def test_a_checkpoint_says_at_which_depths_it_was_trained():
    new = Namespace(criterion=Namespace(depth_range="1-4", mixed_depth=True, depth_warmup_updates=0), model=None)
    assert trained_with(new) == ["--depth-range=1-4", "--mixed-depth"]
    saved = models.saved_options("ringformer_base")
    assert trained_with(Namespace(criterion=None, model=saved)) == []
    old = {"depth_range": "1-4", "depth_apart": True, "depth_warmup_updates": 4, "mixed_depth": None}
    vars(saved).update(old, pass_loss=0.5, loop_after_updates=3)
    assert trained_with(Namespace(criterion=None, model=saved)) == [
        *("--depth-range=1-4", "--depth-warmup-updates=4", "--pass-loss=0.5")
    ]
    built = models.task_of("ringformer_base").build_model(saved)  # as earlier versions saved them
    assert built.state_dict().keys() == models.tiny("ringformer_base").state_dict().keys()


# Depths


@pytest.mark.parametrize(
    ("arch", "flags"),
    [*((arch, []) for arch in models.REPRESENTS if is_elastic(arch)), ("sequence", ["--position", "relative"])],
)
def test_every_depth_equals_the_model_of_that_depth(arch, flags):
    model, batch = models.tiny(arch, *flags), models.inputs(arch)
    found = criterion(arch, depth_range=range_of(arch)).training_depths(model)
    assert {depth.drawn for depth in found.values()} == {tuple(depths(arch))}
    for depth in depths(arch):
        built = models.tiny(arch, *at(arch, depth), *flags, seed=1)
        built.load_state_dict(model.state_dict())
        with torch.no_grad(), at_depths(model, both(model, depth)):
            logits = built(*batch)[0]
            torch.testing.assert_close(model(*batch)[0], logits, rtol=0, atol=0)
            torch.testing.assert_close(models.read_in_steps(model, batch), models.read_in_steps(built, batch))


def drawn(arch: str, depth_range: str, updates: int, *flags: str) -> list[tuple[int, ...]]:
    """The passes of each stack at each update."""
    model, loss = models.tiny(arch, *flags).train(), criterion(arch, depth_range=depth_range)
    calls = run_by(model)
    for update in range(updates):
        model.set_num_updates(update)
        loss(model, sample(arch))
    return calls


@every_elastic_model
def test_updates_draw_depths(arch):
    found = drawn(arch, range_of(arch), updates=12)
    assert len(set(found)) > 1
    assert all(len(set(passes)) == 1 for passes in found)  # the same for encoder and decoder


def test_stacks_of_two_depths_are_drawn_together():
    found = drawn("cycle", "4-8,2-4", 60, "--encoder-layers", "8")
    assert set(found) == {(4, 2), (5, 2), (5, 3), (6, 3), (7, 3), (7, 4), (8, 4)}


def test_the_seed_of_the_training_is_that_of_the_draws():
    found = criterion("cycle", depth_range="2-4", seed=7).training_depths(models.tiny("cycle"))
    assert [depth.seed for depth in found.values()] == [7, 7]


def test_training_must_tell_the_number_of_the_update():
    with pytest.raises(RuntimeError, match="call model.set_num_updates"):
        criterion("cycle", depth_range="2-4")(models.tiny("cycle").train(), sample("cycle"))


def test_contexts_of_a_depth_are_nested():
    model = models.tiny("cycle")
    with at_depths(model, both(model, 3)):
        with at_depths(model, {"decoder": 1}):
            assert (model.encoder.passes, model.decoder.passes) == (3, 1)
            with pytest.raises(ValueError, match="depth=1: the order 0 1 0 1 cannot run at this depth"):
                model(*models.inputs("cycle"))
        assert (model.encoder.passes, model.decoder.passes) == (3, 3)
    assert (model.encoder.passes, model.decoder.passes) == (None, None)


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


def adapts(arch: str) -> bool:
    """Whether it has an adaptive softmax, which its own loss trains, without label smoothing."""
    return arch.endswith("_lm") and arch != "recurrent_lm"


def criterion(arch: str, **given) -> ElasticCrossEntropy:
    smoothing = 0.0 if adapts(arch) else 0.1
    return criterion_of(models.task_of(arch), label_smoothing=smoothing, **given)


def fairseqs_own(arch: str) -> FairseqCriterion:
    kind, rest = (AdaptiveLoss, ()) if adapts(arch) else (LabelSmoothedCrossEntropyCriterion, (0.1,))
    return kind(models.task_of(arch), False, *rest)


def loss_at(model: nn.Module, arch: str, depths: dict[str, int]) -> Tensor:
    """The loss of the model that runs at these depths, by fairseq's own criterion."""
    with at_depths(model, depths):
        return fairseqs_own(arch)(model, sample(arch))[0].sum()


def expect_loss(loss: ElasticCrossEntropy, model: nn.Module, arch: str, expected: Tensor, reported: Tensor) -> None:
    """Asserts that elastic depth trains with this loss and its gradients, and reports that of all passes."""
    batch = sample(arch)
    found, size, log = loss(model, batch)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(log["loss"], reported.detach())
    assert size == batch["ntokens"]
    gradients = (torch.autograd.grad(each, list(model.parameters())) for each in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def in_training(arch: str, *flags: str) -> nn.Module:
    """A tiny model before its first update, without dropout."""
    adaptive = ("--adaptive-softmax-dropout", "0") if adapts(arch) else ()
    model = models.tiny(arch, *cli.WITHOUT_DROPOUT, *adaptive, *flags).train()
    model.set_num_updates(0)
    return model


@pytest.mark.parametrize("arch", ["ringformer_base", "cycle_lm"])
def test_without_options_it_is_fairseqs_own(arch):
    model = in_training(arch)
    torch.testing.assert_close(criterion(arch)(model, sample(arch))[0], loss_at(model, arch, {}))


def test_every_symbol_of_an_adaptive_softmax_counts():
    """Each band numbers its symbols anew, and the number of the padding is ignored only in the first."""
    model, batch, loss = in_training("cycle_lm"), sample("cycle_lm"), criterion("cycle_lm")
    scores = model.get_normalized_probs(model(**batch["net_input"]), log_probs=True)
    for symbol in set(range(scores.size(-1))) - {models.task_of("cycle_lm").dictionary.pad()}:
        target = torch.full_like(batch["target"], symbol)
        torch.testing.assert_close(loss(model, {**batch, "target": target})[0], -scores[..., symbol].sum())


def test_an_adaptive_softmax_is_summed_in_float32():
    model = in_training("cycle_lm").half()
    assert criterion("cycle_lm")(model, sample("cycle_lm"))[0].dtype == torch.float32


@pytest.mark.parametrize("given", [{"label_smoothing": 0.1}, {"ignore_prefix_size": 2}], ids=str)
def test_an_adaptive_softmax_has_a_plain_loss(given):
    ((name, value),) = given.items()
    wanted = criterion_of(models.task_of("cycle_lm"), **given)
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')}={value}: conflicts with an adaptive softmax"):
        wanted(in_training("cycle_lm"), sample("cycle_lm"))


@pytest.mark.parametrize(
    ("arch", "flags", "step"),
    [
        ("ringformer_base", [], 1),
        ("cycle", [], 1),
        ("universal", [], 1),
        ("s2t_universal", [], 1),
        ("cycle_lm", [], 1),
        ("ilr_small", ["--block-loops", "3", "--inject-embedding"], 3),  # which repeats the entire stack
    ],
)
def test_pass_loss_is_the_mean_over_models_whose_decoder_ends_earlier(arch, flags, step):
    model = in_training(arch, *flags)
    decoder = loops_by_side(model)["decoder"]
    ends = range(len(decoder.blocks), decoder.passes + 1, step)
    *earlier, whole = (loss_at(model, arch, {"decoder": depth}) for depth in ends)
    expected = whole + 0.5 * sum(earlier) / len(earlier)
    expect_loss(criterion(arch, pass_loss=0.5), model, arch, expected, whole)


@pytest.mark.parametrize("depth_range", ["3-6", None])
def test_a_loop_with_injected_inputs_is_built_at_its_smallest_depth(depth_range, caplog):
    arch, loops = "ilr_small", ("--inject-embedding", "--inject-adapter", "--block-loops")
    once = models.options(arch, *models.tiny_flags(arch, *loops, "1"))
    once.depth_range = depth_range  # fairseq-train gives the model all options, and a checkpoint has them
    built, model = models.task_of(arch).build_model(once).double().eval(), models.tiny(arch, *loops, "2")
    assert ("--inject-embedding: has no effect" in caplog.text) == (depth_range is None)
    built.load_state_dict(model.state_dict())
    assert loss_at(built, arch, {}) == loss_at(model, arch, {"decoder": 3})


@every_elastic_model
def test_mixed_depth_is_the_mean_over_two_models(arch):
    model = in_training(arch)
    once = {side: len(loop.blocks) for side, loop in loops_by_side(model).items()}
    deep, shallow = loss_at(model, arch, {}), loss_at(model, arch, once)
    expect_loss(criterion(arch, mixed_depth=True), model, arch, (deep + shallow) / 2, deep)


def validated(model: nn.Module, arch: str, **given) -> tuple[Tensor, dict]:
    """The loss of a validation after an update, and its log."""
    loss = criterion(arch, **given)
    model.train().set_num_updates(0)
    loss(model, sample(arch))
    with torch.no_grad():
        found, _, log = loss(model.eval(), sample(arch))
    return found, log


def test_validation_reports_the_loss_at_three_depths():
    arch = "ringformer_base"
    model = models.tiny(arch)
    loss, log = validated(model, arch, depth_range="1-6")
    for name, depth in (("smallest_depth", 1), ("default_depth", 4), ("largest_depth", 6)):
        built = models.tiny(arch, *at(arch, depth), seed=1)
        built.load_state_dict(model.state_dict())
        torch.testing.assert_close(log[f"{name}_loss"], loss_at(built, arch, {}))
    assert loss == log["loss"] == log["default_depth_loss"]


def test_validation_at_mixed_depth_reports_one_run_of_each_block_and_all_passes():
    loss = criterion("cycle", mixed_depth=True)
    loss.depths = loss.training_depths(models.tiny("cycle"))
    assert list(loss.reported_depths().values()) == [[2, 2], [4, 4], [4, 4]]


@pytest.mark.parametrize(("updates", "warns"), [(0, False), (6, True), (7, False)])  # 0 for no limit
def test_a_warm_up_as_long_as_the_training_is_warned_of(caplog, updates, warns):
    loss = criterion("universal_tiny", depth_range="1-4", depth_warmup_updates=6, max_update=updates)
    loss.training_depths(models.tiny("universal_tiny"))
    assert ("--depth-warmup-updates=6: not reached within the 6 updates" in caplog.text) == warns


def test_the_losses_of_earlier_passes_ask_nothing_of_the_encoder():
    model = models.tiny("ringformer_tiny", "--encoder-layers", "1")
    depths = criterion("ringformer_tiny", pass_loss=0.5).training_depths(model)
    assert depths["decoder"].stops(0) == list(range(1, len(depths["decoder"].order)))


def test_before_any_update_a_validation_is_plain():
    """fairseq-validate may run a model at a depth to which the options do not apply."""
    _, _, log = criterion("vanilla_tiny", depth_range="1-6")(models.tiny("vanilla_tiny"), sample("vanilla_tiny"))
    assert not any("depth" in key for key in log)


def test_the_loss_of_a_batch_may_be_divided_by_its_sentences():
    batch = sample("cycle")
    for given in ({}, {"mixed_depth": True}):
        assert criterion("cycle", sentence_avg=True, **given)(in_training("cycle"), batch)[1] == len(batch["target"])
