"""DeiT with recursion: SReT's first experiments, before its pyramid.

Paper: Sliced Recursive Transformer (arXiv:2111.05297), Table 1, section 5.2, Figures 4 and 9.

The published code has none of these models. Assumed here: DeiT-Tiny's block and initialisation; NLL and LRC as in SReT,
with an NLL of the stream's width; `stem="conv"` is SReT's stem followed by a 2x2 convolution, which gives as many
tokens as there are patches, if the sides are multiples of 16; mean pooling (`class_token=False, global_pool="avg"`)
follows the final norm; DeiT-108 is DeiT-Tiny with 108 unshared blocks.

Not in the paper: a mixed-depth DeiT, with 54 stored blocks that run twice; see :mod:`timm_plugin.sret`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from timm.layers import trunc_normal_
from timm.models import generate_default_cfgs, register_model
from torch import nn

from recurrence.loop import Loop
from recurrence.order import STRATEGIES, Order
from recurrence.papers.sret import Recursion, sret
from timm_plugin._config import DEPTH_OPTIONS, option
from timm_plugin._layers import StemEmbed
from timm_plugin._vit import LoopedVisionTransformer, ViTConfig, create_vit
from timm_plugin.sret import SRET_URL, sret_cfg

# SReT's names where it has one, else that of the strategy.
STRATEGY_NAMES = {"sequence": "internal", "cycle": "external", "cycle_rev": "reverse"}
LOOP_ORDERS = {STRATEGY_NAMES.get(name, name): strategy for name, strategy in STRATEGIES.items()}


@dataclass(frozen=True)
class RecursiveConfig(ViTConfig):
    """The options of vision transformers with recursion, besides those of :class:`ViTConfig`.

    Args:
        loops: passes for each stored block.
        loop_order: "internal" repeats each block in succession (0 0 1 1), "external" the whole stack (0 1 0 1),
            "reverse" like external, but the last time backwards (0 1 1 0), "sandwich" the middle one of three blocks
            (0 1 1 1 1 2).
        lrc: learnable residual coefficients (SReT's LRC).
    """

    loops: int = option(1, least=1)
    loop_order: str = option("internal", choices=tuple(LOOP_ORDERS))
    lrc: bool = False

    def check(self) -> None:
        super().check()
        for name in ("loops", "loop_order"):
            if self.order is not None and getattr(self, name) != getattr(RecursiveConfig, name):
                raise ValueError(f"order={self.order}: conflicts with {name}={getattr(self, name)!r}")

    def usual_order(self) -> Order:
        """`depth` blocks in `loop_order`, with `loops` passes for each."""
        return LOOP_ORDERS[self.loop_order].order(self.depth, self.depth * self.loops)

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """The same model with each block run once, see :meth:`ImageConfig.unshared`."""
        (depth,) = blocks
        once = {name: getattr(RecursiveConfig, name) for name in ("order", "loops", "loop_order")}
        return {**DEPTH_OPTIONS, **once, "depth": depth}


class RecursiveVisionTransformer(LoopedVisionTransformer):
    """Blocks in a `loop_order`, or in any order."""

    def depth_rules(self) -> dict[str, Any]:
        """A depth is a number of loops, unless an order says which blocks run again."""
        return dict(step=self.config.depth) if self.config.order is None else {}

    def shows_order(self) -> bool:
        """Never: as many passes may have run in any `loop_order`."""
        return False


@dataclass(frozen=True)
class RecursiveDeiTConfig(RecursiveConfig):
    """The options of recursive DeiT, besides those of :class:`RecursiveConfig`.

    Args:
        nll: a non-linear projection (SReT's NLL) after each pass, or with external loops after each run of the stack.
        stem: "patch" for one convolution, "conv" for SReT's stem.
    """

    pos_embed: str = option("learn", choices=("sincos", "learn", "none"))
    nll: bool = False
    stem: str = option("patch", choices=("patch", "conv"))

    def check(self) -> None:
        super().check()
        if self.stem == "conv" and self.patch_size != 16:
            raise ValueError(f"patch_size={self.patch_size}: stem='conv' has patches of 16")

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """A projection after each run of the stack follows the one run."""
        found = super().unshared(blocks)
        if not self.nll or self.loop_order != "external":
            return found
        if tuple(blocks) != (self.depth,):
            rule = "there is a projection after each run of the stack, but an unshared stack runs only once"
            left = f"leave out the rows that do not have {self.depth} blocks: narrow, deep and, unless loops=2, half"
            raise ValueError(f"loop_order='external': with nll=True {rule}; {left}")
        return {**found, "loop_order": self.loop_order}


class RecursiveDeiT(RecursiveVisionTransformer):
    """DeiT's blocks in an order, with SReT's additions."""

    def __init__(self, **options: Any):
        super().__init__(RecursiveDeiTConfig.of(options))

    def make_patches(self, config: RecursiveDeiTConfig) -> nn.Module:
        if config.stem == "patch":
            return super().make_patches(config)
        self._traits = dict(first_conv="patch_embed.stem.conv1")  # which timm adapts to other in_chans
        return StemEmbed(config.img_size, config.in_chans, config.embed_dim)

    def make_loop(self, config: RecursiveDeiTConfig, tokens: int) -> Loop:
        recursion = Recursion(
            config.lrc,
            projection_width=config.embed_dim if config.nll else None,
            projection_every=config.depth if config.loop_order == "external" else 1,
        )
        return sret(config.shape(), config.passes(), recursion, **config.parts())

    def initialise(self) -> None:
        """Linear weights and class token truncated normal with std 0.02, biases 0.

        Source: DeiT (arXiv:2012.12877), after its published code.
        """
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        if self.cls_token is not None:
            trunc_normal_(self.cls_token, std=0.02)


_create_recursive_deit = partial(create_vit, RecursiveDeiT)

default_cfgs = generate_default_cfgs(
    dict.fromkeys(("recursive_deit_tiny", "deit_108", "deit_108_mixed"), sret_cfg(origin_url=SRET_URL))
)

DEIT_TINY = dict(embed_dim=192, depth=12, num_heads=3)


@register_model
def recursive_deit_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """DeiT-Tiny, each block run twice, of Table 1

    Table 1 has `loops` from 1 to 4. Section 5.2 has internal loops without and with `nll=True`, and external ones
    (`loop_order="external"`) with it. Its "12 layers" are 12 passes: only `depth=6` gives the printed sizes.
    """
    return _create_recursive_deit("recursive_deit_tiny", pretrained, dict(DEIT_TINY, loops=2), kwargs)


@register_model
def deit_108(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """DeiT-108 of Figure 9"""
    return _create_recursive_deit("deit_108", pretrained, dict(DEIT_TINY, depth=108), kwargs)


@register_model
def deit_108_mixed(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """DeiT-108 with 54 stored blocks, run twice, trained at mixed depth; not in the paper"""
    mixed = kwargs.get("loops") != 1  # one run of each block is the shallow model alone
    preset = dict(DEIT_TINY, depth=54, loops=2, mixed_depth=mixed)
    return _create_recursive_deit("deit_108_mixed", pretrained, preset, kwargs)
