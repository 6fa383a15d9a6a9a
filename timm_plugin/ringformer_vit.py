"""RingFormer-ViT.

Paper: RingFormer (arXiv:2502.13181), section 4.2, Tables 2 and 3; its baselines are in :mod:`timm_plugin.baselines`.
The blocks are pre-norm: projections read the normalised tokens, and level signals read the stream before the norm.

Differs from the published code: the two factors of a level signal are never multiplied out; other image sizes are
supported by resampling tables.
Differs from timm: `proj_drop_rate` only applies to attention. The published setting is `pos_drop_rate=0.1,
mlp_drop_rate=0.1`.
"""

from dataclasses import dataclass
from typing import Any

from recurrence.loop import Loop
from recurrence.papers.ringformer import Signals, ringformer
from timm_plugin._config import option
from timm_plugin._create import image_cfg, register_family
from timm_plugin._vit_config import ViTConfig

RINGFORMER_CFG = image_cfg(
    crop_pct=224 / 256,
    interpolation="bilinear",
    origin_url="https://github.com/eldor-fozilov/ringformer",
    paper_name="RingFormer: Rethinking Recurrent Transformer with Adaptive Level Signals",
    paper_ids="arXiv:2502.13181",
)


@dataclass(frozen=True)
class RingFormerConfig(ViTConfig):
    """The options of RingFormer-ViT, besides those of :class:`ViTConfig`; `depth` is the number of passes.

    Args:
        signal_rank_divisor: rank of the level signals is C // signal_rank_divisor.
    """

    norm_eps: float = 1e-5
    signal_rank_divisor: int = option(16, least=1)

    names = {**ViTConfig.names, "rank": "embed_dim // signal_rank_divisor"}
    undecayed = (*ViTConfig.undecayed, "qkv_signal", "ffn_signal")
    unlike_upstream = "its level signals read the residual stream before the norm, and no layer of timm does"

    def loop(self, tokens: int) -> Loop:
        """One block, order 0 0 0 ..."""
        signals = Signals(self.embed_dim // self.signal_rank_divisor)
        return ringformer(self.shape(), self.depth, signals, **self.parts())


def size(width: int, mlp: int, heads: int, depth: int) -> dict[str, Any]:
    """The options of a model of this size, as the paper's tables give it."""
    return dict(embed_dim=width, mlp_ratio=mlp / width, num_heads=heads, depth=depth)


register_family(
    __name__,
    RingFormerConfig,
    RINGFORMER_CFG,
    {
        "ringformer_vit": ("RingFormer of Table 3", size(768, 3072, 12, 12)),
        "ringformer_vit_wide": ("RingFormer (scaled) of Table 3", size(1284, 5120, 12, 12)),
        "ringformer_vit_small": ("RingFormer of Table 2, with 100 classes", size(512, 2048, 8, 6)),
        "ringformer_vit_small_wide": ("RingFormer (scaled) of Table 2, with 100 classes", size(728, 3072, 8, 6)),
    },
)
