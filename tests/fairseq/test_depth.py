"""Another depth than the trained one: what a pass takes, what the log says, what is rejected; in fairseq and timm."""

import functools
import logging
import re

import pytest
import torch
from fairseq import checkpoint_utils
from torch import nn

from fairseq_plugin import average
from recurrence import order
from recurrence.block import Shape
from recurrence.depth import same_kind, source_passes
from recurrence.loop import Loop
from recurrence.papers.relaxed import relaxed
from recurrence.position import depth_time
from tests.support import language, models, vision
from tests.support.vision import timm


@pytest.mark.parametrize(
    ("trained", "used", "sources"),
    [
        ((0, 0, 0), (0, 0), (0, 1)),
        ((0, 0), (0, 0, 0, 0), (0, 1, 1, 1)),
        (order.cycle(2, 4), order.cycle(2, 6), (0, 1, 2, 3, 2, 3)),
        (order.sequence(2, 4), order.sequence(2, 2), (0, 2)),
        (order.sequence(2, 4), order.sequence(2, 6), (0, 1, 1, 2, 3, 3)),
        (order.cycle_rev(2, 4), order.cycle(2, 4), (0, 1, 3, 2)),
    ],
)
def test_a_run_takes_what_the_same_run_of_its_block_had(trained, used, sources):
    assert source_passes(trained, used) == sources


