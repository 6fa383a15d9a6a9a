"""The registered image models: small instances and variants, random images, losses."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import timm
import torch
from timm.models import get_pretrained_cfg
from torch import Tensor, nn

import timm_plugin  # noqa: F401  registers the models
from tests.support.public import IMAGE_MODELS as MODELS
from tests.support.public import in_float64
from tests.support.stacks import gradients_of, parameters, randomise

CLASSES = 7
RATES = ("drop_rate", "pos_drop_rate", "proj_drop_rate", "mlp_drop_rate", "attn_drop_rate", "drop_path_rate")

# Shapes that keep the structure: three stages with a block of several passes, or several passes of several blocks.
PYRAMID = dict(img_size=64, embed_dim=8, depths=(1, 2, 1), num_heads=(2, 2, 4), mlp_ratio=2.5, nll_ratio=1.5)
STACK = dict(img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=2, mlp_ratio=2.5)

# Variants beside the registered models; every invariant holds for each of them.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "uit, learned levels": ("uit", dict(level_signal="learned")),
    "uit, no class token": ("uit", dict(class_token=False, global_pool="avg")),
    "ringformer, maximum": ("ringformer_vit", dict(global_pool="max")),
    "owf, average": ("owf_vit", dict(global_pool="avg")),
    "ringformer, any order": ("ringformer_vit", dict(order=(0, 1, 1, 2))),
    "plain, no positions": ("plain_vit", dict(pos_embed="none", global_pool="avgmax")),
    "uit, any order": ("uit", dict(order=(0, 1, 1, 2, 1))),
    "deit, any order": ("recursive_deit_tiny", dict(order=(0, 1, 1, 1, 2), nll=True, lrc=True)),
    "deit, external loops": ("recursive_deit_tiny", dict(loops=3, loop_order="external")),
    "deit, external loops with NLL": ("recursive_deit_tiny", dict(loop_order="external", nll=True)),
    "deit, NLL and LRC": ("recursive_deit_tiny", dict(nll=True, lrc=True)),
    "deit, SReT's stem": (
        "recursive_deit_tiny",
        dict(stem="conv", patch_size=16, img_size=64, class_token=False, global_pool="avg"),
    ),
    "sret, one loop": ("sret_t", dict(loops=1, groups=((4,), (2,), (1,)))),
    "sret, three loops": ("sret_t", dict(loops=3, groups=((4, 2, 1), (1, 2, 4), (2, 1, 2)))),
    "sret, neither NLL nor LRC": ("sret_t", dict(nll_ratio=0, lrc=False)),
    "sret, maximum": ("sret_tl", dict(global_pool="max")),
    "sret, class token": ("sret_tl_global", dict(class_token=True, global_pool="avgmax")),
    "sret, patches and class token": ("sret_tl_global", dict(stem="patch", class_token=True, global_pool="token")),
}
CASES = {**{name: (name, {}) for name in MODELS}, **VARIANTS}

every_model = pytest.mark.parametrize("name", MODELS)


def models_tested(module: ModuleType) -> dict[str, set[str]]:
    """The models with which each test function of a module runs, if it is parametrized by model, case or structure."""
    return {
        name: {CASES[case][0] for value in values for case in STRUCTURES.get(value, [value])}
        for names, name, values in parameters(module)
        if names in ("name", "case", "structure")
    }


def is_pyramid(name: str) -> bool:
    """Whether the model's features are a map instead of tokens."""
    return get_pretrained_cfg(name).pool_size is not None


def rates_of(name: str) -> list[str]:
    """The drop rates that a model has."""
    absent: set[str] = set()
    if is_pyramid(name):
        absent = {"mlp_drop_rate"}
    elif "mixer" in name:
        absent = {"attn_drop_rate"}
    return [rate for rate in RATES if rate not in absent]


def depth_option(name: str) -> str | None:
    """The option that says how often the blocks of a model run: "depth" of one block, or "loops"; None if once each."""
    model = fresh(name)
    if all(len(loop.blocks) == loop.passes for loop in model.loops()):
        return None
    one_block = all(len(loop.blocks) == 1 for loop in model.loops())
    return "loops" if hasattr(model.config, "loops") else "depth" if one_block else None


# Building


def small_shape(name: str) -> dict[str, Any]:
    """Arguments that make a registered model small but keep its structure."""
    if name == "sret_nano":  # with three stages, as the other pyramids, but neither slices nor projections
        return {**PYRAMID, "groups": ((1,),) * 3, "nll_ratio": 0}
    if is_pyramid(name):
        return PYRAMID
    return {**STACK, "num_heads": 1} if "mixer" in name else STACK


def arguments(case: str, **changes: Any) -> dict[str, Any]:
    """The arguments of a small instance of a case."""
    name, variant = CASES[case]
    return {**small_shape(name), "num_classes": CLASSES, **variant, **changes}


def fresh(case: str, seed: int = 0, **changes: Any) -> nn.Module:
    """A small model as `create_model` returns it: float32, in training mode."""
    torch.manual_seed(seed)
    return timm.create_model(CASES[case][0], **arguments(case, **changes))


@contextmanager
def at_passes(model: nn.Module, *passes: int) -> Iterator[None]:
    """Within the context, the loops of the model run these numbers of passes outside training."""
    model.passes = passes
    yield
    model.passes = None


def small(case: str, seed: int = 0, **changes: Any) -> nn.Module:
    """A small float64 model in eval mode with random parameters and batch statistics."""
    with in_float64():
        model = randomise(fresh(case, seed, **changes), seed, noise=0.1)
    generator = torch.Generator().manual_seed(seed)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.add_(0.3 * torch.rand(buffer.shape, generator=generator, dtype=buffer.dtype))
    return model.eval()


def images(model: nn.Module, count: int = 2, **kwargs: Any) -> Tensor:
    """Random images (B, channels, height, width) with the dtype of the model's parameters."""
    generator = torch.Generator().manual_seed(1)
    size = model.patch_embed.img_size
    dtype = next(model.parameters()).dtype
    return torch.randn(count, model.in_chans, *size, generator=generator, dtype=dtype, **kwargs)


def small_with_images(case: str, **changes: Any) -> tuple[nn.Module, Tensor]:
    """A small model of a case and two images for it."""
    model = small(case, **changes)
    return model, images(model)


def _structures() -> dict[str, list[str]]:
    same: dict = {}
    for case in CASES:
        model = fresh(case)
        same.setdefault((type(model), model.config), []).append(case)
    return {cases[0]: cases for cases in same.values()}


# One case per structure, with all cases that are the same model once they are small.
STRUCTURES = _structures()
every_case = pytest.mark.parametrize("case", STRUCTURES)
every_registered_structure = pytest.mark.parametrize("structure", [case for case in STRUCTURES if case in MODELS])


# Measuring


def loss_and_gradients(model: nn.Module, x: Tensor, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss that weights every output differently, and the gradient of every parameter that has one."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    y = model(x)
    y = torch.stack(y) if isinstance(y, list) else y
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view(len(y), -1)
    loss = (y.flatten(1).log_softmax(-1) * weights).mean()
    return loss.detach(), gradients_of(model, loss)
