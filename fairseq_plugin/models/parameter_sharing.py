"""SEQUENCE, CYCLE, CYCLE (REV), and the Vanilla and Universal rows of Takase & Kiyono.

Source: "Lessons on Parameter Sharing across Layers in Transformers" (arXiv:2104.06022), Figure 2, Tables 1 and 2.

The stack is fairseq's transformer: post-norm, ReLU, biases, scaled embeddings, sinusoids. LayerNorms are shared with
their layer.

Differs from the published code: the option is M; `--share-layer-num` gives N / M instead, and then layers are assigned
as in the code; repeated decoder layers use their cross-attention bias (the code uses the bias of self-attention).
The paper trains all its translation models with `--init admin`; the default here is fairseq's initialisation.
As in the paper (footnote 3), the Universal rows have no adaptive computation time and no per-layer position encoding.
The number of heads in `universal_wide` and `universal_big` is assumed; their other sizes follow from the paper's
counts. `cycle_small` is our own size, for a CPU.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairseq_plugin.options import like, option
from fairseq_plugin.orders import OrderOptions, any_order
from fairseq_plugin.register import register_family, size
from fairseq_plugin.seq2seq import LoopedTransformer, TranslationOptions
from recurrence import init
from recurrence.block import Shape
from recurrence.loop import Loop
from recurrence.order import STRATEGIES, Order, block_count, parse_order, published_order
from recurrence.papers.takase import shared_layers

logger = logging.getLogger(__name__)


def unique_layers(side: str) -> Any:
    """The option for the number of stored layers."""
    replaced = {"share_layer_num": (None,), f"{side}_order": (None,)}
    return option(like(f"{side}_layers"), f"{side}: number of stored layers", where=replaced)


REPLACED = "layers and unique layers"


@dataclass
class SharingOptions(OrderOptions):
    """Which layers are stored, and in which order they run; by default, each runs once."""

    replaced = ("layers", "unique_layers")
    replaced_by_all = ("strategy", "share_layer_num")

    strategy: str | None = option("cycle", choices=tuple(STRATEGIES))
    decoder_order: str | None = any_order("decoder", REPLACED)
    decoder_unique_layers: int | None = unique_layers("decoder")
    share_layer_num: int | None = option(
        None,
        "passes per stored layer: the published code's option, in place of unique layers. Layers are assigned as in "
        "that code, which may differ from the paper's Figure 2 if this number does not divide the number of passes",
    )


@dataclass
class ParameterSharingOptions(SharingOptions, TranslationOptions):
    """The assignment of layers to depths, for encoder and decoder."""

    encoder_order: str | None = any_order("encoder", REPLACED)
    encoder_unique_layers: int | None = unique_layers("encoder")


def unshared_as(arch: str, args, layers: dict[str, int]) -> dict[str, Any]:
    """The method :meth:`ConfiguredModel.unshared` of a family whose unshared baseline is `arch`."""
    numbers = {f"{side}_{name}": n for side, n in layers.items() for name in ("layers", "unique_layers")}
    none = dict.fromkeys(["share_layer_num", *(f"{side}_order" for side in layers)])
    return {"arch": arch, "strategy": "sequence", **none, **numbers}


def shared_loop(args, side: str, shape: Shape, **parts: Any) -> Loop:
    """The stack of one side."""
    return shared_layers(shape, shared_order(args, side), **parts)


def shared_order(args, side: str) -> Order:
    """The given order, or the strategy's order of M layers over N depths.

    Raises:
        FieldError: if M is not in 1 .. N, or the strategy does not support these numbers.
    """
    given = getattr(args, f"{side}_order")
    if given is not None:
        return parse_order(given)
    unique_layers, layers = getattr(args, f"{side}_unique_layers"), getattr(args, f"{side}_layers")
    if args.share_layer_num is not None:
        return published_order(args.strategy, args.share_layer_num, layers)
    order = STRATEGIES[args.strategy].order(unique_layers, layers)
    if block_count(order) != unique_layers:
        logger.warning(
            "--%s-unique-layers=%d: the rule of Figure 2 stores %d layers, because %d does not divide the %d passes",
            *(side, unique_layers, block_count(order), unique_layers, layers),
        )
    return order


class ParameterSharing(LoopedTransformer):
    """M stored layers that run N times, in the order of a strategy or any other."""

    options = ParameterSharingOptions
    initialise = init.fairseq_
    loop = staticmethod(shared_loop)
    unshared = staticmethod(partial(unshared_as, "takase_vanilla"))


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
        "cycle_small": dict(size(128, 512, 4, 4, unique_layers=2), strategy="cycle"),
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
