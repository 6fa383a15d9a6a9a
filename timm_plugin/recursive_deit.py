"""DeiT with recursion: SReT's first experiments, before its pyramid.

Paper: Sliced Recursive Transformer (arXiv:2111.05297), Table 1, section 5.2, Figures 4 and 9.

The published code has none of these models. Assumed here: DeiT-Tiny's block and initialisation; NLL and LRC as in SReT,
with an NLL of the stream's width; `stem="conv"` is SReT's stem followed by a 2x2 convolution, which gives the same
number of tokens as patches; mean pooling (`class_token=False, global_pool="avg"`) follows the final norm; DeiT-108 is
DeiT-Tiny with 108 unshared blocks.

Not in the paper: a mixed-depth DeiT, with 54 stored blocks that run twice; see :mod:`timm_plugin.sret`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from timm.layers import trunc_normal_
from torch import nn

from recurrence.block import PROJECTIONS
from recurrence.loop import Loop
from recurrence.order import STRATEGIES, Order
from recurrence.papers.relaxed import relaxed
from recurrence.papers.sret import Recursion, sret
from timm_plugin._config import ImageConfig, option
from timm_plugin._create import SRET_URL, register_family, sret_cfg
from timm_plugin._stem import StemEmbed
from timm_plugin._vit_config import OrderedConfig

# SReT's names where it has one, else that of the strategy.
STRATEGY_NAMES = {"sequence": "internal", "cycle": "external", "cycle_rev": "reverse"}
LOOP_ORDERS = {STRATEGY_NAMES.get(name, name): strategy for name, strategy in STRATEGIES.items()}
TERMS = tuple(name for name in PROJECTIONS if not name.startswith("cross_"))


@dataclass(frozen=True)
class RecursiveConfig(OrderedConfig):
    """The options of vision transformers with recursion, besides those of :class:`OrderedConfig`.

    Args:
        loops: how often each block runs.
        loop_order: "internal" repeats each block in succession (0 0 1 1), "external" the whole stack (0 1 0 1),
            "reverse" like external, but the last time backwards (0 1 1 0).
        lrc: learnable residual coefficients (SReT's LRC).
    """

    loops: int = option(1, least=1)
    loop_order: str = option("internal", choices=tuple(LOOP_ORDERS))
    lrc: bool = False

    replaced = ("loops", "loop_order")
    undecayed = (*OrderedConfig.undecayed, "identity", "branch")

    def usual_order(self) -> Order:
        """All blocks, each `loops` times."""
        return LOOP_ORDERS[self.loop_order].order(self.depth, self.depth * self.loops)

    @property
    def notes_order(self) -> bool:
        """Always: as many passes may have run in any `loop_order`."""
        return True

    def other_depths(self) -> dict[str, Any]:
        """All blocks run equally often, unless an order says which of them run again."""
        return dict(step=self.depth) if self.order is None else {}

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """The same model with each block run once, see :meth:`ImageConfig.unshared`."""
        (depth,) = blocks
        once = {name: getattr(RecursiveConfig, name) for name in ("order", "loops", "loop_order")}
        return {**ImageConfig.unshared(self, blocks), **once, "depth": depth}


@dataclass(frozen=True)
class RecursiveDeiTConfig(RecursiveConfig):
    """The options of recursive DeiT, besides those of :class:`RecursiveConfig`.

    Args:
        nll: a non-linear projection (SReT's NLL) after each pass, or with external loops after each run of the stack.
        stem: "patch" for one convolution, "conv" for SReT's stem.
        residual_rank: give each pass its own LayerNorms, biases and a term of this rank <= C on every projection; None
            for none of these.
        terms: the projections with such a term, at least one, ("qkv", "out") for those of attention; None for all.
    """

    pos_embed: str = option("learn", choices=("sincos", "learn", "none"))
    nll: bool = False
    stem: str = option("patch", choices=("patch", "conv"))
    residual_rank: int | None = None
    terms: Sequence[str] | None = None

    undecayed = (*RecursiveConfig.undecayed, "terms")

    def check(self) -> None:
        super().check()
        if self.stem == "conv" and self.patch_size != 16:
            raise ValueError(f"patch_size={self.patch_size}: stem='conv' has patches of 16")
        if self.residual_rank is not None and (self.nll or self.lrc):
            raise ValueError(f"residual_rank={self.residual_rank}: goes with neither nll nor lrc")
        if self.terms is not None and self.residual_rank is None:
            raise ValueError(f"terms={self.terms}: needs residual_rank")
        if not set(self.terms or ()) <= set(TERMS):
            raise ValueError(f"terms={self.terms}: must name some of {TERMS}")

    def loop(self, tokens: int) -> Loop:
        """DeiT's blocks in the order, with SReT's additions or with low-rank terms."""
        order = self.passes()
        if self.residual_rank is not None:
            return relaxed(self.shape(), order, self.residual_rank, self.terms, **self.parts())
        recursion = Recursion(
            self.lrc,
            projection_width=self.embed_dim if self.nll else None,
            projection_every=self.depth if self.loop_order == "external" else 1,
        )
        return sret(self.shape(), order, recursion, **self.parts())

    def patches(self) -> nn.Module:
        """Also SReT's stem."""
        if self.stem == "patch":
            return super().patches()
        return StemEmbed(self.img_size, self.patch_size, self.in_chans, self.embed_dim)

    def initialise(self, model: nn.Module) -> None:
        """Linear weights and class token truncated normal with std 0.02, biases 0.

        Source: DeiT (arXiv:2012.12877), after its published code.
        """
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        if model.cls_token is not None:
            trunc_normal_(model.cls_token, std=0.02)

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """Also without low-rank terms. A projection after each run of the stack follows the one run."""
        found = {**super().unshared(blocks), "residual_rank": None, "terms": None}
        if not self.nll or self.loop_order != "external":
            return found
        if tuple(blocks) != (self.depth,):
            rule = "has a projection after each run of the stack, which no stack that runs once has"
            raise ValueError(f"loop_order='external': with nll=True {rule}; leave the rows narrow and deep out")
        return {**found, "loop_order": self.loop_order}


DEIT_TINY = dict(embed_dim=192, depth=12, num_heads=3)

# Table 1 has `loops` from 1 to 4. Section 5.2 compares internal loops with external ones (`loop_order="external"`) on
# `depth=6`, without and with `nll=True`.
register_family(
    __name__,
    RecursiveDeiTConfig,
    sret_cfg(origin_url=SRET_URL),
    {
        "recursive_deit_tiny": ("DeiT-Tiny, each block run twice, of Table 1", dict(DEIT_TINY, loops=2)),
        "deit_108": ("DeiT-108 of Figure 9", dict(DEIT_TINY, depth=108)),
        "deit_108_mixed": (
            "DeiT-108 with 54 stored blocks, run twice, trained at mixed depth",
            dict(DEIT_TINY, depth=54, loops=2, mixed_depth=True),
        ),
    },
)
