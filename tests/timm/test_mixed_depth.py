"""Training at two depths in every update: on the same weights, all passes and fewer; inference runs all."""

import pytest
import torch
import torch.nn.functional as F

from recurrence.elastic import at_depths
from tests.support import vision
from tests.timm.test_elastic import changes
from timm_plugin.elastic import MixedDepthLoss

MIXED = ("sret_108_mixed", "deit_108_mixed")


def small(structure: str, **options):
    """In training mode; without random slices, so that two calls can be compared."""
    model = vision.small(structure, **{**changes(structure)[0], "mixed_depth": True, **options})
    if model.config.mixed_depth:
        model.set_deep_supervision()
    return model.train()


def test_only_the_models_named_so_train_at_two_depths_by_default():
    assert {name for name in vision.MODELS if vision.fresh(name).config.mixed_depth} == set(MIXED)


@vision.every_registered_structure
def test_both_depths_are_trained_or_the_option_is_rejected(structure):
    if vision.depth_option(structure) is None:
        with pytest.raises(ValueError, match="mixed_depth=True: the order .* has no shorter form"):
            vision.fresh(structure, mixed_depth=True)
        return
    model = small(structure)
    x, target = vision.images(model), torch.tensor([0, 3])
    deep, shallow = model(x)
    with at_depths({loop: len(loop.blocks) for loop in model.loops()}):
        torch.testing.assert_close(shallow, model.forward_head(model.forward_features(x)), rtol=0, atol=1e-12)
    torch.testing.assert_close(deep, model.forward_head(model.forward_features(x)), rtol=0, atol=1e-12)
    assert not torch.allclose(deep, shallow)
    loss = MixedDepthLoss(torch.nn.CrossEntropyLoss())([deep, shallow], target)
    torch.testing.assert_close(loss, (F.cross_entropy(deep, target) + F.cross_entropy(shallow, target)) / 2)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert torch.is_tensor(model.eval()(x))


def test_a_drawn_depth_is_the_shallow_branch():
    model = small("uit", depth=4, depth_range=(1, 4))
    x, loss, depths = vision.images(model), MixedDepthLoss(torch.nn.CrossEntropyLoss()), set()
    for update in range(12):
        model.set_num_updates(update)
        outputs, depth = model(x), len(model.loop.running)
        depths.add(depth)
        assert len(outputs) == (1 if depth == 4 else 2)
        with at_depths({model.loop: depth}):
            assert torch.equal(outputs[-1], model.forward_head(model.forward_features(x)))
    assert depths == {1, 2, 3, 4}
    assert loss(outputs[:1], torch.tensor([0, 3])) == F.cross_entropy(outputs[0], torch.tensor([0, 3]))
