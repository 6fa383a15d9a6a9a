"""SReT's model: a stem, a pyramid of stages with a loop over depth each, and a classifier.

Source: Sliced Recursive Transformer (arXiv:2111.05297), section 3; :mod:`timm_plugin.sret` says where it differs.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import global_pool_nlc, resample_abs_pos_embed, trunc_normal_
from torch import Tensor, nn

from recurrence.loop import Loop
from recurrence.private_torch import is_plain
from recurrence.weights.names import rename
from timm_plugin._compat import update_model_input_size
from timm_plugin._model import ImageModel, loop_groups, take
from timm_plugin._names import stage_pieces
from timm_plugin._stem import STEMS


class Stage(nn.Module):
    """A convolution that halves the map of the previous stage, then a loop over depth on its tokens."""

    def __init__(self, loop: Loop, grid: tuple[int, int], width: int, downsample: bool):
        super().__init__()
        self.grid, half = grid, width // 2
        self.pool = nn.Conv2d(half, width, 3, stride=2, padding=1, groups=half) if downsample else nn.Identity()
        self.loop = loop

    def forward(
        self, x: Tensor, token: Tensor | None = None, indices: Sequence[int] | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The map of the previous stage -> that of this stage; with a class token, both as a pair.

        Args:
            x: (B, C, height, width); before a convolution, (B, C / 2, 2 height, 2 width).
            token: (B, C, 1, 1), or (B, C / 2, 1, 1) before a convolution; None for none.
            indices: the passes to run, see :meth:`recurrence.loop.Loop.forward`.
        """
        tokens = self.pool(x).flatten(2)
        if token is not None:
            tokens = torch.cat([self._pooled(token).flatten(2), tokens], 2)
        tokens = self.loop(tokens.transpose(1, 2), indices=indices).transpose(1, 2)
        if token is None:
            return tokens.unflatten(2, self.grid)
        token = tokens[..., :1, None]  # before the map: torch.fx takes a module's last step for its feature
        return tokens[..., 1:].unflatten(2, self.grid), token

    def _pooled(self, token: Tensor) -> Tensor:
        """The convolution of a class token, (B, C / 2, 1, 1) -> (B, C, 1, 1), which sees the centre of the kernel only.

        Some CPUs give the rest of the kernel a gradient of NaN in bfloat16.
        """
        if not is_plain(self.pool, nn.Conv2d):
            return self.pool(token)
        return F.conv2d(token, self.pool.weight[..., 1:2, 1:2], self.pool.bias, groups=self.pool.groups)


