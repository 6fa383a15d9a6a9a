"""SEQUENCE, CYCLE, CYCLE (REV), and the Vanilla and Universal rows of Takase & Kiyono.

Source: "Lessons on Parameter Sharing across Layers in Transformers" (arXiv:2104.06022), Figure 2, Tables 1 and 2.

The stack is fairseq's transformer: post-norm, ReLU, biases, scaled embeddings, sinusoids. LayerNorms are shared with
their layer, unless `--residual-rank` gives each pass its own (:mod:`recurrence.papers.relaxed`), as in models made by
`python -m fairseq_plugin.convert share`.

Differs from the published code: the option is M; `--share-layer-num` gives N / M instead, and then layers are assigned
as in the code; repeated decoder layers use their cross-attention bias (the code uses the bias of self-attention).
The paper trains all its translation models with `--init admin`; the default here is fairseq's initialisation.
As in the paper (footnote 3), the Universal rows have no adaptive computation time and no per-layer position encoding.
The number of heads in `universal_wide` and `universal_big` is assumed; their other sizes follow from the paper's
counts.
"""

from dataclasses import dataclass
from typing import Any

from fairseq_plugin.modules.elastic import DepthOptions
from fairseq_plugin.modules.model import LoopedTransformer, TranslationOptions
from fairseq_plugin.modules.options import Options, like, option
from fairseq_plugin.modules.register import register_family, size
from recurrence import init
from recurrence.block import Shape
from recurrence.loop import Loop
from recurrence.order import STRATEGIES, Order, published_order
from recurrence.papers.relaxed import relaxed
from recurrence.papers.takase import shared_layers

STORED = dict(where={"share_layer_num": (None,)})  # which replaces it


@dataclass
class SharingOptions(Options):
    """Which layers are stored, and in which order they run; by default, each runs once."""

    strategy: str = option("cycle", choices=tuple(STRATEGIES))
    decoder_unique_layers: int | None = option(like("decoder_layers"), "decoder: number of stored layers", **STORED)
    share_layer_num: int | None = option(
        None,
        "passes per stored layer: the published code's option, in place of unique layers. Layers are assigned as in "
        "that code, which differs from the paper's Figure 2 if this number does not divide the number of passes",
    )
    residual_rank: int | None = option(
        None, "give each pass its own LayerNorms, biases, and a term of this rank on every projection"
    )


@dataclass
class ParameterSharingOptions(SharingOptions, DepthOptions, TranslationOptions):
    """The assignment of layers to depths, for encoder and decoder."""

    encoder_unique_layers: int | None = option(like("encoder_layers"), "encoder: number of stored layers", **STORED)


class ParameterSharing(LoopedTransformer):
    """M stored layers that run N times, in the order of a strategy."""

    options = ParameterSharingOptions
    initialise = init.fairseq_

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        """See :func:`shared_loop`."""
        return shared_loop(args, side, shape, **parts)


def shared_loop(args, side: str, shape: Shape, **parts: Any) -> Loop:
    """The stack of one side; with `--residual-rank`, passes own terms, biases and LayerNorms."""
    order = shared_order(args, side)
    if args.residual_rank is None:
        return shared_layers(shape, order, **parts)
    return relaxed(shape, order, args.residual_rank, **parts)


def shared_order(args, side: str) -> Order:
    """The strategy's order of M layers over N depths.

    Raises:
        FieldError: if M is not in 1 .. N, or the strategy does not support these numbers.
    """
    unique_layers, layers = getattr(args, f"{side}_unique_layers"), getattr(args, f"{side}_layers")
    if args.share_layer_num is not None:
        return published_order(args.strategy, args.share_layer_num, layers)
    return STRATEGIES[args.strategy].order(unique_layers, layers)


BASE, BIG = size(512, 2048, 8, 12, unique_layers=6), size(1024, 4096, 16, 12, unique_layers=6)

register_family(
    "parameter_sharing",
    ParameterSharing,
    {
        "takase_vanilla": dict(size(512, 2048, 8, 6), strategy="sequence"),
        "takase_vanilla_deep": dict(size(512, 2048, 8, 18), strategy="sequence"),
        "takase_vanilla_big": dict(size(1024, 4096, 16, 6), strategy="sequence"),
        "sequence": dict(BASE, strategy="sequence"),
        "cycle": dict(BASE, strategy="cycle"),
        "cycle_rev": dict(BASE, strategy="cycle_rev"),
        "sandwich": dict(size(512, 2048, 8, 12, unique_layers=3), strategy="sandwich"),
        "sequence_big": dict(BIG, strategy="sequence"),
        "cycle_big": dict(BIG, strategy="cycle"),
        "cycle_rev_big": dict(BIG, strategy="cycle_rev"),
        "universal_small": size(512, 2048, 8, 6, unique_layers=1),
        "universal_wide": size(1024, 4096, 16, 6, unique_layers=1),
        "universal_wide_deep": size(1024, 4096, 16, 12, unique_layers=1),
        "universal_big": size(2048, 8192, 32, 6, unique_layers=1),
    },
)
