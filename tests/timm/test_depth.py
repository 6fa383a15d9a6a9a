"""Image models at another depth than the trained one: the output, the log, and what is rejected."""

import functools
import re

import pytest
import torch

from recurrence.depth import source_passes
from tests.support import vision
from tests.support.stacks import depth_log
from tests.support.vision import timm
from timm_plugin.recursive_deit import LOOP_ORDERS


def deeper(structure: str) -> dict:
    """What makes a small model deeper; for one whose blocks run once, with blocks that it does not have."""
    if vision.is_pyramid(structure):
        return dict(loops=5, groups=((1,),) * 3)
    return {"depth": dict(depth=5), "loops": dict(loops=3), None: dict(depth=4)}[vision.depth_option(structure)]


@vision.every_registered_structure
def test_image_models_run_deeper_from_a_checkpoint_path(structure, tmp_path, caplog):
    trained, path = vision.small(structure), tmp_path / "weights.pth"
    averaged = trained.state_dict()
    averaged.update({name: tensor.double() for name, tensor in averaged.items()})
    torch.save(averaged, path)
    changed = vision.arguments(structure, **deeper(structure))
    with vision.in_float64():
        create = functools.partial(timm.create_model, structure, checkpoint_path=str(path), **changed)
        if vision.depth_option(structure) is None:
            with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict"):
                create()
            return
        used = create().eval()
    logged = depth_log(caplog)
    assert logged
    assert all(re.search(r"runs at depth \d+ \([\d ]+\), trained at \d+ \([\d ]+\)$", line) for line in logged)
    for loop, before in zip(used.loops(), trained.loops()):
        assert loop.passes > before.passes
        for own, source in zip(loop.own or (), source_passes(before.order, loop.order)):
            expected = dict(before.own[source].named_parameters())
            assert all(torch.equal(tensor, expected[name]) for name, tensor in own.named_parameters())
    x = vision.images(used)
    assert used(x).isfinite().all()


def test_the_models_that_are_not_made_deeper():
    unshared = {name for name in vision.MODELS if vision.depth_option(name) is None}
    assert unshared == {name for name in vision.MODELS if name.startswith(("plain", "owf"))} | {"deit_108"}


def test_learned_levels_follow_the_rule(caplog):
    trained = vision.small("uit, learned levels")
    used = vision.small("uit, learned levels", depth=5, seed=1)
    used.load_state_dict(dict(trained.state_dict()))
    assert torch.equal(used.level_embed, trained.level_embed[[0, 1, 2, 2, 2]])
    assert "level_embed: runs at depth 5 (0 0 0 0 0), trained at 3 (0 0 0)" in caplog.text
    trained = vision.small("uit, learned levels", order=(0, 1, 0, 1), depth=2)
    used = vision.small("uit, learned levels", order=(0, 0, 1, 1), depth=2, seed=1)
    used.load_state_dict(trained.state_dict())
    assert torch.equal(used.level_embed, trained.level_embed[[0, 2, 1, 3]])


@pytest.mark.parametrize("levels", ["static", "learned"])
def test_a_shallow_branch_is_the_model_of_that_depth(levels):
    deep = vision.small("uit", order=(0, 0, 1, 1), depth=2, level_signal=levels)
    shallow = vision.small("uit", order=(0, 1), depth=2, level_signal=levels, seed=1)
    shallow.load_state_dict(deep.state_dict())
    with vision.at_passes(deep, 2):
        torch.testing.assert_close(deep(vision.images(deep)), shallow(vision.images(deep)), rtol=0, atol=0)


@pytest.mark.parametrize(("before", "after"), [*zip(LOOP_ORDERS, LOOP_ORDERS), ("internal", "reverse")])
@pytest.mark.parametrize("loops", [1, 2, 3])
def test_an_order_is_kept_without_metadata(before, after, loops, tmp_path):
    """timm's loader and safetensors drop the metadata, in which the order is also stored."""
    options = dict(loops=loops, loop_order=after, nll=True)  # passes own tensors, so that the order matters
    trained = vision.small("recursive_deit_tiny", loops=2, loop_order=before, nll=True)
    torch.save({"state_dict": trained.state_dict()}, tmp_path / "weights.pth")
    expected = vision.small("recursive_deit_tiny", seed=1, **options)
    expected.load_state_dict(trained.state_dict())
    found = vision.small("recursive_deit_tiny", seed=2, **options)
    timm.models.load_checkpoint(found, str(tmp_path / "weights.pth"))
    x = vision.images(found)
    assert torch.equal(found(x), expected(x))


@pytest.mark.parametrize(
    ("name", "trained", "other"),
    [
        ("uit", dict(depth=4, depth_range=(1, 4)), dict(depth=2)),
        ("recursive_deit_tiny", dict(loops=3, depth_range=(3, 9)), dict(loops=1)),
        ("sret_t", dict(mixed_depth=True), dict(loops=1)),
    ],
)
def test_a_saved_model_is_loaded_at_depths_that_its_training_could_not_have_drawn(name, trained, other, tmp_path):
    model = vision.small(name, **trained)
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    same, shorter = (timm.create_model(f"local-dir:{tmp_path}", pretrained=True, **more) for more in ({}, other))
    assert [bool(built.config.depth_range or built.config.mixed_depth) for built in (same, shorter)] == [True, False]


def test_a_pruned_model_keeps_the_levels_of_all_passes():
    whole, pruned = vision.small("uit"), vision.small("uit")
    pruned.prune_intermediate_layers([1], prune_head=False)
    x = vision.images(whole)
    for passes in (1, 2):
        with vision.at_passes(whole, passes), vision.at_passes(pruned, passes):
            torch.testing.assert_close(pruned(x), whole(x), rtol=0, atol=0)


def test_a_pruned_model_runs_no_pass_that_it_has_lost():
    body = vision.small("recursive_deit_tiny", features_only=True, out_indices=[0, 1, 2])  # the passes 0 0 1
    with vision.at_passes(body.model, 3), pytest.raises(ValueError, match="depth=3: needs passes that were pruned"):
        body(vision.images(body.model))  # at depth 3, the whole model runs 0 1 2
    model = vision.small("recursive_deit_tiny")
    with vision.at_passes(model, 3), pytest.raises(ValueError, match=r"passes=\(3,\): must be None; build the model"):
        model.prune_intermediate_layers([1])
