"""Every pair of constructor arguments of image models, generated from the configurations: both act, or are rejected."""

import itertools
import warnings
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch

from tests.support import stacks, vision
from timm_plugin._sret_config import SReTConfig
from timm_plugin._vit_config import ViTConfig

CONFIGS = {
    "uit": ViTConfig,
    "ringformer_vit": ViTConfig,
    "plain_vit": ViTConfig,
    "recursive_deit_tiny": ViTConfig,
    "recursive_mixer_s16": ViTConfig,
    "sret_t": SReTConfig,
}
# A value that no small model has, for each field of any configuration.
VALUES: dict[str, Any] = dict(
    img_size=64,
    in_chans=1,
    num_classes=3,
    drop_rate=0.5,
    pos_drop_rate=0.5,
    proj_drop_rate=0.5,
    attn_drop_rate=0.5,
    mlp_drop_rate=0.5,
    drop_path_rate=0.5,
    depth_range=(1, 2),
    depth_distribution="poisson",
    depth_seed=7,
    depth_warmup_updates=3,
    mixed_depth=True,
    pass_loss=0.5,
    backprop_passes=1,
    loop_after_updates=2,
    patch_size=16,
    global_pool="max",
    embed_dim=16,
    depth=4,
    num_heads=4,
    mlp_ratio=3.0,
    shared=True,
    loops=3,
    order=(0, 1, 1),
    loop_order="external",
    residual_rank=2,
    terms=("out",),
    level_signal="learned",
    signal_rank_divisor=4,
    shared_mlp=True,
    token_mixing=True,
    pos_embed="none",
    class_token=True,
    stem="conv",
    nll=True,
    lrc=True,
    norm_eps=0.5,
    init="deit",
    depths=(2, 1, 1),
    groups=((2, 2), (1, 1), (1, 1)),
    permuted_runs="all",
    inference_permutation="random",
    permutation_seed=5,
    nll_ratio=0.5,
    drop_path_placement="published",
)
OTHERS = dict(
    token_mixing=False,
    pos_embed="learn",
    stem="patch",
    class_token=False,
    init="ringformer",
    lrc=False,
    shared=False,
    permuted_runs="none",
)
OF_SRET = dict(num_heads=(4, 4, 4), img_size=128)
UPDATES = 6  # enough that draws of two seeds differ


def value(name: str, field: str) -> Any:
    """A value of the field that differs from the model's."""
    config = configuration(name)
    chosen = OF_SRET.get(field, VALUES[field]) if CONFIGS[name] is SReTConfig else VALUES[field]
    return OTHERS[field] if chosen == getattr(config, field) and field in OTHERS else chosen


@cache
def configuration(name: str) -> Any:
    return vision.fresh(name).config


@cache
def seen(name: str, chosen: tuple[str, ...]) -> tuple | None:
    """All that a user sees of a model with these fields changed; None if it is rejected."""
    try:
        model = vision.fresh(name, **{field: value(name, field) for field in chosen})
    except ValueError:
        return None
    found: list[Any] = [(key, tuple(tensor.shape)) for key, tensor in model.state_dict().items()]
    found += [parameter.detach().abs().sum().item() for parameter in model.parameters()]
    stacks.randomise(model, 0, noise=0.1)
    x = vision.images(model)
    with torch.no_grad():
        torch.manual_seed(0)
        found += model.eval()(x).flatten().tolist()
    if model.supervises_depths:
        model.set_deep_supervision()
    model.train()
    for update in range(UPDATES):
        model.zero_grad()
        model.set_num_updates(update)
        torch.manual_seed(0)
        y = model(x)
        y = torch.cat(y) if isinstance(y, list) else y
        found += y.flatten().tolist()
        y.square().sum().backward()
        found += [None if p.grad is None else p.grad.abs().sum().item() for p in model.parameters()]
    return tuple(found)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_field_has_a_value(name):
    missing = {field.name for field in fields(CONFIGS[name])} - VALUES.keys()
    assert not missing
    assert not [f.name for f in fields(CONFIGS[name]) if value(name, f.name) == getattr(configuration(name), f.name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uit", "sret_t"])  # one of each configuration
def test_both_of_any_two_arguments_act_or_they_are_rejected(name):
    names = [field.name for field in fields(CONFIGS[name])]
    silent = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        silent += [(field,) for field in names if seen(name, (field,)) == seen(name, ())]
        for pair in set(itertools.combinations(names, 2)):
            both = seen(name, pair)
            silent += [pair] if both is not None and both in (seen(name, pair[:1]), seen(name, pair[1:])) else []
    assert not silent, silent
