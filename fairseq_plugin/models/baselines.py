"""The baselines of RingFormer's translation experiments: Universal, One Wide FFN, Vanilla.

Source: RingFormer (arXiv:2502.13181), section 4.1 and Table 1; Universal Transformer (arXiv:1807.03819); One Wide
Feedforward Is All You Need (arXiv:2309.01826). As published, see :mod:`fairseq_plugin.models.ringformer`.
"""

from typing import Any

from fairseq_plugin.models.ringformer import BASE, LARGE, PUBLISHED, SMALL, TINY, vanilla_layers
from fairseq_plugin.register import register_family
from fairseq_plugin.seq2seq import LoopedTransformer
from recurrence import init
from recurrence.block import Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.papers.baselines import one_wide_ffn, vanilla
from recurrence.papers.takase import shared_layers


class Universal(LoopedTransformer):
    """One block for all passes; the sinusoidal position + depth signal is added before each.

    Differs from the paper: no adaptive computation time, as in the published baseline; see also
    :func:`recurrence.position.depth_time`.
    """

    initialise = init.ringformer_

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        return shared_layers(shape, (0,) * getattr(args, f"{side}_layers"), **parts)

    unshared = staticmethod(vanilla_layers)

    @classmethod
    def has_static_levels(cls, args) -> bool:
        return True


class OneWideFFN(LoopedTransformer):
    """N attention blocks; in the encoder, the shared FFN runs after each of them. The decoder has no FFN.

    As published, self- and cross-attention of a decoder layer share one LayerNorm.
    """

    initialise = init.ringformer_

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        return one_wide_ffn(shape, getattr(args, f"{side}_layers"), **parts)

    @classmethod
    def _check(cls, args, task) -> None:
        super()._check(args, task)
        ours, theirs = args.decoder_ffn_embed_dim, args.encoder_ffn_embed_dim
        if ours != theirs:
            rule = "must equal {encoder_ffn_embed_dim}, because the only FFN is the encoder's"
            raise FieldError("decoder_ffn_embed_dim", ours, rule, encoder_ffn_embed_dim=theirs)


class Vanilla(LoopedTransformer):
    """The unshared baseline: N blocks. As published, the sublayers of a layer share one LayerNorm."""

    initialise = init.ringformer_

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        return vanilla(shape, getattr(args, f"{side}_layers"), **parts)

    unshared = staticmethod(vanilla_layers)


COMMON = dict(PUBLISHED, norm_eps=1e-6)

register_family(
    "universal_transformer",
    Universal,
    {"universal_tiny": TINY, "universal": BASE, "universal_large": LARGE},
    **COMMON,
)
register_family(
    "one_wide_ffn",
    OneWideFFN,
    {"one_wide_ffn_tiny": TINY, "one_wide_ffn_base": BASE, "one_wide_ffn_large": LARGE},
    **COMMON,
)
register_family(
    "vanilla_transformer",
    Vanilla,
    {"vanilla_tiny": TINY, "vanilla_small": SMALL, "vanilla_base": BASE, "vanilla_large": LARGE},
    **COMMON,
)
