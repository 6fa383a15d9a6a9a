"""The options of SReT, their rules, and the loop of each stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, inf, lcm
from typing import Any

import torch.nn.functional as F
from timm.layers import to_2tuple

from recurrence.block import Shape, set_drop_path
from recurrence.comparison.rows import check_narrower
from recurrence.loop import Loop
from recurrence.order import STRATEGIES
from recurrence.papers.sret import Recursion, sret
from recurrence.slicing import SliceConfig
from timm_plugin._config import ImageConfig, option
from timm_plugin._sret import SReT
from timm_plugin._stem import STEMS

# The first run of a block that permutes the tokens, by `permuted_runs`. Section 5.3 mentions different designs but
# describes only the published one.
FIRST_PERMUTED = {"none": inf, "later": 1, "all": 0}


@dataclass(frozen=True)
class SReTConfig(ImageConfig):
    """The options of `timm.create_model(name, ...)`, besides those of :class:`ImageConfig`; entry functions set
    defaults.

    Args:
        global_pool: "avg", "max", "avgmax", with a class token "token", or "" for the output of the last stage.
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
        proj_drop_rate: dropout on the outputs of attention and MLP.
        drop_path_rate: rises linearly from 0 and would reach this value after the last pass.
        drop_path_placement: "depth" gives pass i of P, counted over all stages, i / P of this rate; "published" gives
            all passes of block r of a stage the rate of pass s + r, where s is the stage's first pass.
    """

    global_pool: str = "avg"
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
    nll_ratio: float = 1.0
    lrc: bool = True
    drop_path_placement: str = option("depth", choices=("depth", "published"))

    model = SReT
    undecayed = (*ImageConfig.undecayed, "identity", "branch")
    unlike_upstream = "it has stages"
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
        if self.drop_path_placement != "depth" and not self.drop_path_rate:
            raise ValueError(f"drop_path_placement={self.drop_path_placement!r}: needs drop_path_rate > 0")
        if self.embed_dim % 2:
            raise ValueError(f"embed_dim={self.embed_dim}: must be even, as the stem begins with half of it")
        if min(self.depths, default=0) < 1:
            raise ValueError(f"depths={self.depths}: needs at least one, and each must be >= 1")
        for name in ("num_heads", "groups"):
            if len(getattr(self, name)) != len(self.depths):
                raise ValueError(f"{name}={getattr(self, name)}: needs one entry for each of {len(self.depths)} stages")
        if not all(self.groups):
            raise ValueError(f"groups={self.groups}: needs at least one number for each stage")
        if self.nll_ratio < 0:
            raise ValueError(f"nll_ratio={self.nll_ratio}: must be >= 0")
        for stage in range(len(self.depths)):
            self.shape(stage)  # which has the rules for sizes
        sliced = any(count != 1 for groups in self.groups for count in groups)
        if sliced and self.class_token:
            raise ValueError(f"groups={self.groups}: class_token=True needs 1 everywhere, as it is of no slice")
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
                raise ValueError(f"{error} ({height} x {width}) of stage {stage + 1}; try a multiple of 32") from None

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

    def loop(self, stage: int, tokens: int) -> Loop:
        """The stack of a stage with this number of tokens."""
        shape, blocks = self.shape(stage), self.depths[stage]
        projection_width = int(shape.width * self.nll_ratio) if self.nll_ratio else None
        recursion = Recursion(self.lrc, projection_width, slices=self.slices(stage, tokens))
        order = STRATEGIES["sequence"].order(blocks, blocks * self.loops)
        loop = sret(shape, order, recursion, pre_norm=True, activation=F.gelu)
        if self.drop_path_rate:
            set_drop_path(loop.own, self.drop_path(stage))
        return loop

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """See :meth:`ImageConfig.unshared`; a block has the slices of its first run."""
        return {**super().unshared(blocks), "depths": tuple(blocks), "loops": 1}

    def more_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """See :meth:`ImageConfig.more_heads`."""
        whole = gcd(*self.num_heads, self.embed_dim // 2)  # so that the width stays even
        heads = tuple(heads // whole * (whole + steps) for heads in self.num_heads)
        return {"num_heads": heads, **self._sized(self.embed_dim // whole * (whole + steps), hidden)}

    def narrower_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """See :meth:`ImageConfig.narrower_heads`; a step is the smallest that keeps the width even and heads whole."""
        whole = lcm(2, *(heads // gcd(heads, 2**stage) for stage, heads in enumerate(self.num_heads)))
        check_narrower(self.embed_dim + whole * steps)
        return self._sized(self.embed_dim + whole * steps, hidden)

    def _sized(self, width: int, hidden: int) -> dict[str, Any]:
        mlp = int(self.embed_dim * self.mlp_ratio) * width // self.embed_dim + hidden
        return {"embed_dim": width, "mlp_ratio": mlp / width}

    def slices(self, stage: int, tokens: int) -> SliceConfig:
        """The slices of a stage with this number of tokens."""
        groups, blocks = self.groups[stage], self.depths[stage]
        of_runs = tuple(groups[min(run, len(groups) - 1)] for run in range(self.loops))
        permuted = tuple(run >= FIRST_PERMUTED[self.permuted_runs] for run in range(self.loops))
        seed = self.permutation_seed + 1000 * stage
        return SliceConfig(tokens, of_runs * blocks, permuted * blocks, self.inference_permutation, seed)
