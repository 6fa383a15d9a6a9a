"""A vision transformer with a loop over depth: one resolution, one stack of passes. Families derive from it."""

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed, global_pool_nlc, resample_abs_pos_embed, to_2tuple, trunc_normal_
from torch import Tensor, nn

from recurrence import position
from recurrence.block import Shape
from recurrence.elastic import TrainingDepth
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.order import Order, block_count, check_order
from recurrence.parts import FeedForward
from timm_plugin._compat import update_model_input_size
from timm_plugin._config import DEPTH_OPTIONS, ImageConfig, fits, option
from timm_plugin._create import create
from timm_plugin._layers import DropPath
from timm_plugin._model import ImageModel, loop_groups, require_batch, take


@dataclass(frozen=True)
class ViTConfig(ImageConfig):
    """The common options of `timm.create_model(name, ...)`, besides those of :class:`ImageConfig`.

    A family derives from it; its registered functions set the sizes.

    Args:
        patch_size: side of a patch.
        embed_dim: C.
        depth: number of passes, or of stored blocks where the family has `loops`, or with an `order`.
        num_heads: H, a divisor of C.
        mlp_ratio: hidden width of the MLP as a multiple of C.
        pos_embed: "sincos" (fixed), "learn", "none".
        class_token: whether there is a class token before the patches.
        norm_eps: epsilon of the blocks' LayerNorms; the final one has 1e-6.
        mlp_drop_rate: dropout on the MLP's hidden units and its output. (timm's ViT has one rate for this and
            `proj_drop_rate`.)
        order: the block that runs in each pass, such as (0, 1, 1, 2), in place of the family's; `depth`, the number of
            blocks, then follows from it.
    """

    global_pool: str = "token"
    patch_size: int = option(16, least=1)
    embed_dim: int = 768
    depth: int = option(12, least=1)
    num_heads: int = 12
    mlp_ratio: float = 4.0
    pos_embed: str = option("sincos", choices=("sincos", "learn", "none"))
    class_token: bool = True
    norm_eps: float = 1e-6
    mlp_drop_rate: float = 0.0
    order: Sequence[int] | None = None

    names: ClassVar[dict[str, str]] = {
        "width": "embed_dim",
        "ffn_width": "mlp_ratio * embed_dim",
        "heads": "num_heads",
        "unique_layers": "depth",
        "layers": "depth * loops",
    }

    def check(self) -> None:
        super().check()
        self.shape()  # which has the rules for sizes
        if any(side < self.patch_size for side in to_2tuple(self.img_size)):
            raise ValueError(f"img_size={self.img_size}: must be >= patch_size={self.patch_size}")
        if self.global_pool == "token" and not self.class_token:
            raise ValueError("global_pool='token': needs class_token=True")
        if self.order is None:
            self.usual_order()  # which has the rules for the numbers of blocks and passes
        else:
            check_order(tuple(self.order), self.depth)

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

    def usual_order(self) -> Order:
        """The block of each pass, if `order` does not say it: one block for all, 0 0 0 ...

        Raises:
            FieldError: if the family does not support these numbers.
        """
        return (0,) * self.depth

    def passes(self) -> Order:
        """The block of each pass."""
        return self.usual_order() if self.order is None else tuple(self.order)

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """The plain ViT of the same size, see :meth:`ImageConfig.unshared`."""
        (depth,) = blocks
        same = {name: getattr(self, name) for name in ViTConfig.options()}
        return {**same, **DEPTH_OPTIONS, "model": "plain_vit", "depth": depth, "order": None}

    def more_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """For :mod:`timm_plugin.compare`, see :meth:`recurrence.comparison.controls.Controls.more_heads`."""
        return self._sized(self.num_heads + steps, self.embed_dim // self.num_heads, hidden)

    def narrower_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """As :meth:`more_heads`, with as many heads; a step, which is negative, is two columns of each head."""
        return self._sized(self.num_heads, self.embed_dim // self.num_heads + 2 * steps, hidden)

    def _sized(self, heads: int, head_width: int, hidden: int) -> dict[str, Any]:
        width = heads * head_width
        mlp = round(self.embed_dim * self.mlp_ratio) * width // self.embed_dim + hidden
        return {"num_heads": heads, "embed_dim": width, "mlp_ratio": mlp / width}


class LoopedVisionTransformer(ImageModel):
    """Patches, positions, a loop over depth, a final norm, and a classifier on the class token or the pooled patches.

    A family defines :meth:`make_loop`. `features_only` returns maps of the patch tokens after the last three depths, or
    those chosen by `out_indices`.

    Attributes:
        passes_per_depth: passes that count as one depth.
        tables: names of the tables with an entry for each token.
    """

    passes_per_depth = 1
    tables: tuple[str, ...] = ("pos_embed",)

    @abstractmethod
    def make_loop(self, config: Any, tokens: int) -> Loop:
        """The stack for this number of tokens, built by the paper's file.

        Raises:
            FieldError: where a value breaks a rule of the core.
        """

    def build(self, config: Any) -> None:
        self.num_features = config.embed_dim
        self.patch_embed = self.make_patches(config)
        self.num_prefix_tokens = int(config.class_token)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim)) if config.class_token else None
        self.pos_drop = nn.Dropout(config.pos_drop_rate)
        tokens = self.patch_embed.num_patches + self.num_prefix_tokens
        self.loop = self.make_loop(config, tokens)
        if config.order is not None and self.loop.order != tuple(config.order):
            raise FieldError("order", config.order, "must not be given, because this family has an order of its own")
        depths = self.loop.passes // self.passes_per_depth
        if config.drop_path_rate:
            for index, own in enumerate(self.loop.own):
                depth = index // self.passes_per_depth
                own.drop_path = DropPath(config.drop_path_rate * depth / max(depths - 1, 1))
        self.training_depths = [config.training_depth(self.loop.order, **self.depth_rules())]
        self.make_tables(tokens)
        if not self.shows_order():
            self.loop.note_order()
        self.norm = nn.LayerNorm(config.embed_dim, 1e-6)
        self.feature_info = [
            dict(module=f"loop.after.{index}", num_chs=config.embed_dim, reduction=config.patch_size)
            for index in range(self.passes_per_depth - 1, self.loop.passes, self.passes_per_depth)
        ]

    def make_patches(self, config: Any) -> nn.Module:
        """What turns images into patches: timm's `PatchEmbed`, or a module with its interface."""
        return PatchEmbed(config.img_size, config.patch_size, config.in_chans, config.embed_dim)

    def make_tables(self, tokens: int) -> None:
        """Creates the positions.

        Fixed tables are buffers in the checkpoint, so that they can be resampled for another image size.
        """
        shape = tokens, self.num_features
        self.register_buffer("pos_embed", None)
        if self.config.pos_embed == "sincos":
            self.pos_embed = position.interleaved(*shape).to(torch.get_default_dtype())[None]
        elif self.config.pos_embed == "learn":
            self.pos_embed = trunc_normal_(nn.Parameter(torch.empty(1, *shape)), std=0.02)

    def initialise(self) -> None:
        """MLP weights Xavier uniform, their biases of deviation 1e-6; the rest as PyTorch has it.

        Source: RingFormer's published code for images.
        """
        for mlp in self.modules():
            if isinstance(mlp, FeedForward):
                for layer in (mlp.up, mlp.down):
                    nn.init.xavier_uniform_(layer.weight)
                    nn.init.normal_(layer.bias, std=1e-6)

    def shows_order(self) -> bool:
        """Whether the names in a checkpoint show which block ran in which pass, so that it need not store the order."""
        return self.config.order is None and len(self.loop.blocks) == 1 and bool(self.loop.own.state_dict())

    def positions(self) -> Tensor | None:
        """The table that is added once, before the first pass: (1, N, C); None for none."""
        return self.pos_embed

    def levels(self, passes: int | Sequence[int] | None) -> list[Tensor] | None:
        """The tensors added before each of these passes, (1, N, C) each; None for none."""
        return None

    def embed(self, x: Tensor) -> Tensor:
        """Images (B, in_chans, height, width) -> tokens (B, N, C) before the first pass."""
        require_batch(x)
        x = self.patch_embed(x)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        positions = self.positions()
        return self.pos_drop(x if positions is None else x + positions)

    def encode(self, x: Tensor, depths: Sequence[int | None]) -> Tensor:
        """Embedded tokens -> tokens after the final norm, (B, N, C), the class token first."""
        return self.norm(self.loop(x, depths[0], self.levels(depths[0])))

    def encode_depths(self, x: Tensor) -> list[Tensor]:
        """See :meth:`ImageModel.encode_depths`; with `pass_loss`, the last pass, then earlier ones."""
        if not self.config.pass_loss:
            return super().encode_depths(x)
        depth = self.training_depths[0]
        states: list[Tensor] = []
        passes = depth.depth(self.num_updates)
        x = self.loop(x, passes, self.levels(passes), states=states)
        return [self.norm(state) for state in (x, *(states[stop - 1] for stop in depth.stops(self.num_updates)))]

    def pool(self, x: Tensor) -> Tensor:
        """(B, N, C) -> (B, C), or (B, N, C) if global_pool is ""."""
        return global_pool_nlc(x, self.global_pool, self.num_prefix_tokens)

    def features(
        self, x: Tensor, indices: int | Sequence[int] | None, norm: bool, stop_early: bool
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """For :meth:`forward_intermediates`: the output, maps (B, C, rows, columns), prefixes (B, 0 or 1, C).

        In training, all passes run, whatever depth the update draws.
        """
        run = self.loop.indices(None if self.training else self.depths()[0])
        taken = take(len(run) // self.passes_per_depth, indices)
        if stop_early:
            run = run[: (taken[-1] + 1) * self.passes_per_depth]
        states: list[Tensor] = []
        x = self.loop(self.embed(x), run, self.levels(run), states=states)
        states = [states[(index + 1) * self.passes_per_depth - 1] for index in taken]
        states = [self.norm(state) for state in states] if norm else states
        prefix, patches = zip(*(state.tensor_split([self.num_prefix_tokens], dim=1) for state in states))
        maps = [tokens.transpose(1, 2).unflatten(2, self.patch_embed.grid_size) for tokens in patches]
        return self.norm(x), maps, list(prefix)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Removes the passes and parts that the chosen depths do not need; returns the depths.

        Raises:
            AssertionError: for an index that no depth has, as timm does.
            ValueError: if `passes` is set.
        """
        if self.passes:
            raise ValueError(f"passes={tuple(self.passes)}: must be None; build the model at that depth, then prune it")
        taken = take(self.loop.passes // self.passes_per_depth, indices)
        self.loop.truncate((taken[-1] + 1) * self.passes_per_depth)
        self.training_depths = [TrainingDepth(self.loop.order)]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return taken

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's groups of parameters for layer-wise learning rates."""
        stem = "|".join(["^cls_token", *self.tables, "patch_embed"])
        return dict(stem=stem, blocks=[*loop_groups("loop", self.loop), (r"^norm", (99999,))])

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Changes the image size; tables are resampled by timm's function. The size before does not bring them back.

        Raises:
            ValueError: if the configuration rejects it. The model is unchanged then.
        """
        replace(self.config, img_size=img_size)  # a configuration checks itself; this one is not kept
        before = self.patch_embed.grid_size
        self.patch_embed.set_input_size(img_size)
        for name in self.tables:
            table = getattr(self, name)
            if table is not None and self.patch_embed.grid_size != before:
                resampled = resample_table(table, self.patch_embed.grid_size, before, self.num_prefix_tokens)
                if isinstance(table, nn.Parameter):
                    resampled = nn.Parameter(resampled, requires_grad=table.requires_grad)
                setattr(self, name, resampled)
        update_model_input_size(self, self.patch_embed.img_size)

    def adapt(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Resamples tables of another image size, if they are of square images.

        A table does not say how its tokens lie: as in timm, another number than the model's is taken for a square. So a
        table of 2 x 8 tokens is read as 4 x 4; load it at its own size, then call :meth:`set_input_size`, or name its
        size, see :meth:`from_saved_size`.
        """
        for name in self.tables:
            theirs, own = state_dict.get(name), getattr(self, name)
            if own is None or theirs is None or theirs.dim() != own.dim() or theirs.shape[1] == own.shape[1]:
                continue
            tokens = theirs.shape[1] - self.num_prefix_tokens
            if tokens >= 1 and math.isqrt(tokens) ** 2 == tokens:  # otherwise torch reports another shape
                state_dict[name] = resample_table(theirs, self.patch_embed.grid_size, None, self.num_prefix_tokens)
        return state_dict

    def from_saved_size(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Resamples tables of another size of images, square or not.

        A folder in timm's format names it; otherwise, as in timm's own models, it is the `input_size` of the pretrained
        configuration.
        """
        size = getattr(self, "pretrained_model_args", {}).get("img_size") or self.pretrained_cfg["input_size"][1:]
        patches = copy.deepcopy(self.patch_embed)
        patches.set_input_size(size)
        grid, saved, prefix = self.patch_embed.grid_size, patches.grid_size, self.num_prefix_tokens
        for name in self.tables if saved != grid else ():
            theirs = state_dict.get(name)
            if theirs is not None and theirs.dim() == 3 and theirs.shape[1] == prefix + math.prod(saved):
                state_dict[name] = resample_table(theirs, grid, saved, prefix)
        return state_dict


def resample_table(table: Tensor, grid: Sequence[int], old_grid: Sequence[int] | None, prefix: int) -> Tensor:
    """A table (levels or 1, tokens, C) for another grid, by timm's function: (levels or 1, prefix + rows * columns, C).

    `old_grid` is None for a square; `prefix` is the number of tokens before the grid, which stay as they are.
    """
    return torch.cat([resample_abs_pos_embed(level[None], grid, old_grid, prefix) for level in table.detach()])


def create_vit(
    model: type[ImageModel], variant: str, pretrained: bool, preset: dict[str, Any], given: dict[str, Any]
) -> nn.Module:
    """See :func:`timm_plugin._create.create`; a given order replaces the blocks of the preset and their passes."""
    order = given.get("order")
    if order is not None:
        preset = {name: value for name, value in preset.items() if name not in ("depth", "loops", "loop_order")}
        if "depth" not in given and fits(order, Sequence[int]):
            preset["depth"] = max(1, block_count(order))
    return create(model, variant, pretrained, preset, given)
