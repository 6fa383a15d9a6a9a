"""UiT, the Universal Transformer for images that RingFormer-ViT is compared with.

Paper: RingFormer (arXiv:2502.13181), section 4.1, appendix A.1, Tables 2 and 3; Universal Transformer
(arXiv:1807.03819). Everything else is as in :mod:`timm_plugin.ringformer_vit`.

Differs from the published code: the position and depth parts of the table are stored separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from recurrence import position
from recurrence.depth import same_kind, source_passes
from recurrence.loading import warn_of_depth
from recurrence.loop import Loop
from recurrence.papers.takase import shared_layers
from timm_plugin._config import option
from timm_plugin._vit import LoopedVisionTransformer, ViTConfig, create_vit
from timm_plugin.ringformer_vit import ringformer_cfg, size


@dataclass(frozen=True)
class UniversalConfig(ViTConfig):
    """The options of UiT, besides those of :class:`ViTConfig`.

    Args:
        level_signal: the table added before every pass: "static" (sines of position and depth) or "learned".
    """

    level_signal: str = option("static", choices=("static", "learned"))

    fixed = ("pos_embed",)  # the tables hold the positions


class UniversalViT(LoopedVisionTransformer):
    """One block; a table of positions and depths is added before each pass."""

    tables = ("pos_embed", "level_embed")
    unlike_upstream = "it adds positions and depths before every pass, and no layer of timm does"

    def __init__(self, **options: Any):
        super().__init__(UniversalConfig.of(options))

    def make_loop(self, config: UniversalConfig, tokens: int) -> Loop:
        return shared_layers(config.shape(), config.passes(), **config.parts())

    def make_tables(self, tokens: int) -> None:
        shape, passes, dtype = (tokens, self.num_features), self.loop.passes, torch.get_default_dtype()
        self.register_buffer("pos_embed", None)
        self.register_buffer("depth_embed", None)
        self.level_embed = None
        if self.config.level_signal == "static":
            self.pos_embed = position.depth_time(*shape).to(dtype)[None]
            self.depth_embed = depth_table(passes, self.num_features).to(dtype)
        else:
            self.level_embed = nn.Parameter(torch.empty(passes, *shape))
            nn.init.normal_(self.level_embed)

    def depth_rules(self) -> dict[str, Any]:
        """There are no static levels for more passes than the model's own."""
        return dict(prefix_only=self.config.level_signal == "static")

    def shows_order(self) -> bool:
        """The tables show the number of passes, and all run one block."""
        return self.config.order is None

    def positions(self) -> None:
        """None: they are in the levels."""

    def levels(self, passes: int | Sequence[int] | None) -> list[Tensor]:
        """See :meth:`LoopedVisionTransformer.levels`.

        At another depth, a pass has the sines of its place, as in a model of that depth, or its learned level. Tables
        are indexed, as torch.fx cannot iterate over them.

        Raises:
            ValueError: if there are more passes than static levels.
        """
        indices = self.loop.indices(passes)
        if self.depth_embed is None:
            return [self.level_embed[index][None] for index in indices]
        levels = len(self.loop.whole or self.loop.order)
        if len(indices) > levels:
            raise ValueError(f"{len(indices)} passes: must be <= {levels}, as each has one static level signal")
        return [self.pos_embed + self.depth_embed[place] for place in range(len(indices))]

    def adapt(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Also adapts the levels of another depth: learned ones by the rule for passes, fixed ones are recomputed."""
        name, used = "depth_embed" if self.level_embed is None else "level_embed", self.loop.order
        theirs, noted = state_dict.get(name), state_dict.get("loop.noted")
        if theirs is None or self.loop.whole is not None:  # a pruned model keeps all of its levels
            return super().adapt(state_dict)
        trained = same_kind(used, len(theirs)) if noted is None else tuple(map(int, noted))  # averages have floats
        # Otherwise there is nothing to do, or torch reports the mismatch.
        if trained not in (None, used) and set(trained) == set(used) and len(trained) == len(theirs):
            warn_of_depth(name, used, trained)
            if name == "level_embed":
                state_dict[name] = theirs[list(source_passes(trained, used))]
            else:  # not the buffer itself, which may still be uninitialised
                state_dict[name] = depth_table(len(used), self.num_features).to(theirs)
        return super().adapt(state_dict)


def depth_table(passes: int, width: int) -> Tensor:
    """The fixed table of depths: (P, 1, 1, C), float64."""
    return position.depth_time(passes, width)[:, None, None]


_create_uit = partial(create_vit, UniversalViT)

default_cfgs = generate_default_cfgs(
    dict.fromkeys(("uit", "uit_wide", "uit_small", "uit_small_wide"), ringformer_cfg())
)


@register_model
def uit(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Universal Transformer of Table 3"""
    return _create_uit("uit", pretrained, size(768, 3072, 12, 12), kwargs)


@register_model
def uit_wide(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Universal Transformer (scaled) of Table 3"""
    return _create_uit("uit_wide", pretrained, size(1560, 6240, 12, 12), kwargs)


@register_model
def uit_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Universal Transformer of Table 2, with 100 classes"""
    return _create_uit("uit_small", pretrained, size(512, 2048, 8, 6), kwargs)


@register_model
def uit_small_wide(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Universal Transformer (scaled) of Table 2, with 100 classes"""
    return _create_uit("uit_small_wide", pretrained, size(848, 3072, 8, 6), kwargs)
