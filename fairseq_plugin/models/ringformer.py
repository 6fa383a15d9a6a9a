"""RingFormer in translation.

Source: RingFormer (arXiv:2502.13181), sections 3 and 4.1, Tables 1 and 4.

As published: post-norm, exact GELU, no biases in attention and FFN, three untied matrices (source, target, output with
bias), embeddings not scaled.

Differs from the published code: the sentence may be padded on either side; dropout on the attention weights is an
option (0); with `--share-all-embeddings` or `--share-decoder-input-output-embed` embeddings start at N(0, 1 / width)
and are scaled, for N(0, 1) would be no start for an output matrix.
"""

from dataclasses import dataclass
from typing import Any

from fairseq_plugin.modules.elastic import DepthOptions
from fairseq_plugin.modules.model import LoopedTransformer, TranslationOptions, register_family, size
from fairseq_plugin.modules.options import option
from recurrence import init
from recurrence.block import Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.papers.ringformer import Signals, ringformer
from recurrence.papers.takase import shared_layers

LOW_RANK = dict(where={"level_signal": ("low-rank",)})
LEARNED = dict(where={"level_signal": ("low-rank", "full")})
AROUND = dict(choices=("after", "before", "none"), **LEARNED)
PLACES = ("attention_signal", "cross_attention_signal", "ffn_signal")


@dataclass
class RingFormerOptions(DepthOptions, TranslationOptions):
    """The level signals; the defaults are the paper's."""

    level_signal: str = option(
        "low-rank",
        "what tells a pass its depth; static is the Universal Transformer's position + depth table",
        choices=("low-rank", "full", "static", "none"),
    )
    signal_rank_divisor: int | None = option(16, "the low-rank signals' rank is the width // this", **LOW_RANK)
    attention_signal: str | None = option(
        "after",
        "where the signals of Q, K and V join: after the projection (paper), before it, or nowhere",
        **AROUND,
    )
    cross_attention_signal: str | None = option(
        "none",
        "the same for the decoder's cross-attention, whose keys and values are then projected once per pass (paper: "
        "none)",
        **AROUND,
    )
    ffn_signal: str | None = option(
        "before",
        "where the signal of the FFN joins: at its input (paper), at its hidden units, or nowhere",
        choices=("before", "inside", "none"),
        **LEARNED,
    )
    signal_init: str | None = option(
        "zero",
        "how the signals start: at zero, so that they come in gradually (paper), or at random",
        choices=("zero", "random"),
        **LEARNED,
    )


class RingFormer(LoopedTransformer):
    """One block for all passes; low-rank level signals on Q, K, V and the FFN's input, and LayerNorms for each pass.

    Table 4 by options, with the core parameters that they give at 128/512 and 6 + 6 passes:
    `--level-signal static` 460,032; `--attention-signal none` 491,008; `--signal-rank-divisor 32` 515,584, 16 564,736,
    8 663,040; `--level-signal full` 1,252,864; `--attention-signal before` 564,736.

    Differs from the paper: two rows of Table 4 do not follow from their description. Without FFN signals
    (`--ffn-signal none`) gives 540,160, the paper 0.57M; a signal inside the FFN (`--ffn-signal inside`) 601,600, the
    paper 0.54M.

    Two things that the paper tried and left out are options: signals in cross-attention (section 3.2.2;
    `--cross-attention-signal after`) and signals that do not start at zero (section 3.2; `--signal-init random`, see
    :mod:`recurrence.signal`).
    """

    options = RingFormerOptions
    init = init.ringformer_

    @classmethod
    def has_levels(cls, args) -> bool:
        """Only static signals are added to the stream."""
        return args.level_signal == "static"

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        """RingFormer's; with static signals it is the Universal Transformer's."""
        if args.level_signal == "static":
            return shared_layers(shape, (0,) * passes(args, side), **parts)
        return ringformer(shape, passes(args, side), _signals(args, shape.width), **parts)

    @classmethod
    def _check(cls, args, task) -> None:
        super()._check(args, task)
        if {getattr(args, place) for place in PLACES} == {"none"}:
            rule = "joins nowhere, with --attention-signal=none and --ffn-signal=none"
            raise FieldError("level_signal", args.level_signal, rule)


def passes(args, side: str) -> int:
    """Runs of the stack's blocks.

    Raises:
        FieldError: if there are none.
    """
    layers = getattr(args, f"{side}_layers")
    if layers < 1:
        raise FieldError("layers", layers, "must be >= 1")
    return layers


def _signals(args, width: int) -> Signals | None:
    if args.level_signal == "none":
        return None
    rank = None
    if args.level_signal == "low-rank":
        divisor = args.signal_rank_divisor
        if not 1 <= divisor <= width:
            raise FieldError("signal_rank_divisor", divisor, "must be >= 1 and <= {width}", width=width)
        rank = width // divisor
    given = {place: getattr(args, place) for place in PLACES}
    places = {place: None if where == "none" else where for place, where in given.items()}
    return Signals(rank, **places, signal_init=args.signal_init)


# What the published experiments have in common.
PUBLISHED = dict(
    activation_dropout=0.1,
    activation_fn="gelu",
    no_scale_embedding=lambda args: not (args.share_all_embeddings or args.share_decoder_input_output_embed),
    projection_bias=False,
    output_bias=True,
    position_table="interleaved",
)
TINY, BASE, LARGE = size(128, 512, 8, 6), size(512, 2048, 8, 6), size(1024, 4096, 16, 6)

register_family(
    "ringformer",
    RingFormer,
    {"ringformer_tiny": TINY, "ringformer_base": BASE, "ringformer_large": LARGE},
    **PUBLISHED,
)
