"""A mixed-depth model is two models on the same weights: the deep one, and one that runs each stored block once."""

import pytest
import timm
import torch
import torch.nn.functional as F

import timm_plugin
from timm_plugin.mixed_depth import MixedDepth, MixedDepthLoss

TINY = {
    "sret_108_mixed": dict(
        img_size=64, embed_dim=8, depths=(1, 2, 1), num_heads=(1, 2, 4), groups=((4, 2),) * 2 + ((1, 1),)
    ),
    "deit_108_mixed": dict(img_size=32, embed_dim=12, depth=2),
}
mixed = pytest.mark.parametrize("name", TINY)


def tiny(name, **options):
    """In float64 and training mode; without random slices, so that two models can be compared."""
    torch.manual_seed(0)
    options = {**TINY[name], "num_classes": 5, **options}
    if "groups" in options:
        options["groups"] = tuple((1,) * options.get("loops", 2) for _ in options["groups"])
    return timm.create_model(name, **options).double().train()


def test_every_mixed_depth_model_is_tested():
    models = (timm.create_model(name, device="meta") for name in timm_plugin.MODELS)
    assert sorted(TINY) == sorted(
        name for name, model in zip(timm_plugin.MODELS, models) if isinstance(model, MixedDepth)
    )


@mixed
def test_the_shallow_branch_is_the_model_of_one_loop(name):
    model, single = tiny(name), tiny(name, loops=1)
    single.set_mixed_depth_training(False)
    theirs = {key: value for key, value in model.state_dict().items() if ".own." not in key}
    for loop, alone in zip(model.loops(), single.loops()):
        for index, own in enumerate(alone.own or ()):
            own.load_state_dict(loop.own[2 * index].state_dict())
    single.load_state_dict(theirs, strict=False)
    x = torch.randn(3, 3, *model.patch_embed.img_size, dtype=torch.float64)
    deep, shallow = model(x)
    torch.testing.assert_close(shallow, single(x), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(deep, shallow)


@mixed
def test_both_depths_are_supervised_and_inference_is_deep(name):
    model = tiny(name)
    x, target = torch.randn(3, 3, *model.patch_embed.img_size, dtype=torch.float64), torch.tensor([0, 3, 4])
    output = model(x)
    loss = MixedDepthLoss(torch.nn.CrossEntropyLoss())(output, target)
    torch.testing.assert_close(loss, sum(F.cross_entropy(logits, target) for logits in output) / 2)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.set_mixed_depth_training(False)
    assert torch.is_tensor(model(x))
    assert torch.is_tensor(model.eval()(x))
    assert MixedDepthLoss(torch.nn.CrossEntropyLoss())(model(x), target).ndim == 0
