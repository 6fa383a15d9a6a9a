"""The models that RingFormer-ViT is compared with: UiT, One Wide FFN and a plain ViT.

Paper: RingFormer (arXiv:2502.13181), section 4.2, Tables 2 and 3. Everything else is as in
:mod:`timm_plugin.ringformer_vit`.

Differs from the published code: UiT stores the position and depth parts of its table separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from recurrence import position
from recurrence.depth import same_kind, source_passes
from recurrence.loading import warn_of_depth
from recurrence.loop import Loop
from recurrence.order import Order
from recurrence.papers.baselines import one_wide_ffn
from timm_plugin._config import option
from timm_plugin._create import register_family
from timm_plugin._vit import LoopedVisionTransformer
from timm_plugin._vit_config import OrderedConfig, ViTConfig
from timm_plugin.ringformer_vit import RINGFORMER_CFG, size


class UniversalViT(LoopedVisionTransformer):
    """One block; a table of positions and depths is added before each pass."""

    tables = ("pos_embed", "level_embed")

    def make_tables(self, tokens: int) -> None:
        shape, passes, dtype = (tokens, self.num_features), self.loop.passes, torch.get_default_dtype()
        self.register_buffer("pos_embed", None)
        self.register_buffer("depth_embed", None)
        self.level_embed = None
        if self.config.level_signal == "static":
            self.pos_embed = position.depth_time(*shape).to(dtype)[None]
            self.depth_embed = depth_table(passes, self.num_features).to(dtype)
        else:
            self.loop.learned_levels = True
            self.level_embed = nn.Parameter(torch.empty(passes, *shape))
            nn.init.normal_(self.level_embed)

    def shows_passes(self) -> bool:
        """The tables do."""
        return True

    def positions(self) -> None:
        """None: they are in the levels."""

    def levels(self) -> list[Tensor]:
        """See :meth:`LoopedVisionTransformer.levels`. Tables are indexed, as torch.fx cannot iterate over them."""
        passes = range(self.loop.passes)
        if self.depth_embed is None:
            return [self.level_embed[index][None] for index in passes]
        # At another depth, a pass has the sines of its place, as in a model of that depth.
        places = dict(zip(self.loop.chosen or passes, passes))
        return [self.pos_embed + self.depth_embed[places.get(index, index)] for index in passes]

    def adapt(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Also adapts the levels of another depth: learned ones by the rule for passes, fixed ones are recomputed."""
        for name in ("level_embed", "depth_embed"):
            theirs, own, used = state_dict.get(name), getattr(self, name), self.loop.order
            noted = state_dict.get("loop.noted") if name == "level_embed" else None  # sines follow the place
            if theirs is None or own is None or (noted is None and len(theirs) == len(own)):
                continue
            trained = same_kind(used, len(theirs)) if noted is None else tuple(noted.tolist())
            if trained in (None, used, self.loop.whole) or set(trained) != set(used) or len(trained) != len(theirs):
                continue  # nothing to do, or torch reports the mismatch
            warn_of_depth(name, used, trained)
            if name == "depth_embed":  # not the buffer itself, which may still be uninitialised
                state_dict[name] = depth_table(len(own), self.num_features).to(theirs)
            else:
                state_dict[name] = theirs[list(source_passes(trained, used))]
        return super().adapt(state_dict)


def depth_table(passes: int, width: int) -> Tensor:
    """The fixed table of depths: (P, 1, 1, C), float64."""
    return position.depth_time(passes, width)[:, None, None]


@dataclass(frozen=True)
class UniversalConfig(OrderedConfig):
    """The options of UiT, besides those of :class:`OrderedConfig`; without an order, `depth` is the number of passes.

    Args:
        level_signal: the table added before every pass: "static" (sines of position and depth) or "learned".
    """

    level_signal: str = option("static", choices=("static", "learned"))

    model = UniversalViT
    fixed = ("pos_embed",)  # the tables hold the positions
    undecayed = (*OrderedConfig.undecayed, "level_embed")
    unlike_upstream = "it adds positions and depths before every pass, and no layer of timm does"

    def usual_order(self) -> Order:
        """0 0 0 ..."""
        return (0,) * self.depth

    def other_depths(self) -> dict[str, Any]:
        """Of static levels, there are none for more passes than the model's."""
        return dict(prefix_only=self.level_signal == "static")


@dataclass(frozen=True)
class OneWideConfig(ViTConfig):
    """The options of One Wide FFN, which are those of :class:`ViTConfig`."""

    passes_per_depth = 2  # an attention, and the MLP that all share

    def loop(self, tokens: int) -> Loop:
        """Attention blocks in turn, the MLP after each of them."""
        return one_wide_ffn(self.shape(), self.depth, **self.parts())

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """Raises ValueError."""
        raise ValueError("One Wide FFN shares only its MLP, so that no block runs again")


@dataclass(frozen=True)
class PlainConfig(OrderedConfig):
    """The options of the plain ViT, which are those of :class:`OrderedConfig`."""

    def usual_order(self) -> Order:
        """0 1 2 ..."""
        return tuple(range(self.depth))


register_family(
    __name__,
    UniversalConfig,
    RINGFORMER_CFG,
    {
        "uit": ("Universal Transformer of Table 3", size(768, 3072, 12, 12)),
        "uit_wide": ("Universal Transformer (scaled) of Table 3", size(1560, 6240, 12, 12)),
        "uit_small": ("Universal Transformer of Table 2, with 100 classes", size(512, 2048, 8, 6)),
        "uit_small_wide": ("Universal Transformer (scaled) of Table 2, with 100 classes", size(848, 3072, 8, 6)),
    },
)
register_family(
    __name__,
    OneWideConfig,
    RINGFORMER_CFG,
    {
        "owf_vit": ("One Wide FFN of Table 3", size(768, 3072, 12, 12)),
        "owf_vit_small": ("One Wide FFN of Table 2, with 100 classes", size(512, 2048, 8, 6)),
        "owf_vit_small_narrow": ("One Wide FFN (down-scaled) of Table 2, with 100 classes", size(376, 1024, 8, 6)),
    },
)
register_family(
    __name__,
    PlainConfig,
    RINGFORMER_CFG,
    {
        "plain_vit": ("Unshared ViT of Table 3", size(768, 3072, 12, 12)),
        "plain_vit_small": ("Unshared ViT of Table 2, with 100 classes", size(512, 2048, 8, 6)),
        "plain_vit_small_narrow": ("Unshared ViT (down-scaled) of Table 2, with 100 classes", size(328, 1536, 8, 6)),
    },
)