@pytest.mark.parametrize(
    ("which", "passes", "expected"),
    [
        ((0, 0, 0), 5, (0,) * 5),
        ((0, 0, 1, 1), 6, (0, 0, 0, 1, 1, 1)),
        ((0, 1, 0, 1), 6, (0, 1, 0, 1, 0, 1)),
        ((0, 1, 1, 0), 6, (0, 1, 0, 1, 1, 0)),
        ((0, 0, 1, 1), 5, None),  # sequence would store a third block
        ((0, 1, 0, 1), 1, None),
        ((0, 0, 0, 1), 8, None),  # a reuse map
    ],
)
def test_orders_of_the_same_kind(which, passes, expected):
    assert same_kind(which, passes) == expected


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What loading at another depth has said."""
    return [record.getMessage() for record in caplog.records if record.name == "recurrence.depth"]


def stack(which: order.Order, seed: int = 0) -> Loop:
    torch.manual_seed(seed)
    loop = relaxed(Shape(8, 11, 2), which, 2)
    return models.randomise(loop, seed)


@pytest.mark.parametrize("noted", [True, False])
def test_own_parameters_follow_their_blocks(noted, caplog):
    trained, used = stack(order.cycle(2, 4)), stack(order.cycle(2, 6), seed=1)
    weights = trained.state_dict() if noted else dict(trained.state_dict())
    used.load_state_dict(weights)
    for own, source in zip(used.own, (0, 1, 2, 3, 2, 3)):
        expected = trained.own[source].state_dict()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in own.state_dict().items())
    assert told(caplog) == [": runs 6 passes (0 1 0 1 0 1), trained with 4 (0 1 0 1)"]


def test_a_saved_state_dict_notes_its_order(tmp_path):
    torch.save(stack((0, 1, 1)).state_dict(), tmp_path / "loop.pt")
    loaded = torch.load(tmp_path / "loop.pt", weights_only=True)
    assert loaded._metadata[""]["order"] == (0, 1, 1)
    stack((0, 1, 1), seed=1).load_state_dict(loaded)


def test_an_order_among_the_tensors_outlives_filters_and_truncation(caplog):
    trained, used = (Loop([nn.Linear(2, 2), nn.Linear(2, 2)], which) for which in ((0, 1, 0, 1), (0, 1)))
    for loop in (trained, used):
        loop.note_order()
    used.load_state_dict({key: tensor.clone() for key, tensor in trained.state_dict().items()})
    assert caplog.messages == [": runs 2 passes (0 1), trained with 4 (0 1 0 1)"]
    assert used.state_dict()["noted"].tolist() == [0, 1]
    trained.truncate(3)
    assert trained.state_dict()["noted"].tolist() == [0, 1, 0]
    caplog.clear()
    without = {key: tensor for key, tensor in trained.state_dict().items() if key != "noted"}
    used.load_state_dict(without)  # a file from before
    assert not caplog.messages


# fairseq

UNSHARED = ("vanilla", "one_wide_ffn", "takase_vanilla", "s2t_vanilla")
DEEPER = ["--encoder-layers", "6", "--decoder-layers", "8"]


def deeper(arch: str) -> list[str]:
    return [*DEEPER[:2], "--decoder-layers", "6", "--block-loops", "3"] if arch.startswith("recursive") else DEEPER


@models.every_model_with_encoder
def test_models_of_translation_and_speech_run_deeper(arch, caplog):
    trained = models.tiny(arch)
    weights, used = trained.state_dict(), models.tiny(arch, *deeper(arch), seed=1)
    if arch.startswith(UNSHARED):
        with pytest.raises(RuntimeError, match=r"encoder.loop: the checkpoint stores \d blocks, this depth runs \d"):
            used.load_state_dict(weights)
        return
    used.load_state_dict(weights)
    assert [re.sub(r" \(.*?\)", "", line) for line in told(caplog)] == [
        f"{side}.loop: runs {loop.passes} passes, trained with 4"
        for side, loop in zip(models.SIDES, models.loops(used))
    ]
    expected, batch = by_hand(trained, used), models.inputs(arch)
    torch.testing.assert_close(used(*batch)[0], expected(*batch)[0], rtol=0, atol=0)
    caplog.clear()
    models.tiny(arch, seed=1).load_state_dict(weights)
    assert not caplog.records


def by_hand(trained: nn.Module, used: nn.Module) -> nn.Module:
    """The trained model, its blocks run in another order, each run with what the rule gives it."""
    for name in models.SIDES:
        side, wanted = getattr(trained, name), getattr(used, name).loop.order
        own = [side.loop.own[source] for source in source_passes(side.loop.order, wanted)]
        side.loop = Loop(side.loop.blocks, wanted, own).eval()
    return trained


DEEPER_LANGUAGE = [arch for arch in language.ARCHS if arch.startswith(("cycle", "sequence", "uni"))]


@pytest.mark.parametrize(
    ("arch", "flags", "passes"),
    [
        ("ilr_small", ["--reuse-map", "3,1,2"], 6),
        ("ilr_large", ["--reuse-map", "1,1,1"], 3),
        *((arch, ["--decoder-layers", "6"], 6) for arch in DEEPER_LANGUAGE),
    ],
)
def test_language_models_run_deeper(arch, flags, passes, caplog):
    trained, used = models.tiny(arch), models.tiny(arch, *flags, seed=1)
    used.load_state_dict(trained.state_dict())
    (line,) = told(caplog)
    assert re.match(rf"decoder.stack.loop: runs {passes} passes \(.*\), trained with \d \(", line)
    stored, loop = trained.decoder.stack, used.decoder.stack.loop
    tokens = language.texts()
    stored.loop = Loop(stored.loop.blocks, loop.order, loop.own, inject=stored.loop.inject).eval()
    torch.testing.assert_close(used(tokens)[0], trained(tokens)[0], rtol=0, atol=0)


@pytest.mark.slow
def test_model_overrides_change_the_depth_of_a_checkpoint(trained, corpus, caplog, tmp_path):
    """What `--model-overrides` does, and the averaged file too."""
    average.main(["--inputs", str(trained.folder), "--num-epoch-checkpoints", "2", "--output", str(tmp_path / "a.pt")])
    for path in (trained.folder / "checkpoint_last.pt", tmp_path / "a.pt"):
        caplog.clear()
        overrides = dict(data=str(corpus.data), encoder_layers=3, decoder_layers=1)
        with caplog.at_level(logging.WARNING, "recurrence.depth"):
            (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
        assert [loop.passes for loop in models.loops(model)] == [3, 1]
        assert told(caplog) == [
            "encoder.loop: runs 3 passes (0 0 0), trained with 2 (0 0)",
            "decoder.loop: runs 1 passes (0), trained with 2 (0 0)",
        ]


# timm

LOOPS = {
    **{name: dict(depth=5) for name in vision.MODELS if name.startswith(("ringformer", "uit"))},
    **{name: dict(loops=3) for name in vision.MODELS if name.startswith("recursive") or name == "deit_108_mixed"},
    **{name: dict(loops=3, groups=((1, 1, 1),) * 3) for name in vision.MODELS if name.startswith("sret")},
}


@vision.every_registered_structure
def test_image_models_run_deeper_from_a_checkpoint_path(structure, tmp_path, caplog):
    trained, path = vision.small(structure), tmp_path / "weights.pth"
    torch.save(trained.state_dict(), path)
    changed = vision.arguments(structure, **LOOPS.get(structure, dict(depth=4)))
    with vision.in_float64():
        create = functools.partial(timm.create_model, structure, checkpoint_path=str(path), **changed)
        if structure not in LOOPS:
            with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict"):
                create()
            return
        used = create().eval()
    logged = told(caplog)
    assert logged
    assert all(re.search(r"runs \d+ passes \(.*\), trained with \d+ \(", line) for line in logged)
    for loop, before in zip(used.loops(), trained.loops()):
        assert loop.passes > before.passes
        for own, source in zip(loop.own or (), source_passes(before.order, loop.order)):
            expected = dict(before.own[source].named_parameters())
            assert all(torch.equal(tensor, expected[name]) for name, tensor in own.named_parameters())
    x = vision.images(used)
    if structure.startswith("uit"):
        torch.testing.assert_close(used(x), uit(trained, 5, x), rtol=0, atol=1e-12)
    assert used(x).isfinite().all()


def uit(model: nn.Module, passes: int, x: torch.Tensor) -> torch.Tensor:
    """The Universal Transformer, pass by pass."""
    y = model.embed(x)
    for depth in depth_time(passes, model.num_features):
        y = model.loop.blocks[0](y + model.pos_embed + depth, model.loop.own[0])
    return model.forward_head(model.norm(y))


def test_every_image_model_has_its_rule():
    unshared = {name for name in vision.MODELS if name not in LOOPS}
    assert unshared == {name for name in vision.MODELS if name.startswith(("plain", "owf"))} | {"deit_108"}


def test_learned_levels_follow_the_rule(caplog):
    trained = vision.small("uit, learned levels")
    used = vision.small("uit, learned levels", depth=5, seed=1)
    used.load_state_dict(dict(trained.state_dict()))
    assert torch.equal(used.level_embed, trained.level_embed[[0, 1, 2, 2, 2]])
    assert "level_embed: runs 5 passes (0 0 0 0 0), trained with 3 (0 0 0)" in caplog.text
