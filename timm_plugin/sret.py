"""SReT: a pyramid of stages whose blocks run repeatedly, with sliced attention.

Paper: Sliced Recursive Transformer (arXiv:2111.05297), sections 3 and 4, Tables 3 and 5.

Differs from the published code: inference is deterministic (permutations are stored in the checkpoint, see
`recurrence.papers.slices`); blocks may run any number of times; drop path rates follow the depth
(`drop_path_placement="published"` uses the published rates); other image sizes are supported by resampling positions.

The class token and the patches of Table 3 were not released. Assumed here: PiT's patches, a class token without a
position, and between stages the same convolution for the class token, as a map of one place. This gives the paper's
parameter counts in all rows.

For SReT-108 (section 5.7, Figure 9) the paper gives no shapes. Assumed here: a layer is a pass, as in Table 1; TL's
ratios, slices and distribution of blocks over the stages, and the largest width within the abstract's "13~15M"
parameters for "more than 100 or even 1000" layers. At mixed depth, the shallow branch runs each stored block once, with
the projection of its first pass, and shares stem, pooling, norm and classifier with the deep branch. Both are trained
on the labels with equal weight; inference uses the deep branch.

Not in the paper: SReT-Nano, a model for CIFAR-10 whose weights are part of this package, see
`weights/sret_nano.cifar10.md`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd, inf, lcm
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import global_pool_nlc, resample_abs_pos_embed_nhwc, to_2tuple, trunc_normal_
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from recurrence.block import Shape
from recurrence.loop import Loop
from recurrence.order import STRATEGIES
from recurrence.papers.slices import SliceConfig
from recurrence.papers.sret import Recursion, sret
from recurrence.private_torch import is_plain
from recurrence.weights.names import rename
from timm_plugin._compat import update_model_input_size
from timm_plugin._config import DEPTH_OPTIONS, ImageConfig, option
from timm_plugin._create import create, image_cfg
from timm_plugin._layers import STEMS, DropPath
from timm_plugin._model import ImageModel, loop_groups, require_batch, take
from timm_plugin._names import stage_pieces

# The first run of a block that permutes the tokens, by `permuted_runs`. Section 5.3 mentions different designs but
# describes only the published one.
FIRST_PERMUTED = {"none": inf, "later": 1, "all": 0}


@dataclass(frozen=True)
class SReTConfig(ImageConfig):
    """The options of `timm.create_model(name, ...)`, besides those of :class:`ImageConfig`; entry functions set
    defaults.

    Args:
        stem: "conv" for three convolutions, "patch" for PiT's overlapping patches.
        class_token: add a class token before the tokens of the map; needs global attention.
        embed_dim: C of the first stage; each stage doubles it.
        num_heads: heads of each stage.
        depths: stored blocks of each stage.
        loops: how often each block runs in succession.
        groups: for each stage, the number of slices in a block's first, second, ... run; 1 is global attention. Further
            runs have as many as the last one given.
        permuted_runs: which runs of a block permute the tokens before they are sliced: "later" for all but its first,
            as published; "all" or "none".
        inference_permutation: "fixed", or "random" as published.
        permutation_seed: seed of the fixed permutations.
        mlp_ratio: hidden width of the MLP as a multiple of C, rounded down.
        nll_ratio: hidden width of the projection after each pass as a multiple of C; 0 for none.
        lrc: learnable residual coefficients.
        proj_drop_rate: dropout on the outputs of attention, MLPs and projections, and on hidden units.
        drop_path_rate: rises linearly from 0 and would reach this value after the last pass.
        drop_path_placement: "depth" gives pass i of P, counted over all stages, i / P of this rate; "published" gives
            all passes of block r of a stage the rate of pass s + r, where s is the stage's first pass. Without effect
            at a rate of 0: timm saves this option, but no rates.
    """

    stem: str = option("conv", choices=tuple(STEMS))
    class_token: bool = False
    embed_dim: int = option(64, least=1)
    num_heads: Sequence[int] = (2, 4, 8)
    depths: Sequence[int] = (2, 5, 3)
    loops: int = option(2, least=1)
    groups: Sequence[Sequence[int]] = ((8, 2), (4, 1), (1, 1))
    permuted_runs: str = option("later", choices=tuple(FIRST_PERMUTED))
    inference_permutation: str = option("fixed", choices=("fixed", "random"))
    permutation_seed: int = 0
    mlp_ratio: float = 4.0
    nll_ratio: float = option(1.0, least=0)
    lrc: bool = True
    drop_path_placement: str = option("depth", choices=("depth", "published"))

    names = {
        "width": "its stage's width",
        "heads": "num_heads",
        "ffn_width": "mlp_ratio * its stage's width",
        "projection_width": "nll_ratio * its stage's width",
    }

    def check(self) -> None:
        super().check()
        if self.pass_loss:
            raise ValueError(
                f"pass_loss={self.pass_loss}: must be 0 in a pyramid, where no pass ends a shallower model"
            )
        if self.embed_dim % 2:
            raise ValueError(f"embed_dim={self.embed_dim}: must be even, as the stem begins with half of it")
        if min(self.depths, default=0) < 1:
            raise ValueError(f"depths={self.depths}: needs at least one, and each must be >= 1")
        for name in ("num_heads", "groups"):
            if len(getattr(self, name)) != len(self.depths):
                raise ValueError(f"{name}={getattr(self, name)}: needs one entry for each of {len(self.depths)} stages")
        if not all(self.groups):
            raise ValueError(f"groups={self.groups}: needs at least one number for each stage")
        for stage in range(len(self.depths)):
            self.shape(stage)  # which has the rules for sizes
        sliced = any(count != 1 for groups in self.groups for count in groups)
        if sliced and self.class_token:
            raise ValueError(f"groups={self.groups}: class_token=True needs 1 everywhere, as the token is in no slice")
        for name in ("permuted_runs", "inference_permutation", "permutation_seed"):
            if not sliced and getattr(self, name) != getattr(SReTConfig, name):
                raise ValueError(f"{name}={getattr(self, name)!r}: needs slices in groups")
        if self.inference_permutation == "random" and self.permutation_seed != SReTConfig.permutation_seed:
            raise ValueError(f"permutation_seed={self.permutation_seed}: needs inference_permutation='fixed'")
        grids = self.grids(self.img_size)
        if min(grids[0]) < 1:
            raise ValueError(f"img_size={self.img_size}: must be >= 16, the side of a patch")
        for stage, (height, width) in enumerate(grids):
            try:
                self.slices(stage, height * width)
            except ValueError as error:
                place = f"({height} x {width}) of stage {stage + 1} at img_size={self.img_size}"
                sides = "multiples of 32" + ("" if self.stem == "conv" else " plus 8")
                raise ValueError(f"{error} {place}; try other groups, or an img_size in {sides}") from None

    def grids(self, img_size: int | Sequence[int]) -> list[tuple[int, int]]:
        """Height and width of each stage's map in tokens; each stage halves them, rounding up."""
        first = [STEMS[self.stem].grid(side) for side in to_2tuple(img_size)]
        return [tuple(-(-side // 2**stage) for side in first) for stage in range(len(self.depths))]

    def drop_path(self, stage: int) -> list[float]:
        """The rate of each pass of a stage."""
        start, total = self.loops * sum(self.depths[:stage]), self.loops * sum(self.depths)
        every = self.loops if self.drop_path_placement == "published" else 1
        passes = range(self.loops * self.depths[stage])
        return [self.drop_path_rate * (start + index // every) / total for index in passes]

    def shape(self, stage: int) -> Shape:
        """Sizes and rates of the blocks of a stage."""
        width = self.embed_dim * 2**stage
        return Shape(
            width=width,
            ffn_width=int(width * self.mlp_ratio),
            heads=self.num_heads[stage],
            norm_eps=1e-6,
            dropout=self.proj_drop_rate,
            attention_dropout=self.attn_drop_rate,
            activation_dropout=self.proj_drop_rate,
        )

    def slices(self, stage: int, tokens: int) -> SliceConfig:
        """The slices of a stage with this number of tokens."""
        groups, blocks = self.groups[stage], self.depths[stage]
        of_runs = tuple(groups[min(run, len(groups) - 1)] for run in range(self.loops))
        permuted = tuple(run >= FIRST_PERMUTED[self.permuted_runs] for run in range(self.loops))
        seed = self.permutation_seed + 1000 * stage
        always_random = self.inference_permutation == "random"
        return SliceConfig(tokens, of_runs * blocks, permuted * blocks, always_random, seed)

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """See :meth:`ImageConfig.unshared`; a block has the slices of its first run."""
        return {**DEPTH_OPTIONS, "depths": tuple(blocks), "loops": 1}

    def more_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """See :meth:`recurrence.comparison.controls.Controls.more_heads`; `hidden` is that of the first stage."""
        whole = gcd(*self.num_heads, self.embed_dim // 2)  # so that the width stays even
        heads = tuple(heads // whole * (whole + steps) for heads in self.num_heads)
        return {"num_heads": heads, **self._sized(self.embed_dim // whole * (whole + steps), hidden)}

    def narrower_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """As :meth:`more_heads`, with as many heads.

        A step, which is negative, is the smallest that keeps the width even and heads whole.
        """
        whole = lcm(2, *(heads // gcd(heads, 2**stage) for stage, heads in enumerate(self.num_heads)))
        return self._sized(self.embed_dim + whole * steps, hidden)

    def _sized(self, width: int, hidden: int) -> dict[str, Any]:
        mlp = int(self.embed_dim * self.mlp_ratio) * width // self.embed_dim + hidden
        return {"embed_dim": width, "mlp_ratio": mlp / width}


class Stage(nn.Module):
    """A convolution that halves the map of the previous stage, then a loop over depth on its tokens."""

    def __init__(self, loop: Loop, grid: tuple[int, int], width: int, downsample: bool):
        super().__init__()
        self.grid, half = grid, width // 2
        self.pool = nn.Conv2d(half, width, 3, stride=2, padding=1, groups=half) if downsample else nn.Identity()
        self.loop = loop

    def forward(
        self, x: Tensor, token: Tensor | None = None, passes: int | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The map of the previous stage -> that of this stage; with a class token, both as a pair.

        Args:
            x: (B, C, height, width); before a convolution, (B, C / 2, 2 height, 2 width).
            token: (B, C, 1, 1), or (B, C / 2, 1, 1) before a convolution; None for none.
            passes: how many to run; None for all.
        """
        tokens = self.pool(x).flatten(2)
        if token is not None:
            tokens = torch.cat([self._pooled(token).flatten(2), tokens], 2)
        tokens = self.loop(tokens.transpose(1, 2), passes).transpose(1, 2)
        if token is None:
            return tokens.unflatten(2, self.grid)
        token = tokens[..., :1, None]  # before the map: torch.fx takes a module's last step for its feature
        return tokens[..., 1:].unflatten(2, self.grid), token

    def _pooled(self, token: Tensor) -> Tensor:
        """The convolution of a class token, (B, C / 2, 1, 1) -> (B, C, 1, 1), which sees the centre of the kernel only.

        Some CPUs give the rest of the kernel a gradient of NaN in bfloat16. A convolution that was changed is called.
        """
        pool = self.pool
        if not (isinstance(token, Tensor) and is_plain(pool, nn.Conv2d)):
            return pool(token)
        if (pool.padding, pool.dilation, pool.padding_mode) != ((1, 1), (1, 1), "zeros"):
            return pool(token)
        return F.conv2d(token, pool.weight[..., 1:2, 1:2], pool.bias, groups=pool.groups)


class SReT(ImageModel):
    """Stem, stages of shared blocks, mean over the map or class token, norm, classifier.

    `features_only` returns the maps of the stages.
    """

    unlike_upstream = "it has stages"

    def __init__(self, **options: Any):
        super().__init__(SReTConfig.of(options))

    def build(self, config: SReTConfig) -> None:
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
        self.stages = nn.ModuleList(
            Stage(make_loop(config, number, rows * columns), (rows, columns), config.embed_dim * 2**number, number > 0)
            for number, (rows, columns) in enumerate(sizes)
        )
        self.training_depths = [
            config.training_depth(stage.loop.order, unit=blocks) for stage, blocks in zip(self.stages, config.depths)
        ]
        self.feature_info = [
            dict(module=f"stages.{stage}", num_chs=config.embed_dim * 2**stage, reduction=8 * 2**stage)
            for stage in range(len(sizes))
        ]
        self.num_features = config.embed_dim * 2 ** (len(sizes) - 1)
        self.norm = nn.LayerNorm(self.num_features, 1e-6)

    def embed(self, x: Tensor) -> Tensor:
        """Images (B, in_chans, height, width) -> the map before the first stage, (B, C, rows, columns)."""
        require_batch(x)
        return self.pos_drop(self.patch_embed(x) + self.pos_embed)

    def encode(self, x: Tensor, depths: Sequence[int | None]) -> Tensor:
        """The embedded map -> the map of the last stage (B, C, rows, columns), or tokens (B, 1 + N, C).

        Tokens if the model has a class token, which comes first.
        """
        token = self.class_tokens(x)
        for stage, passes in zip(self.stages, depths):
            x, token = run_stage(stage, x, token, passes)
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

        If global_pool is "", it is unchanged; for a classifier, its tokens are normalised. Raises ValueError for the
        classes of a map, which timm's `reset_classifier` allows.
        """
        if not self.global_pool:
            self.check_pool(self.num_classes, "")  # a new classifier may have been set since
            return self.norm(x) if self.num_classes else x
        tokens = x if self.num_prefix_tokens else x.flatten(2).transpose(1, 2)
        return self.norm(global_pool_nlc(tokens, self.global_pool, self.num_prefix_tokens))

    def features(
        self, x: Tensor, indices: int | Sequence[int] | None, norm: bool, stop_early: bool
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """For :meth:`forward_intermediates`: the output, maps (B, C, height, width), class tokens (B, 1, C).

        In training, all passes run, whatever depth the update draws.
        """
        taken = take(len(self.stages), indices)
        stages = self.stages[: taken[-1] + 1] if stop_early else self.stages
        depths = [None] * len(stages) if self.training else self.depths()
        maps, prefix, x = [], [], self.embed(x)
        token = self.class_tokens(x)
        for index, (stage, passes) in enumerate(zip(stages, depths)):
            x, token = run_stage(stage, x, token, passes)
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
        """Removes the stages and parts that the chosen stages do not need; returns the indices of the chosen.

        Raises:
            AssertionError: for an index that no stage has, as timm does.
        """
        taken = take(len(self.stages), indices)
        shorter = taken[-1] < len(self.stages) - 1
        self.stages = self.stages[: taken[-1] + 1]
        self.training_depths = self.training_depths[: taken[-1] + 1]
        self.passes = self.passes and self.passes[: taken[-1] + 1]
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

        The size before does not bring the model back.

        Raises:
            ValueError: if it is not a size, or slices do not divide the tokens. The model is unchanged then.
        """
        replace(self.config, img_size=img_size)  # a configuration checks itself; this one is not kept
        sizes = self.config.grids(img_size)
        device = self.pos_embed.device
        self.patch_embed.set_input_size(img_size)
        if self.pos_embed.shape[2:] != sizes[0]:
            self.pos_embed = nn.Parameter(resample_map(self.pos_embed, sizes[0]), self.pos_embed.requires_grad)
        for number, (stage, (height, width)) in enumerate(zip(self.stages, sizes)):
            if stage.grid == (height, width):  # keeps the permutations, which may be those of a checkpoint
                continue
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


def make_loop(config: SReTConfig, stage: int, tokens: int) -> Loop:
    """The stack of a stage with this number of tokens."""
    shape, blocks = config.shape(stage), config.depths[stage]
    projection_width = int(shape.width * config.nll_ratio) if config.nll_ratio else None
    recursion = Recursion(config.lrc, projection_width, slices=config.slices(stage, tokens))
    order = STRATEGIES["sequence"].order(blocks, blocks * config.loops)
    loop = sret(shape, order, recursion, pre_norm=True, activation=F.gelu)
    if config.drop_path_rate:
        for own, rate in zip(loop.own, config.drop_path(stage), strict=True):
            own.drop_path = DropPath(rate)
    if not config.nll_ratio:  # only projections show in a checkpoint how many passes trained it
        loop.note_order()
    return loop


def run_stage(stage: Stage, x: Tensor, token: Tensor | None, passes: int | None) -> tuple[Tensor, Tensor | None]:
    """A stage on a map and its class token, if there is one, with a number of passes, None for all."""
    y = stage(x, token, passes)
    return (y, None) if token is None else y


def join_token(x: Tensor, token: Tensor | None) -> Tensor:
    """A map (B, C, height, width) and its class token (B, C, 1, 1) as (B, 1 + N, C); without token, the map."""
    return x if token is None else torch.cat([token.flatten(2), x.flatten(2)], 2).transpose(1, 2)


def resample_map(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Positions (1, C, height, width) for another grid, by timm's function."""
    return resample_abs_pos_embed_nhwc(table.detach().permute(0, 2, 3, 1), grid).permute(0, 3, 1, 2)


def _create_sret(variant: str, pretrained: bool, preset: dict[str, Any], given: dict[str, Any]) -> nn.Module:
    """See :func:`timm_plugin._create.create`; the features are one of each stage."""
    stages = {**preset, **given}["depths"]
    return create(SReT, variant, pretrained, preset, given, len(stages) if isinstance(stages, Sequence) else 1)


SRET_URL = "https://github.com/szq0214/SReT"
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# Of all models of the paper.
sret_cfg = partial(image_cfg, crop_pct=0.9, paper_name="Sliced Recursive Transformer", paper_ids="arXiv:2111.05297")
_cfg = partial(sret_cfg, pool_size=(7, 7), first_conv="patch_embed.conv1", origin_url=SRET_URL)

default_cfgs = generate_default_cfgs(
    {
        **dict.fromkeys(("sret_ext", "sret_t", "sret_tl", "sret_s"), _cfg()),
        **dict.fromkeys(("sret_t_global", "sret_tl_global", "sret_s_global"), _cfg()),
        "sret_nano.cifar10": _cfg(
            file=str(Path(__file__).parent / "weights" / "sret_nano.cifar10.safetensors"),
            license="mit",
            input_size=(3, 64, 64),
            pool_size=(4, 4),
            crop_pct=1.0,
            num_classes=10,
            label_names=CIFAR10,
        ),
        **dict.fromkeys(("sret_108", "sret_108_mixed"), _cfg()),
    }
)

GLOBAL = ((1, 1),) * 3  # no slices in either run of a block, in any of the three stages
T = dict(embed_dim=64, depths=(2, 5, 3), num_heads=(2, 4, 8), mlp_ratio=3.6, nll_ratio=1.0)
TL = dict(T, mlp_ratio=4.0)
S = dict(embed_dim=126, depths=(2, 5, 3), num_heads=(3, 6, 12), mlp_ratio=3.0, nll_ratio=2.0)
DEEP = dict(TL, embed_dim=48, depths=(11, 27, 16))  # with `embed_dim=16, depths=(100, 250, 150)`, 1,000 passes


@register_model
def sret_ext(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SReT-ExT of Table 5, whose shape is found, not published

    The paper gives 4.0M parameters and 0.7 GMAC. Of the pyramids with a stem of this kind, two passes per block, TL's
    ratios and these slices, width 48 with 1, 5 and 5 blocks is the nearest to both.
    """
    return _create_sret("sret_ext", pretrained, dict(TL, embed_dim=48, depths=(1, 5, 5)), kwargs)


@register_model
def sret_t(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SReT-T of Table 5"""
    return _create_sret("sret_t", pretrained, T, kwargs)


@register_model
def sret_tl(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SReT-TL of Table 5"""
    return _create_sret("sret_tl", pretrained, TL, kwargs)


@register_model
def sret_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SReT-S of Table 5"""
    return _create_sret("sret_s", pretrained, S, kwargs)


@register_model
def sret_t_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SReT-*T of Table 5, without slices"""
    return _create_sret("sret_t_global", pretrained, dict(T, groups=GLOBAL), kwargs)


@register_model
def sret_tl_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SReT-*TL of Table 5, without slices"""
    return _create_sret("sret_tl_global", pretrained, dict(TL, groups=GLOBAL), kwargs)


@register_model
def sret_s_global(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SReT-*S of Table 5, without slices"""
    return _create_sret("sret_s_global", pretrained, dict(S, groups=GLOBAL), kwargs)


@register_model
def sret_nano(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SReT for CIFAR-10, with 10 classes; not in the paper"""
    sizes = dict(embed_dim=64, depths=(1, 1), num_heads=(2, 4), loops=4, mlp_ratio=3.5, nll_ratio=0.0)
    return _create_sret("sret_nano", pretrained, dict(sizes, groups=((1,), (1,))), kwargs)


@register_model
def sret_108(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SReT-108 of Figure 9"""
    return _create_sret("sret_108", pretrained, DEEP, kwargs)


@register_model
def sret_108_mixed(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SReT-108 trained at mixed depth, beside one run of each of its 54 blocks"""
    mixed = kwargs.get("loops") != 1  # one run of each block is the shallow model alone
    return _create_sret("sret_108_mixed", pretrained, dict(DEEP, mixed_depth=mixed), kwargs)
