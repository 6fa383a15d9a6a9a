"""The options that all looped vision transformers share, and their rules."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from timm.layers import PatchEmbed, to_2tuple
from torch import nn

from recurrence.block import FeedForward, Shape
from recurrence.comparison.rows import check_narrower
from recurrence.loop import Loop
from recurrence.order import Order, block_count, check_order
from recurrence.papers.takase import shared_layers
from timm_plugin._config import ImageConfig, fits, option
from timm_plugin._vit import LoopedVisionTransformer


@dataclass(frozen=True)
class ViTConfig(ImageConfig):
    """The common options of `timm.create_model(name, ...)`, besides those of :class:`ImageConfig`.

    A family derives from it and defines :meth:`loop`; its presets set the sizes.

    Args:
        patch_size: side of a patch.
        global_pool: "token", "avg", "max", "avgmax", or "" for all tokens.
        embed_dim: C.
        depth: number of passes, or of stored blocks where the family has `loops`.
        num_heads: H, a divisor of C.
        mlp_ratio: hidden width of the MLP as a multiple of C.
        pos_embed: "sincos" (fixed), "learn", "none".
        class_token: whether there is a class token before the patches.
        norm_eps: epsilon of the blocks' LayerNorms; the final one has 1e-6.
        mlp_drop_rate: dropout on the MLP's hidden units and its output. (timm's ViT has one rate for this and
            `proj_drop_rate`.)

    Attributes:
        passes_per_depth: passes that count as one depth.
    """

    patch_size: int = option(16, least=1)
    global_pool: str = "token"
    embed_dim: int = 768
    depth: int = option(12, least=1)
    num_heads: int = 12
    mlp_ratio: float = 4.0
    pos_embed: str = option("sincos", choices=("sincos", "learn", "none"))
    class_token: bool = True
    norm_eps: float = 1e-6
    mlp_drop_rate: float = 0.0

    model: ClassVar[Any] = LoopedVisionTransformer
    passes_per_depth: ClassVar[int] = 1

    @abstractmethod
    def loop(self, tokens: int) -> Loop:
        """The stack for this number of tokens, built by the paper's file.

        Raises:
            FieldError: where a value breaks a rule of the core.
        """

    def check(self) -> None:
        super().check()
        self.shape()  # which has the rules for sizes
        if any(side < self.patch_size for side in to_2tuple(self.img_size)):
            raise ValueError(f"img_size={self.img_size}: must be >= patch_size={self.patch_size}")
        if self.global_pool == "token" and not self.class_token:
            raise ValueError("global_pool='token': needs class_token=True")

    def shape(self) -> Shape:
        """Sizes and rates of a block."""
        return Shape(
            width=self.embed_dim,
            ffn_width=round(self.embed_dim * self.mlp_ratio),
            heads=self.num_heads,
            norm_eps=self.norm_eps,
            dropout=self.proj_drop_rate,
            attention_dropout=self.attn_drop_rate,
            activation_dropout=self.mlp_drop_rate,
        )

    def parts(self) -> dict[str, Any]:
        """What the core's functions that build a loop take besides the shape: pre-norm blocks with GELU."""
        return dict(pre_norm=True, activation=F.gelu, ffn_dropout=self.mlp_drop_rate)

    def drop_path(self, passes: int) -> list[float]:
        """The rate of each pass."""
        last = max(passes // self.passes_per_depth - 1, 1)
        return [self.drop_path_rate * (index // self.passes_per_depth) / last for index in range(passes)]

    @property
    def notes_order(self) -> bool:
        """Whether a checkpoint must store the order, because its passes do not show in which order they ran."""
        return False

    def other_depths(self) -> dict[str, Any]:
        """The rules for elastic depth: `step` and `prefix_only` of :meth:`ElasticConfig.make_elastic`."""
        return {}

    def patches(self) -> nn.Module:
        """What turns images into patches: timm's `PatchEmbed`, or a module with its interface."""
        return PatchEmbed(self.img_size, self.patch_size, self.in_chans, self.embed_dim)

    def initialise(self, model: nn.Module) -> None:
        """Sets initial values: MLP weights Xavier uniform, their biases of deviation 1e-6; the rest as PyTorch has it.

        Source: RingFormer's published code for images.
        """
        for mlp in model.modules():
            if isinstance(mlp, FeedForward):
                for layer in (mlp.up, mlp.down):
                    nn.init.xavier_uniform_(layer.weight)
                    nn.init.normal_(layer.bias, std=1e-6)

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """The plain ViT of the same size, see :meth:`ImageConfig.unshared`."""
        (depth,) = blocks
        same = {name: getattr(self, name) for name in ViTConfig.options()}
        return {**same, **super().unshared(blocks), "model": "plain_vit", "depth": depth}

    def more_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """See :meth:`ImageConfig.more_heads`."""
        return self._sized(self.num_heads + steps, self.embed_dim // self.num_heads, hidden)

    def narrower_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """See :meth:`ImageConfig.narrower_heads`; a step is two columns of each head."""
        columns = self.embed_dim // self.num_heads + 2 * steps
        check_narrower(columns)
        return self._sized(self.num_heads, columns, hidden)

    def _sized(self, heads: int, head_width: int, hidden: int) -> dict[str, Any]:
        width = heads * head_width
        mlp = round(self.embed_dim * self.mlp_ratio) * width // self.embed_dim + hidden
        return {"num_heads": heads, "embed_dim": width, "mlp_ratio": mlp / width}


@dataclass(frozen=True)
class OrderedConfig(ViTConfig):
    """A vision transformer whose blocks may run in any order.

    Args:
        order: the block that runs in each pass, such as (0, 1, 1, 2), in place of the options in `replaced`; `depth`,
            the number of blocks, then follows from it.

    Attributes:
        replaced: options of which `order` takes the place, after `depth`.
    """

    order: Sequence[int] | None = None

    replaced: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def usual_order(self) -> Order:
        """The block of each pass, if `order` does not say it.

        Raises:
            FieldError: if it does not support these numbers.
        """

    def passes(self) -> Order:
        """The block of each pass."""
        return self.usual_order() if self.order is None else tuple(self.order)

    def loop(self, tokens: int) -> Loop:
        """Plain layers in the order."""
        return shared_layers(self.shape(), self.passes(), **self.parts())

    def check(self) -> None:
        super().check()
        if self.order is None:
            self.usual_order()
            return
        check_order(tuple(self.order), self.depth)
        for name in self.replaced:
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"order={self.order}: does not go with {name}={getattr(self, name)!r}")

    @classmethod
    def merged(cls, preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """See :meth:`ImageConfig.merged`; an order replaces what assigns blocks to passes."""
        left, order = super().merged(preset, given), given.get("order")
        if order is None:
            return left
        left = {name: value for name, value in left.items() if name not in ("depth", *cls.replaced)}
        if "depth" not in given and fits(order, Sequence[int]):
            left["depth"] = max(1, block_count(order))
        return left

    @property
    def notes_order(self) -> bool:
        return self.order is not None

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        return {**super().unshared(blocks), "order": None}
