"""A vision transformer with a loop over depth: one resolution, one stack of passes.

RingFormer's image models, their baselines, recursive DeiT and recursive Mixer are configurations of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed, global_pool_nlc, resample_abs_pos_embed, to_2tuple, trunc_normal_
from timm.models._features import feature_take_indices
from timm.models._input import update_model_input_size
from torch import Tensor, nn

from recurrence import order, position
from recurrence.block import FeedForward, StackConfig, TokenMixing, build_loop
from recurrence.depth import same_kind, source_passes, warn
from recurrence.signal import SignalConfig
from timm_plugin._model import ImageModel, first_runs, loop_groups
from timm_plugin._stem import StemEmbed

LOOP_ORDERS = {"internal": order.sequence, "external": order.cycle, "reverse": order.cycle_rev}


@dataclass(frozen=True)
class ViTConfig:
    """What a user can set by `timm.create_model(name, ...)`; each entry function gives other defaults.

    Args:
        img_size: height and width of the images, or one number for both.
        patch_size: side of a patch.
        in_chans: channels of the images.
        num_classes: classes; 0 returns pooled features.
        global_pool: "token", "avg", "max", "avgmax", or "" for all tokens.
        embed_dim: C.
        depth: how many layers run, before they are repeated by `loops`.
        num_heads: H, a divisor of C.
        mlp_ratio: hidden width of the MLP as a multiple of C.
        shared: all layers are one stored block.
        loops: how often the stack runs.
        loop_order: "internal" repeats each block in succession (0 0 1 1), "external" the whole stack (0 1 0 1),
            "reverse" too, but the last time backwards (0 1 1 0).
        residual_rank: each pass has LayerNorms, biases, and on every projection a term of this rank of its own, at most
            of rank C; None for nothing.
        level_signal: what tells a shared block its depth: "low-rank" (RingFormer), "static" or "learned" (a table added
            before every pass, as in the Universal Transformer), "none".
        signal_rank_divisor: rank of the low-rank signals is C // signal_rank_divisor.
        shared_mlp: one MLP serves all attention layers (One Wide FFN).
        token_mixing: an MLP over the tokens in the place of attention, with half of C as hidden width (Mixer).
        pos_embed: "sincos" (fixed), "learn", "none".
        class_token: whether a class token stands before the patches.
        stem: "patch" for one convolution, "conv" for SReT's stem.
        nll: a non-linear projection behind each pass (SReT's NLL).
        lrc: learnable residual coefficients (SReT's LRC).
        norm_eps: epsilon of the blocks' LayerNorms; the final one has 1e-6.
        init: "ringformer" or "deit".
        drop_rate: dropout before the classifier.
        pos_drop_rate: on the embedded tokens.
        proj_drop_rate: on the output of attention. (timm's ViT has one rate for this and the next.)
        mlp_drop_rate: on the MLP's hidden units and its output.
        attn_drop_rate: on the attention weights.
        drop_path_rate: of the last pass; it rises linearly from 0.

    Raises:
        ValueError: where a value breaks its rule, by name.
    """

    img_size: int | Sequence[int] = 224
    patch_size: int = 16
    in_chans: int = 3
    num_classes: int = 1000
    global_pool: str = "token"
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_ratio: float = 4.0
    shared: bool = False
    loops: int = 1
    loop_order: str = "internal"
    residual_rank: int | None = None
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
    drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    mlp_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0

    def __post_init__(self):
        choices = {
            "loop_order": tuple(LOOP_ORDERS),
            "level_signal": ("low-rank", "static", "learned", "none"),
            "pos_embed": ("sincos", "learn", "none"),
            "stem": ("patch", "conv"),
            "init": ("ringformer", "deit"),
        }
        for name, values in choices.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {values}")
        for name in ("patch_size", "in_chans", "embed_dim", "depth", "num_heads", "loops", "signal_rank_divisor"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be >= 1")
        for name in (field.name for field in fields(self) if field.name.endswith("_rate")):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be a rate within [0, 1]")
        if self.num_classes < 0:
            raise ValueError(f"num_classes={self.num_classes}: must be >= 0")
        for name in ("mlp_ratio", "norm_eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be > 0")
        if self.embed_dim % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads}: must divide embed_dim={self.embed_dim}")
        if any(side < self.patch_size for side in to_2tuple(self.img_size)):
            raise ValueError(f"img_size={self.img_size}: must be >= patch_size={self.patch_size}")
        if self.global_pool == "token" and not self.class_token:
            raise ValueError("global_pool='token': needs class_token=True")
        if self.shared_mlp and (self.shared or self.nll or self.token_mixing):
            raise ValueError("shared_mlp=True: goes with neither shared, nll nor token_mixing")
        if self.token_mixing and (self.class_token or self.level_signal == "low-rank" or self.attn_drop_rate):
            raise ValueError("token_mixing=True: goes with no class_token, low-rank level_signal or attn_drop_rate")
        if self.token_mixing and self.num_heads != 1:
            raise ValueError(f"num_heads={self.num_heads}: token_mixing=True has no heads; must be 1")
        if self.residual_rank is not None:
            if not 1 <= self.residual_rank <= self.embed_dim:
                raise ValueError(f"residual_rank={self.residual_rank}: must be >= 1 and <= embed_dim={self.embed_dim}")
            if self.shared_mlp or self.token_mixing or self.level_signal == "low-rank":
                raise ValueError("residual_rank: goes with neither shared_mlp, token_mixing nor low-rank level_signal")
        if self.stem == "conv" and self.patch_size != 16:
            raise ValueError(f"patch_size={self.patch_size}: stem='conv' has patches of 16")

    def order(self) -> tuple[int, ...]:
        """One stored block a pass."""
        if self.shared:
            return (0,) * (self.depth * self.loops)
        return LOOP_ORDERS[self.loop_order](self.depth, self.depth * self.loops)

    def stack(self, tokens: int) -> StackConfig:
        """The core's configuration for so many tokens."""
        passes = self.order()
        rates = tuple(self.drop_path_rate * index / max(len(passes) - 1, 1) for index in range(len(passes)))
        low_rank = self.level_signal == "low-rank"
        return StackConfig(
            width=self.embed_dim,
            ffn_width=round(self.embed_dim * self.mlp_ratio),
            heads=self.num_heads,
            order=passes,
            activation=F.gelu,
            dropout=self.proj_drop_rate,
            ffn_dropout=self.mlp_drop_rate,
            attention_dropout=self.attn_drop_rate,
            activation_dropout=self.mlp_drop_rate,
            drop_path=rates if self.drop_path_rate else (),
            pre_norm=True,
            norm_eps=self.norm_eps,
            norms="pass" if low_rank or self.residual_rank is not None else "sublayer",
            residual_rank=self.residual_rank,
            ffn="shared" if self.shared_mlp else "block",
            signal=SignalConfig(max(1, self.embed_dim // self.signal_rank_divisor)) if low_rank else None,
            learned_residuals=self.lrc,
            projection_width=self.embed_dim if self.nll else None,
            token_mixing=(tokens, self.embed_dim // 2) if self.token_mixing else None,
        )


class RecurrentVisionTransformer(ImageModel):
    """Patches, positions, a loop over depth, a final norm, and a classifier on the class token or the pooled patches.

    The features of `features_only` are the patch tokens after each depth.
    """

    pools = ("", "token", "avg", "max", "avgmax")

    def __init__(self, **kwargs: Any):
        super().__init__()
        self.config = config = ViTConfig(**kwargs)
        self.in_chans, self.num_features = config.in_chans, config.embed_dim
        embed = StemEmbed if config.stem == "conv" else PatchEmbed
        if config.stem == "conv":
            self._traits = dict(first_conv="patch_embed.stem.conv1")  # timm adapts this one to other in_chans
        self.patch_embed = embed(
            img_size=config.img_size,
            patch_size=config.patch_size,
            in_chans=config.in_chans,
            embed_dim=config.embed_dim,
        )
        self.num_prefix_tokens = int(config.class_token)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim)) if config.class_token else None
        self.pos_drop = nn.Dropout(config.pos_drop_rate)
        tokens = self.patch_embed.num_patches + self.num_prefix_tokens
        self.loop = build_loop(config.stack(tokens))
        self.runs = self.loop.passes // len(config.order())  # an attention and the shared MLP are one depth
        self._make_tables(tokens)
        self.norm = nn.LayerNorm(config.embed_dim, 1e-6)
        self.feature_info = [
            dict(module="loop", num_chs=config.embed_dim, reduction=config.patch_size) for _ in config.order()
        ]
        self.make_head(config.num_classes, config.global_pool, config.drop_rate)
        INITIALISATIONS[config.init](self)

    def _make_tables(self, tokens: int) -> None:
        """Positions that are added once, and levels that are added before every pass.

        Fixed tables are buffers that the checkpoint holds, so that one made at another image size can be resampled.
        """
        config, dtype = self.config, torch.get_default_dtype()
        shape, passes = (tokens, config.embed_dim), len(config.order())
        self.pos_embed = self.depth_embed = self.level_embed = None
        if config.level_signal == "static":
            del self.pos_embed, self.depth_embed
            self.register_buffer("pos_embed", position.depth_time(*shape).to(dtype)[None])
            self.register_buffer("depth_embed", position.depth_time(passes, config.embed_dim).to(dtype)[:, None, None])
        elif config.level_signal == "learned":
            self.level_embed = nn.Parameter(torch.empty(passes, *shape))
            nn.init.normal_(self.level_embed)
        elif config.pos_embed == "sincos":
            del self.pos_embed
            self.register_buffer("pos_embed", position.interleaved(*shape).to(dtype)[None])
        elif config.pos_embed == "learn":
            self.pos_embed = trunc_normal_(nn.Parameter(torch.empty(1, *shape)), std=0.02)

    def levels(self) -> list[Tensor] | None:
        """What is added before each pass, (1, N, C) each; None where nothing is."""
        if self.depth_embed is not None:
            return [self.pos_embed + self.depth_embed[index] for index in range(self.loop.passes)]
        return (
            None if self.level_embed is None else [self.level_embed[index][None] for index in range(self.loop.passes)]
        )

    def embed(self, x: Tensor) -> Tensor:
        """Images (B, in_chans, height, width) -> tokens (B, N, C) before the first pass."""
        x = self.patch_embed(x)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        if self.pos_embed is not None and self.depth_embed is None:
            x = x + self.pos_embed
        return self.pos_drop(x)

    def encode(self, x: Tensor, shallow: bool = False) -> Tensor:
        """Embedded tokens -> tokens after the final norm, (B, N, C); shallow runs each stored block once."""
        x, _ = self.loop(x, levels=self.levels(), run=first_runs(self.loop) if shallow else None)
        return self.norm(x)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images -> tokens after the final norm, (B, N, C), the class token first."""
        return self.encode(self.embed(x))

    def pool(self, x: Tensor) -> Tensor:
        """(B, N, C) -> (B, C), or (B, N, C) where global_pool is ""."""
        return global_pool_nlc(x, self.global_pool, self.num_prefix_tokens)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The final features and the patch tokens after the chosen depths.

        Args:
            x: (B, in_chans, height, width).
            indices: depths, or how many of the last; None for all.
            return_prefix_tokens: give (patches, class token) for each depth.
            norm: apply the final norm to them too.
            stop_early: run no pass behind the last chosen depth.
            output_fmt: "NCHW" or "NLC".
            intermediates_only: return the list alone.

        Raises:
            ValueError: if output_fmt is neither.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt={output_fmt!r}: must be 'NCHW' or 'NLC'")
        depths = self.loop.passes // self.runs
        taken, last = feature_take_indices(depths, indices)
        run = range((last + 1 if stop_early else depths) * self.runs)
        x, states = self.loop(self.embed(x), levels=self.levels(), run=run)
        features = [states[(index + 1) * self.runs - 1] for index in taken]
        features = [self.norm(feature) if norm else feature for feature in features]
        prefix = [feature[:, : self.num_prefix_tokens] for feature in features]
        features = [feature[:, self.num_prefix_tokens :] for feature in features]
        if output_fmt == "NCHW":
            features = [f.transpose(1, 2).unflatten(2, self.patch_embed.grid_size).contiguous() for f in features]
        if return_prefix_tokens and self.num_prefix_tokens:
            features = list(zip(features, prefix))
        return features if intermediates_only else (self.norm(x), features)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drops what the chosen depths do not need; returns their indices."""
        taken, last = feature_take_indices(self.loop.passes // self.runs, indices)
        self.loop.truncate((last + 1) * self.runs)
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return taken

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's groups of parameters for layer-wise learning rates."""
        stem = r"^cls_token|pos_embed|level_embed|patch_embed"
        return dict(stem=stem, blocks=[*loop_groups("loop", self.loop), (r"^norm", (99999,))])

    def set_input_size(self, img_size: int | tuple[int, int] | None = None, patch_size: int | None = None) -> None:
        """Takes images of another size from now on; tables are resampled by timm's function.

        Raises:
            ValueError: if the model mixes tokens by an MLP, whose weights fit one number of tokens.
        """
        if self.config.token_mixing:
            raise ValueError(f"img_size={img_size}: an MLP over the tokens takes {self.patch_embed.img_size} alone")
        before = self.patch_embed.grid_size
        self.patch_embed.set_input_size(img_size=img_size, patch_size=patch_size)
        grid = self.patch_embed.grid_size
        if grid != before:
            for name in ("pos_embed", "level_embed"):
                table = getattr(self, name)
                if table is not None:
                    resampled = resample_table(table, grid, before, self.num_prefix_tokens)
                    if isinstance(table, nn.Parameter):
                        resampled = nn.Parameter(resampled, requires_grad=table.requires_grad)
                    setattr(self, name, resampled)
        update_model_input_size(self, self.patch_embed.img_size, patch_size=patch_size)

    def adapt(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Resamples tables of another image size, and takes tables of another depth, see :mod:`recurrence.depth`."""
        self._take_levels(state_dict)
        for name in ("pos_embed", "level_embed"):
            theirs, own = state_dict.get(name), getattr(self, name)
            if own is not None and theirs is not None and theirs.shape[1] != own.shape[1]:
                grid = self.patch_embed.grid_size
                state_dict[name] = resample_table(theirs, grid, None, self.num_prefix_tokens)
        return state_dict

    def _take_levels(self, state_dict: dict[str, Tensor]) -> None:
        """Rows of the learned levels by the rule for what belongs to a pass; those of fixed ones are this model's."""
        for name in ("level_embed", "depth_embed"):
            theirs, own, used = state_dict.get(name), getattr(self, name), self.loop.order
            if theirs is None or own is None or len(theirs) == len(own):
                continue
            trained = same_kind(used, len(theirs))
            if trained is None:
                continue  # torch names the two shapes
            warn(name, used, trained)
            state_dict[name] = own if name == "depth_embed" else theirs[list(source_passes(trained, used))]


def resample_table(table: Tensor, grid: Sequence[int], old_grid: Sequence[int] | None, prefix: int) -> Tensor:
    """A table of (levels or 1, tokens, C) for another grid of tokens, by timm's function."""
    return torch.cat([resample_abs_pos_embed(level[None], grid, old_grid, prefix) for level in table.detach()])


def ringformer_init_(model: RecurrentVisionTransformer) -> None:
    """MLP weights Xavier uniform, their biases N(0, 1e-6), class token 0; the rest as PyTorch has it.

    Source: RingFormer's published code for images.
    """
    for mlp in (module for module in model.modules() if isinstance(module, (FeedForward, TokenMixing))):
        for layer in (mlp.up, mlp.down):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.normal_(layer.bias, std=1e-6)


def deit_init_(model: RecurrentVisionTransformer) -> None:
    """Linear weights and class token truncated normal with std 0.02, biases 0.

    Source: DeiT (arXiv:2012.12877), after its published code.
    """
    for layer in (module for module in model.modules() if isinstance(module, nn.Linear)):
        trunc_normal_(layer.weight, std=0.02)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    if model.cls_token is not None:
        trunc_normal_(model.cls_token, std=0.02)


INITIALISATIONS = {"ringformer": ringformer_init_, "deit": deit_init_}
