"""A vision transformer with a loop over depth: one resolution, one stack of passes. Families derive from it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from timm.layers import global_pool_nlc, resample_abs_pos_embed, trunc_normal_
from torch import Tensor, nn

from recurrence import position
from recurrence.block import set_drop_path
from recurrence.elastic import stops
from timm_plugin._compat import update_model_input_size
from timm_plugin._model import ImageModel, loop_groups, take


class LoopedVisionTransformer(ImageModel):
    """Patches, positions, a loop over depth, a final norm, and a classifier on the class token or the pooled patches.

    The configuration builds patches and stack, and initialises them. `features_only` returns maps of the patch tokens
    after the last three depths, or those chosen by `out_indices`.

    Attributes:
        tables: names of the tables with an entry for each token.
    """

    pools: tuple[str, ...] = ("", "token", "avg", "max", "avgmax")
    out_indices = (-3, -2, -1)
    tables: tuple[str, ...] = ("pos_embed",)

    def build(self, config: Any) -> None:
        self.num_features = config.embed_dim
        self.patch_embed = config.patches()
        self._traits = dict(first_conv=f"patch_embed.{getattr(self.patch_embed, 'first_conv', 'proj')}")
        self.num_prefix_tokens = int(config.class_token)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim)) if config.class_token else None
        if not config.class_token:
            self.pools = tuple(pool for pool in self.pools if pool != "token")
        self.pos_drop = nn.Dropout(config.pos_drop_rate)
        tokens = self.patch_embed.num_patches + self.num_prefix_tokens
        self.loop = config.loop(tokens)
        if config.drop_path_rate:
            set_drop_path(self.loop.own, config.drop_path(self.loop.passes))
        config.make_elastic(self.loop, **config.other_depths())
        self.make_tables(tokens)
        if config.notes_order or not self.shows_passes():
            self.loop.note_order()
        self.norm = nn.LayerNorm(config.embed_dim, 1e-6)
        self.feature_info = [
            dict(module=f"loop.after.{index}", num_chs=config.embed_dim, reduction=config.patch_size)
            for index in range(config.passes_per_depth - 1, self.loop.passes, config.passes_per_depth)
        ]
        self.make_head()
        config.initialise(self)

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

    def shows_passes(self) -> bool:
        """Whether the names in a checkpoint show how many passes trained it, and so in which of the usual orders."""
        return bool(self.loop.own.state_dict())

    def positions(self) -> Tensor | None:
        """The table that is added once, before the first pass: (1, N, C); None for none."""
        return self.pos_embed

    def levels(self) -> list[Tensor] | None:
        """The tensors added before each pass, (1, N, C) each; None for none."""
        return None

    def embed(self, x: Tensor) -> Tensor:
        """Images (B, in_chans, height, width) -> tokens (B, N, C) before the first pass."""
        x = self.patch_embed(x)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        if (positions := self.positions()) is not None:
            x = x + positions
        return self.pos_drop(x)

    def encode(self, x: Tensor) -> Tensor:
        """Embedded tokens -> tokens after the final norm, (B, N, C), the class token first."""
        return self.norm(self.loop(x, levels=self.levels()))

    def encode_depths(self, x: Tensor) -> list[Tensor]:
        """See :meth:`ImageModel.encode_depths`; with `pass_loss`, the last pass, then earlier ones."""
        if not self.config.pass_loss:
            return super().encode_depths(x)
        states: list[Tensor] = []
        x = self.loop(x, levels=self.levels(), states=states)
        step = self.config.other_depths().get("step", 1)
        earlier = stops(self.loop, len(states), self.loop.training_depth.smallest, step)
        return [self.norm(state) for state in (x, *(states[depth - 1] for depth in earlier))]

    def pool(self, x: Tensor) -> Tensor:
        """(B, N, C) -> (B, C), or (B, N, C) if global_pool is ""."""
        return global_pool_nlc(x, self.global_pool, self.num_prefix_tokens)

    def features(
        self, x: Tensor, indices: int | Sequence[int] | None, norm: bool, stop_early: bool
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """For :meth:`forward_intermediates`: the output, maps (B, C, rows, columns), prefixes (B, 0 or 1, C).

        Training runs all passes, too.
        """
        run = self.loop.tested
        taken = take(len(run) // self.config.passes_per_depth, indices)
        if stop_early:
            run = run[: (taken[-1] + 1) * self.config.passes_per_depth]
        states: list[Tensor] = []
        x = self.loop(self.embed(x), levels=self.levels(), indices=run, states=states)
        states = [states[(index + 1) * self.config.passes_per_depth - 1] for index in taken]
        states = [self.norm(state) for state in states] if norm else states
        prefix, patches = zip(*(state.tensor_split([self.num_prefix_tokens], dim=1) for state in states))
        maps = [tokens.transpose(1, 2).unflatten(2, self.patch_embed.grid_size) for tokens in patches]
        return self.norm(x), maps, list(prefix)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Removes the passes and parts that the chosen depths do not need; returns the depths."""
        taken = take(self.loop.passes // self.config.passes_per_depth, indices)
        self.loop.truncate((taken[-1] + 1) * self.config.passes_per_depth)
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
        """Changes the image size; tables are resampled by timm's function.

        Raises:
            ValueError: if the configuration rejects it. The model is unchanged then.
        """
        replace(self.config, img_size=img_size)  # a configuration checks itself; this one is not kept
        before = self.patch_embed.grid_size
        self.patch_embed.set_input_size(img_size)
        for name in self.tables:
            table = getattr(self, name)
            if table is not None:
                resampled = resample_table(table, self.patch_embed.grid_size, before, self.num_prefix_tokens)
                if isinstance(table, nn.Parameter):
                    resampled = nn.Parameter(resampled, requires_grad=table.requires_grad)
                setattr(self, name, resampled)
        update_model_input_size(self, self.patch_embed.img_size)

    def adapt(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Resamples tables of another image size, if they are of square images.

        A table does not say how its tokens lie: as in timm, another number than the model's is taken for a square. So a
        table of 2 x 8 tokens is read as 4 x 4; load it at its own size, then call :meth:`set_input_size`.
        """
        for name in self.tables:
            theirs, own = state_dict.get(name), getattr(self, name)
            if own is None or theirs is None or theirs.dim() != own.dim() or theirs.shape[1] == own.shape[1]:
                continue
            tokens = theirs.shape[1] - self.num_prefix_tokens
            if tokens >= 1 and math.isqrt(tokens) ** 2 == tokens:  # otherwise torch reports another shape
                state_dict[name] = resample_table(theirs, self.patch_embed.grid_size, None, self.num_prefix_tokens)
        return state_dict


def resample_table(table: Tensor, grid: Sequence[int], old_grid: Sequence[int] | None, prefix: int) -> Tensor:
    """A table (levels or 1, tokens, C) for another grid, by timm's function: (levels or 1, prefix + rows * columns, C).

    `old_grid` is None for a square; `prefix` is the number of tokens before the grid, which stay as they are.
    """
    return torch.cat([resample_abs_pos_embed(level[None], grid, old_grid, prefix) for level in table.detach()])
