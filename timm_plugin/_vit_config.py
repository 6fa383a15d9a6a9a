"""The options of a vision transformer with a loop over depth, their rules, and the loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from timm.layers import to_2tuple

from recurrence.block import Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.lowrank import PROJECTIONS
from recurrence.order import STRATEGIES, check_order
from recurrence.papers.baselines import one_wide_ffn
from recurrence.papers.relaxed import relaxed
from recurrence.papers.ringformer import Signals, ringformer
from recurrence.papers.sret import MixerBlock, Recursion, sret
from timm_plugin._config import ImageConfig
from timm_plugin._init import INITS

# SReT's names where it has one, else that of the strategy.
STRATEGY_NAMES = {"sequence": "internal", "cycle": "external", "cycle_rev": "reverse"}
TERMS = tuple(name for name in PROJECTIONS if not name.startswith("cross_"))
OF_ORDERS = ("depth", "loops", "loop_order", "shared")  # what `order` replaces
# What only a loop has.
LOOPED = (
    "order",
    "shared",
    "loops",
    "loop_order",
    "residual_rank",
    "terms",
    "level_signal",
    "signal_rank_divisor",
)
LOOP_ORDERS = {STRATEGY_NAMES.get(name, name): strategy for name, strategy in STRATEGIES.items()}


@dataclass(frozen=True)
class ViTConfig(ImageConfig):
    """The options of `timm.create_model(name, ...)`, besides those of :class:`ImageConfig`; entry functions set
    defaults.

    Args:
        patch_size: side of a patch.
        global_pool: "token", "avg", "max", "avgmax", or "" for all tokens.
        embed_dim: C.
        depth: number of layers in the stack, before `loops` repeats it.
        num_heads: H, a divisor of C.
        mlp_ratio: hidden width of the MLP as a multiple of C.
        shared: all layers are one stored block.
        loops: how often each layer runs.
        loop_order: "internal" repeats each block in succession (0 0 1 1), "external" the whole stack (0 1 0 1),
            "reverse" like external, but the last time backwards (0 1 1 0).
        order: the block that runs in each pass, such as (0, 1, 1, 2), in place of `loops`, `loop_order` and `shared`;
            `depth`, the number of blocks, then follows from it.
        residual_rank: give each pass its own LayerNorms, biases and a term of this rank <= C on every projection; None
            for none of these.
        terms: the projections with such a term, at least one, ("qkv", "out") for those of attention; None for all.
        level_signal: how a shared block knows its depth: "low-rank" (RingFormer), "static" or "learned" (a table added
            before every pass, as in the Universal Transformer), "none".
        signal_rank_divisor: rank of the low-rank signals is C // signal_rank_divisor.
        shared_mlp: one MLP serves all attention layers (One Wide FFN).
        token_mixing: an MLP over the tokens instead of attention, of hidden width C / 2 (Mixer).
        pos_embed: "sincos" (fixed), "learn", "none".
        class_token: whether there is a class token before the patches.
        stem: "patch" for one convolution, "conv" for SReT's stem.
        nll: a non-linear projection (SReT's NLL) after each pass, or with external loops after each run of the stack.
        lrc: learnable residual coefficients (SReT's LRC).
        norm_eps: epsilon of the blocks' LayerNorms; the final one has 1e-6.
        init: "ringformer" or "deit".
        proj_drop_rate: dropout on the output of attention. (timm's ViT has one rate for this and the next.)
        mlp_drop_rate: on the MLP's hidden units and its output.

    Raises:
        ValueError: if a value breaks its rule.
    """

    patch_size: int = 16
    global_pool: str = "token"
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_ratio: float = 4.0
    shared: bool = False
    loops: int = 1
    loop_order: str = "internal"
    order: Sequence[int] | None = None
    residual_rank: int | None = None
    terms: Sequence[str] | None = None
    level_signal: str = "none"
    signal_rank_divisor: int = 16
    shared_mlp: bool = False
    token_mixing: bool = False
    pos_embed: str = "sincos"
    class_token: bool = True
    stem: str = "patch"
    nll: bool = False
    lrc: bool = False
    norm_eps: float = 1e-6
    init: str = "ringformer"
    mlp_drop_rate: float = 0.0

    def __post_init__(self):
        self.check(
            ("patch_size", "embed_dim", "depth", "num_heads", "loops", "signal_rank_divisor"),
            loop_order=tuple(LOOP_ORDERS),
            level_signal=("low-rank", "static", "learned", "none"),
            pos_embed=("sincos", "learn", "none"),
            stem=("patch", "conv"),
            init=tuple(INITS),
        )
        for name in ("mlp_ratio", "norm_eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be > 0")
        if round(self.embed_dim * self.mlp_ratio) < 1:
            raise ValueError(
                f"mlp_ratio={self.mlp_ratio}: gives embed_dim={self.embed_dim} no hidden unit; must be larger"
            )
        if self.embed_dim % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads}: must divide embed_dim={self.embed_dim}")
        if any(side < self.patch_size for side in to_2tuple(self.img_size)):
            raise ValueError(f"img_size={self.img_size}: must be >= patch_size={self.patch_size}")
        if self.global_pool == "token" and not self.class_token:
            raise ValueError("global_pool='token': needs class_token=True")
        if self.stem == "conv" and self.patch_size != 16:
            raise ValueError(f"patch_size={self.patch_size}: stem='conv' has patches of 16")
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Raises ValueError for options that exclude each other, or need each other."""
        if self.order is not None:
            self._check_order()
        tables = self.level_signal in ("static", "learned")
        if self.shared_mlp and (self.shared or self.nll or self.token_mixing or self.lrc or self.loops > 1 or tables):
            rule = "goes with neither shared, nll, token_mixing, lrc, loops nor a static or learned level_signal"
            raise ValueError(f"shared_mlp=True: {rule}")
        if self.shared_mlp and self.loop_after_updates:
            rule = "does not go with shared_mlp, without which attention layers have no MLP"
            raise ValueError(f"loop_after_updates={self.loop_after_updates}: {rule}")
        projects_runs = self.nll and self.loop_order == "external"
        if self.loop_order != "internal" and (self.shared_mlp or self.shared and not projects_runs):
            rule = "must not be given with shared_mlp, or with shared unless the loops are external with nll"
            raise ValueError(f"loop_order={self.loop_order!r}: {rule}")
        if self.level_signal == "low-rank" and (self.shared_mlp or self.nll or self.lrc or not self.shared):
            raise ValueError(
                "level_signal='low-rank': needs shared=True, and goes with neither shared_mlp, nll nor lrc"
            )
        if self.level_signal == "low-rank" and self.signal_rank_divisor > self.embed_dim:
            raise ValueError(
                f"signal_rank_divisor={self.signal_rank_divisor}: must be >= 1 and <= embed_dim={self.embed_dim}"
            )
        if self.level_signal != "low-rank" and self.signal_rank_divisor != ViTConfig.signal_rank_divisor:
            raise ValueError(f"signal_rank_divisor={self.signal_rank_divisor}: needs level_signal='low-rank'")
        if self.token_mixing and (self.class_token or self.level_signal == "low-rank" or self.attn_drop_rate):
            raise ValueError("token_mixing=True: goes with no class_token, low-rank level_signal or attn_drop_rate")
        if tables and self.pos_embed != "sincos":
            rule = f"must not be given with level_signal={self.level_signal!r}, which holds the positions"
            raise ValueError(f"pos_embed={self.pos_embed!r}: {rule}")
        if self.token_mixing and self.num_heads != 1:
            raise ValueError(f"num_heads={self.num_heads}: token_mixing=True has no heads; must be 1")
        if self.terms is not None and self.residual_rank is None:
            raise ValueError(f"terms={self.terms}: needs residual_rank")
        if self.terms is not None and not (self.terms and set(self.terms) <= set(TERMS)):
            raise ValueError(f"terms={self.terms}: must name some of {TERMS}")
        if self.residual_rank is not None:
            if not 1 <= self.residual_rank <= self.embed_dim:
                raise ValueError(f"residual_rank={self.residual_rank}: must be >= 1 and <= embed_dim={self.embed_dim}")
            if self.shared_mlp or self.token_mixing or self.nll or self.lrc or self.level_signal == "low-rank":
                rule = "goes with neither shared_mlp, token_mixing, nll, lrc nor low-rank level_signal"
                raise ValueError(f"residual_rank={self.residual_rank}: {rule}")

    def _check_order(self) -> None:
        """Raises ValueError if the order is not one of `depth` blocks, or does not go with another option."""
        check_order(tuple(self.order), self.depth)
        for name in ("loops", "loop_order", "shared"):
            if getattr(self, name) != getattr(ViTConfig, name):
                raise ValueError(f"order={self.order}: does not go with {name}={getattr(self, name)!r}")
        if self.shared_mlp or self.level_signal == "low-rank":
            raise ValueError(f"order={self.order}: goes with neither shared_mlp nor low-rank level_signal")

    def passes(self) -> tuple[int, ...]:
        """The stored block of each pass.

        Raises:
            ValueError: if the loop order does not support these numbers.
        """
        if self.order is not None:
            return tuple(self.order)
        if self.shared:
            return (0,) * (self.depth * self.loops)
        try:
            return LOOP_ORDERS[self.loop_order].order(self.depth, self.depth * self.loops)
        except FieldError as error:
            raise ValueError(error.message({"unique_layers": "depth", "layers": "depth * loops"}.get)) from None

    def loop(self, tokens: int) -> Loop:
        """The stack for this number of tokens, built by the paper's file."""
        order = self.passes()
        shape = Shape(
            width=self.embed_dim,
            ffn_width=round(self.embed_dim * self.mlp_ratio),
            heads=self.num_heads,
            norm_eps=self.norm_eps,
            dropout=self.proj_drop_rate,
            attention_dropout=self.attn_drop_rate,
            activation_dropout=self.mlp_drop_rate,
        )
        rates = None
        if self.drop_path_rate:
            last = max(len(order) - 1, 1)
            rates = tuple(self.drop_path_rate * index / last for index in range(len(order)))
        parts: dict[str, Any] = dict(pre_norm=True, activation=F.gelu, ffn_dropout=self.mlp_drop_rate)
        if self.level_signal == "low-rank":
            signals = Signals(self.embed_dim // self.signal_rank_divisor)
            return ringformer(shape, len(order), signals, rates, **parts)
        if self.residual_rank is not None:
            return relaxed(shape, order, self.residual_rank, self.terms, rates, **parts)
        if self.shared_mlp:
            return one_wide_ffn(shape, len(order), rates, **parts)
        every = self.depth if self.loop_order == "external" else 1
        recursion = Recursion(self.lrc, self.embed_dim if self.nll else None, every)
        if self.token_mixing:
            mixing = dict(tokens=tokens, mixing_width=self.embed_dim // 2, ffn_dropout=self.mlp_drop_rate)
            return sret(shape, order, recursion, rates, block=MixerBlock, **mixing)
        return sret(shape, order, recursion, rates, **parts)

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """Arguments of the same model without loops, see :meth:`ImageConfig.unshared`."""
        if self.shared_mlp:
            raise ValueError("shared_mlp=True: shares only its MLP, so that no block runs again")
        (depth,) = blocks
        default = {name: getattr(ViTConfig, name) for name in LOOPED}
        return {**super().unshared(blocks), "depth": depth, **default}

    def sized(self, units: int, hidden: int) -> dict[str, Any]:
        """Arguments of a wider or narrower model, see :meth:`ImageConfig.sized`."""
        width = self.embed_dim // self.num_heads * units
        mlp = round(self.embed_dim * self.mlp_ratio) * units // self.num_heads + hidden
        return {"num_heads": units, "embed_dim": width, "mlp_ratio": mlp / width}

    def depth_step(self) -> int:
        """The number of passes must be a multiple of this: the depth, unless all layers are one block and run once.

        In any order, it depends on the order alone.
        """
        if self.order is not None:
            return 1
        if self.shared and self.loops == 1 and not (self.nll and self.loop_order == "external"):
            return 1
        return self.depth
