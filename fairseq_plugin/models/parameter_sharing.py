"""SEQUENCE, CYCLE, CYCLE (REV), and the Vanilla and Universal rows of Takase & Kiyono.

Source: "Lessons on Parameter Sharing across Layers in Transformers" (arXiv:2104.06022), Figure 2, Tables 1 and 2.

The stack is fairseq's transformer: post-norm, ReLU, biases, scaled embeddings, its sinusoids. LayerNorms are shared
with the layer that they belong to, unless `--residual-rank` gives each pass what is its own
(:mod:`recurrence.papers.relaxed`), which is what `python -m fairseq_plugin.convert share` makes of fairseq's model.

Differs from the published code: M is given, unless `--share-layer-num` gives N / M, which also selects the code's
assignment where N / M is not whole; a layer of the decoder that runs again keeps its own cross-attention bias (the
code hands it its self-attention's).
The Universal rows have no adaptive computation time and no position encoding for each layer: the paper's own choice
(footnote 3). The heads of `universal_wide` and `universal_big`, whose other dimensions follow from the paper's counts,
are assumed.
"""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq_plugin.modules.elastic import add_depth_options
from fairseq_plugin.modules.model import HOST_DEFAULTS, LoopedTransformer, register_family, size
from fairseq_plugin.modules.options import SIDES
from recurrence import init
from recurrence.block import Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.order import STRATEGIES, Order, published
from recurrence.papers.relaxed import relaxed
from recurrence.papers.takase import shared_layers


class ParameterSharing(LoopedTransformer):
    """M stored layers that run N times, in the order of a strategy."""

    init = init.fairseq_
    family_values: tuple[str, ...] = ("strategy",)

    @classmethod
    def add_args(cls, parser):
        """The common options, the assignment of layers to depths, and the depth of training."""
        super().add_args(parser)
        add_sharing_options(parser, SIDES)
        add_depth_options(parser)

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        """See :func:`shared_loop`."""
        return shared_loop(args, side, shape, **parts)


def add_sharing_options(parser, sides: tuple[str, ...]) -> None:
    """Adds M of each side, and the published code's option in its place."""
    for side in sides:
        parser.add_argument(
            f"--{side}-unique-layers", type=int, metavar="M", help=f"{side}: stored layers, 1 <= M <= N"
        )
    parser.add_argument(
        "--share-layer-num",
        type=int,
        metavar="S",
        help="the published code's option in place of M: depths per stored layer, S = N / M. Layers are assigned "
        "as that code does, which differs from the paper's Figure 2 where S does not divide N: SEQUENCE leaves a short "
        "last group",
    )
    parser.add_argument(
        "--residual-rank",
        type=int,
        metavar="R",
        help="each pass has LayerNorms, biases, and on every projection a term of rank R of its own; 1 <= R <= width",
    )


def shared_loop(args, side: str, shape: Shape, **parts: Any) -> Loop:
    """The stack of one side; with `--residual-rank` each pass has terms, biases and LayerNorms of its own."""
    order = shared_order(args, side)
    if args.residual_rank is None:
        return shared_layers(shape, order, **parts)
    return relaxed(shape, order, args.residual_rank, **parts)


def shared_order(args, side: str) -> Order:
    """The strategy's order of M layers over N depths.

    Raises:
        ValueError: if M is not within 1 .. N, or the strategy is not for these numbers.
    """
    unique_layers, layers = getattr(args, f"{side}_unique_layers"), getattr(args, f"{side}_layers")
    if args.share_layer_num is not None:
        if unique_layers is not None:
            raise FieldError("unique_layers", unique_layers, f"--share-layer-num={args.share_layer_num} sets it")
        return published(args.strategy, args.share_layer_num, layers)
    return STRATEGIES[args.strategy].order(unique_layers, layers)


FAIRSEQ = dict(
    HOST_DEFAULTS,
    dropout=0.1,
    attention_dropout=0.0,
    activation_dropout=0.0,
    activation_fn="relu",
    no_scale_embedding=False,
    projection_bias=True,
    output_bias=False,
    norm_eps=1e-5,
    position_table="halved",
    share_layer_num=None,
)


def stored_layers(side: str, number: int | None) -> Callable[[Namespace], int | None]:
    """What fills in `unique_layers` of a preset: the number, or without one as many as there are passes."""

    def fill(args):
        if args.share_layer_num is not None:  # which sets it
            return None
        return getattr(args, f"{side}_layers") if number is None else number

    return fill


def _preset(strategy: str, unique_layers: int | None, dimensions: dict) -> dict:
    """Values for such dimensions; without a number of stored layers, each runs once."""
    unique = {f"{side}_unique_layers": stored_layers(side, unique_layers) for side in SIDES}
    return {**FAIRSEQ, **dimensions, **unique, "strategy": strategy, "residual_rank": None}


BASE, BASE_12, BIG_12 = size(512, 2048, 8, 6), size(512, 2048, 8, 12), size(1024, 4096, 16, 12)

register_family(
    "parameter_sharing",
    ParameterSharing,
    {
        "takase_vanilla": _preset("sequence", None, BASE),
        "takase_vanilla_deep": _preset("sequence", None, size(512, 2048, 8, 18)),
        "takase_vanilla_big": _preset("sequence", None, size(1024, 4096, 16, 6)),
        "sequence": _preset("sequence", 6, BASE_12),
        "cycle": _preset("cycle", 6, BASE_12),
        "cycle_rev": _preset("cycle_rev", 6, BASE_12),
        "sandwich": _preset("sandwich", 3, BASE_12),
        "sequence_big": _preset("sequence", 6, BIG_12),
        "cycle_big": _preset("cycle", 6, BIG_12),
        "cycle_rev_big": _preset("cycle_rev", 6, BIG_12),
        "universal_small": _preset("cycle", 1, BASE),
        "universal_wide": _preset("cycle", 1, size(1024, 4096, 16, 6)),
        "universal_wide_deep": _preset("cycle", 1, size(1024, 4096, 16, 12)),
        "universal_big": _preset("cycle", 1, size(2048, 8192, 32, 6)),
    },
)
