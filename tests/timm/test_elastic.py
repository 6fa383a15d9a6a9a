"""Elastic depth of image models: which have it, that a depth is the model of that depth, mixed depth, the losses."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support import vision
from timm_plugin.elastic import DepthLoss


def changes(structure: str) -> tuple[dict, tuple[int, int]]:
    """How a small model of several passes is built, and a range of them."""
    if vision.is_pyramid(structure):
        return dict(loops=3, groups=((1, 1, 1),) * 3), (1, 4)
    if vision.depth_option(structure) == "depth":
        return dict(depth=4), (1, 4 if vision.fresh(structure).depth_rules().get("prefix_only") else 6)
    return dict(depth=2, loops=3), (2, 8)


def at(structure: str, depth: int) -> dict:
    """What builds it at a depth."""
    if vision.is_pyramid(structure):
        return dict(loops=depth, groups=((1,) * depth,) * 3)
    return dict(depth=depth) if vision.depth_option(structure) == "depth" else dict(depth=2, loops=depth // 2)


@vision.every_registered_structure
def test_every_model_is_elastic_or_rejected_by_name(structure):
    if vision.depth_option(structure) is None:
        with pytest.raises(
            ValueError, match=r"depth_range=1-3: .*(needs a block that runs more than once|cannot run at depth 1)"
        ):
            vision.fresh(structure, depth_range=(1, 3))
        return
    options, depth_range = changes(structure)
    model = vision.small(structure, **options, depth_range=depth_range)
    unit = [len(loop.blocks) if vision.is_pyramid(structure) else 1 for loop in model.loops()]
    x = vision.images(model)
    for depth in (depth // unit[0] for depth in model.training_depths[0].drawn):
        built = vision.small(structure, seed=1, **{**options, **at(structure, depth), "mixed_depth": False})
        built.load_state_dict(model.state_dict())
        with vision.at_passes(model, *(depth * passes for passes in unit)):
            torch.testing.assert_close(model(x), built(x), rtol=0, atol=1e-12)
    if model.supervises_depths:
        model.set_deep_supervision()
    drawn = set()
    for update in range(12):
        model.train().set_num_updates(update)
        depths = {depth // passes for depth, passes in zip(model.depths(), unit)}
        assert len(depths) == 1  # of all stages
        drawn |= depths
    assert len(drawn) > 1
    assert model.eval().depths() == [None] * len(unit)


def test_learned_levels_serve_more_passes_than_the_model_has():
    deep = vision.small("uit, learned levels", depth_range=(1, 5), pass_loss=0.5)
    deep.set_deep_supervision()
    built = vision.small("uit, learned levels", seed=1, depth=5)
    built.load_state_dict(deep.state_dict())
    x = vision.images(deep)
    with vision.at_passes(deep, 5):
        torch.testing.assert_close(deep(x), built(x), rtol=0, atol=1e-12)
    drawn = set()
    for update in range(12):
        deep.train().set_num_updates(update)
        (depth,) = deep.depths()
        drawn.add(depth)
        last, *earlier = deep(x)
        assert len(earlier) == depth - 1
        if depth == 5:
            torch.testing.assert_close(last, built(x), rtol=0, atol=1e-12)
    assert max(drawn) == 5


def test_one_loop_of_sret_takes_the_slices_of_the_first_run():
    model = vision.small("sret_t", depth_range=(1, 2))
    single = vision.small("sret_t", seed=1, loops=1, groups=tuple((first,) for first, _ in model.config.groups))
    single.load_state_dict(model.state_dict())
    x = vision.images(model)
    with vision.at_passes(model, *(len(loop.blocks) for loop in model.loops())):
        assert torch.equal(model(x), single(x))


@vision.every_registered_structure
def test_what_is_left_of_a_pruned_model_draws_no_pass_that_it_lacks(structure):
    if vision.depth_option(structure) is None:
        return
    options, depth_range = changes(structure)
    model = vision.fresh(structure, **options, depth_range=depth_range)
    model.prune_intermediate_layers([0])
    for update in range(12):
        model.set_num_updates(update)
        depths = model.depths()
        assert len(depths) == len(model.loops())
        assert vision.is_pyramid(structure) or depths == [None]


@pytest.mark.parametrize(("structure", "step"), [("ringformer_vit", 1), ("uit", 1), ("deit, external loops", 3)])
def test_pass_loss_is_the_mean_over_models_of_fewer_passes(structure, step):
    model = vision.small(structure, pass_loss=0.5)
    model.set_deep_supervision()
    assert torch.is_tensor(model(vision.images(model)))
    output = model.train()(vision.images(model))
    ends = range(len(model.loop.blocks), model.loop.passes, step)  # of the whole stack, where that repeats
    expected = []
    for depth in (model.loop.passes, *ends):
        with vision.at_passes(model, depth):
            expected.append(model.eval()(vision.images(model)))
    assert len(expected) > 1
    torch.testing.assert_close(list(output), expected, rtol=0, atol=1e-12)
    target = torch.tensor([0, 3])
    last, *earlier = (F.cross_entropy(logits, target) for logits in expected)
    loss = DepthLoss(nn.CrossEntropyLoss(), 0.5)
    torch.testing.assert_close(loss(output, target), last + 0.5 * sum(earlier) / len(earlier))
    assert loss(expected[0], target) == last


def test_losses_of_earlier_passes_begin_one_after_the_other():
    model = vision.fresh("uit", pass_loss=0.5, depth_warmup_updates=100)
    model.set_deep_supervision()
    images, outputs = vision.images(model), []
    for update in (0, 50, 100):
        model.set_num_updates(update)
        outputs.append(len(model(images)))
    assert outputs == [1, 2, 3]


# Training at two depths in every update


MIXED = ("sret_108_mixed", "deit_108_mixed")


def mixed(structure: str, **options) -> nn.Module:
    """In training mode; without random slices, so that two calls can be compared."""
    model = vision.small(structure, **{**changes(structure)[0], "mixed_depth": True, **options})
    if model.config.mixed_depth:
        model.set_deep_supervision()
    return model.train()


def test_only_the_models_named_so_train_at_two_depths_by_default():
    assert {name for name in vision.MODELS if vision.fresh(name).config.mixed_depth} == set(MIXED)


def test_without_deep_supervision_all_passes_are_trained():
    """As timm's scripts do, which tell no model the number of the update."""
    with pytest.warns(UserWarning, match="^mixed_depth=True: without timm_plugin.task.DeepSupervisionTask"):
        model = vision.small("ringformer_vit", depth=4, mixed_depth=True, depth_range=(1, 3)).train()
    assert model.depths() == [None]


@vision.every_registered_structure
def test_both_depths_are_trained_or_the_option_is_rejected(structure):
    if vision.depth_option(structure) is None:
        with pytest.raises(ValueError, match="mixed_depth=True: the order .* has no shorter form"):
            vision.fresh(structure, mixed_depth=True)
        return
    model = mixed(structure)
    x, target = vision.images(model), torch.tensor([0, 3])
    deep, shallow = model(x)
    once = model.encode(model.embed(x), [len(loop.blocks) for loop in model.loops()])
    torch.testing.assert_close(shallow, model.forward_head(once), rtol=0, atol=1e-12)
    torch.testing.assert_close(deep, model.forward_head(model.forward_features(x)), rtol=0, atol=1e-12)
    assert not torch.allclose(deep, shallow)
    loss = DepthLoss(nn.CrossEntropyLoss())([deep, shallow], target)
    torch.testing.assert_close(loss, (F.cross_entropy(deep, target) + F.cross_entropy(shallow, target)) / 2)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert torch.is_tensor(model.eval()(x))