class SReT(ImageModel):
    """Stem, stages of shared blocks, mean over the map or class token, norm, classifier.

    `features_only` returns the maps of the stages.
    """

    pools: tuple[str, ...] = ("", "avg", "max", "avgmax")
    out_indices = (0, 1, 2)

    def build(self, config: Any) -> None:
        self.patch_embed = STEMS[config.stem](config.in_chans, config.embed_dim, config.img_size)
        if config.stem == "patch":
            self._traits = dict(first_conv="patch_embed.proj")  # timm adapts this one to other in_chans
        sizes = config.grids(config.img_size)
        self.pos_embed = nn.Parameter(torch.empty(1, config.embed_dim, *sizes[0]))
        trunc_normal_(self.pos_embed, std=0.02)
        self.pos_drop = nn.Dropout(config.pos_drop_rate)
        self.num_prefix_tokens = int(config.class_token)
        self.cls_token = None
        if config.class_token:
            self.cls_token = nn.Parameter(torch.empty(1, config.embed_dim, 1, 1))
            trunc_normal_(self.cls_token, std=0.02)
            self.pools = (*self.pools, "token")
        self.stages = nn.ModuleList(
            Stage(config.loop(number, rows * columns), (rows, columns), config.embed_dim * 2**number, number > 0)
            for number, (rows, columns) in enumerate(sizes)
        )
        for stage, blocks in zip(self.stages, config.depths):
            config.make_elastic(stage.loop, unit=blocks)
            if not config.nll_ratio:  # only projections show in a checkpoint how many passes trained it
                stage.loop.note_order()
        self.feature_info = [
            dict(module=f"stages.{stage}", num_chs=config.embed_dim * 2**stage, reduction=8 * 2**stage)
            for stage in range(len(sizes))
        ]
        self.num_features = config.embed_dim * 2 ** (len(sizes) - 1)
        self.norm = nn.LayerNorm(self.num_features, 1e-6)
        self.make_head()

    def embed(self, x: Tensor) -> Tensor:
        """Images (B, in_chans, height, width) -> the map before the first stage, (B, C, height / 8, width / 8)."""
        return self.pos_drop(self.patch_embed(x) + self.pos_embed)

    def encode(self, x: Tensor) -> Tensor:
        """The embedded map -> the map of the last stage (B, C, height / 32, width / 32), or tokens (B, 1 + N, C).

        Tokens if the model has a class token, which comes first.
        """
        token = self.class_tokens(x)
        for stage in self.stages:
            x, token = run_stage(stage, x, token)
        return join_token(x, token)

    def class_tokens(self, x: Tensor) -> Tensor | None:
        """The class token for each map of a batch, (B, C, 1, 1); None without class token."""
        return None if self.cls_token is None else self.cls_token.expand(x.shape[0], -1, -1, -1)

    def check_pool(self, num_classes: int, global_pool: str | None) -> None:
        """Also raises ValueError for classes of a map that is not pooled."""
        super().check_pool(num_classes, global_pool)
        if num_classes and global_pool == "" and not self.num_prefix_tokens:
            raise ValueError("global_pool='': needs num_classes=0, or a class token")

    def pool(self, x: Tensor) -> Tensor:
        """The output of `forward_features` -> normalised (B, C).

        If global_pool is "", it is unchanged; for a classifier, its tokens are normalised.
        """
        if not self.global_pool:
            return self.norm(x) if self.num_classes else x
        tokens = x if self.num_prefix_tokens else x.flatten(2).transpose(1, 2)
        return self.norm(global_pool_nlc(tokens, self.global_pool, self.num_prefix_tokens))

    def features(
        self, x: Tensor, indices: int | Sequence[int] | None, norm: bool, stop_early: bool
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """For :meth:`forward_intermediates`: the output, maps (B, C, height, width), class tokens (B, 1, C).

        Training runs all passes, too.
        """
        taken = take(len(self.stages), indices)
        stages = self.stages[: taken[-1] + 1] if stop_early else self.stages
        maps, prefix, x = [], [], self.embed(x)
        token = self.class_tokens(x)
        for index, stage in enumerate(stages):
            x, token = run_stage(stage, x, token, stage.loop.tested)
            if index not in taken:
                continue
            normed = norm and index == len(self.feature_info) - 1
            maps.append(self._norm_map(x) if normed else x)
            if token is not None:
                token_feature = self._norm_map(token) if normed else token
                prefix.append(token_feature.flatten(2).transpose(1, 2))
        return join_token(x, token), maps, prefix

    def _norm_map(self, x: Tensor) -> Tensor:
        """The final norm on a map: (B, C, height, width) -> the same."""
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Removes the stages and parts that the chosen stages do not need; returns the indices of the chosen."""
        taken = take(len(self.stages), indices)
        shorter = taken[-1] < len(self.stages) - 1
        self.stages = self.stages[: taken[-1] + 1]
        if prune_norm or shorter:
            self.norm = nn.Identity()
        if shorter:
            self.num_features = self.head_hidden_size = self.embed_dim = self.feature_info[taken[-1]]["num_chs"]
        if prune_head or shorter:
            self.reset_classifier(0, "")
        return taken

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's groups of parameters for layer-wise learning rates: passes, or stages if coarse."""
        stem = r"^cls_token|pos_embed|patch_embed"
        if coarse:
            return dict(stem=stem, blocks=[(r"^stages\.(\d+)", None), (r"^norm", (99999,))])
        starts = itertools.accumulate((stage.loop.passes for stage in self.stages), initial=0)
        blocks = []
        for index, (stage, start) in enumerate(zip(self.stages, starts)):
            blocks.append((rf"^stages\.{index}\.pool", (start,)))
            blocks += loop_groups(rf"stages\.{index}\.loop", stage.loop, start)
        return dict(stem=stem, blocks=[*blocks, (r"^norm", (99999,))])

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Changes the image size; positions are resampled, and permutations drawn again from their seeds.

        Raises:
            ValueError: if it is no size, or slices do not divide the tokens. The model is unchanged then.
        """
        replace(self.config, img_size=img_size)  # a configuration checks itself; this one is not kept
        sizes = self.config.grids(img_size)
        device = self.pos_embed.device
        self.patch_embed.set_input_size(img_size)
        self.pos_embed = nn.Parameter(resample_map(self.pos_embed, sizes[0]), self.pos_embed.requires_grad)
        for number, (stage, (height, width)) in enumerate(zip(self.stages, sizes)):
            slices = self.config.slices(number, height * width)
            stage.grid = (height, width)
            for index, own in enumerate(stage.loop.own):
                own.slices = slices.of_pass(index)
            stage.to(device).train(stage.training)  # new slices have the training mode of the rest
        update_model_input_size(self, self.patch_embed.img_size)

    def adapt(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Accepts the published code's names and positions of another image size."""
        if any(name.startswith("transformers.") for name in state_dict):
            state_dict = rename(state_dict, stage_pieces(self.loops()))
        theirs, grid = state_dict.get("pos_embed"), self.pos_embed.shape[2:]
        if theirs is not None and theirs.dim() == 4 and theirs.shape[2:] != grid:
            state_dict["pos_embed"] = resample_map(theirs, grid)
        return state_dict


def run_stage(
    stage: Stage, x: Tensor, token: Tensor | None, indices: Sequence[int] | None = None
) -> tuple[Tensor, Tensor | None]:
    """A stage on a map and its class token, if there is one; indices: see :meth:`Stage.forward`."""
    y = stage(x, token, indices)
    return (y, None) if token is None else y


def join_token(x: Tensor, token: Tensor | None) -> Tensor:
    """A map (B, C, height, width) and its class token (B, C, 1, 1) as (B, 1 + N, C); without token, the map."""
    return x if token is None else torch.cat([token.flatten(2), x.flatten(2)], 2).transpose(1, 2)


def resample_map(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Positions (1, C, height, width) for another grid, by timm's function."""
    old = table.shape[2:]
    tokens = resample_abs_pos_embed(table.detach().flatten(2).transpose(1, 2), grid, old, num_prefix_tokens=0)
    return tokens.transpose(1, 2).unflatten(2, grid)
