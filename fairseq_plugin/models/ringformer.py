"""RingFormer in translation.

Source: RingFormer (arXiv:2502.13181), sections 3 and 4.1, Tables 1 and 4.

As published: post-norm, exact GELU, no biases in attention and FFN, three untied matrices (source, target, output with
bias), embeddings not scaled.

Differs from the paper: with `--encoder-order` and `--decoder-order`, several blocks are stored.
Differs from the published code: sentences may be padded on either side; attention dropout is an option (default 0);
with `--share-all-embeddings` or `--share-decoder-input-output-embed`, embeddings start with deviation 1 / sqrt(width)
and are scaled, because a deviation of 1 is too large for an output matrix.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_plugin.options import SIDES, option
from fairseq_plugin.orders import OrderOptions, any_order
from fairseq_plugin.register import register_family, size
from fairseq_plugin.seq2seq import LoopedTransformer, TranslationOptions
from recurrence import init
from recurrence.block import Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.order import parse_order
from recurrence.papers.ringformer import NO_SIGNALS, Signals, ringformer
from recurrence.papers.takase import shared_layers

WEIGHTS = Path(__file__).parents[1] / "weights"
LOW_RANK = dict(where={"level_signal": ("low-rank",)})
LEARNED = dict(where={"level_signal": ("low-rank", "full")})
AROUND = dict(choices=("after", "before", "none"), **LEARNED)
PLACES = ("attention_signal", "cross_attention_signal", "ffn_signal")


def vanilla_layers(args, layers: dict[str, int]) -> dict[str, Any]:
    """The unshared baseline, see :meth:`ConfiguredModel.unshared`."""
    return {"arch": "vanilla_base", **{f"{side}_layers": layers[side] for side in SIDES}}


@dataclass
class RingFormerOptions(OrderOptions, TranslationOptions):
    """The level signals, and an order; the defaults are the paper's."""

    encoder_order: str | None = any_order("encoder", "layers, all of which run layer 0")
    decoder_order: str | None = any_order("decoder", "layers, all of which run layer 0")
    level_signal: str = option(
        "low-rank",
        "how a pass knows its depth (paper: low-rank); static is the Universal Transformer's position + depth table",
        choices=("low-rank", "full", "static", "none"),
    )
    signal_rank_divisor: int | None = option(16, "rank of the low-rank signals: width // this (paper: 16)", **LOW_RANK)
    attention_signal: str | None = option(
        "after",
        "add the signals of Q, K and V after the projection (paper), before it, or not at all",
        **AROUND,
    )
    cross_attention_signal: str | None = option(
        "none",
        "the same for cross-attention, which then projects keys and values in every pass (paper: none)",
        **AROUND,
    )
    ffn_signal: str | None = option(
        "before",
        "add the signal of the FFN to its input (paper), to its hidden units, or not at all",
        choices=("before", "inside", "none"),
        **LEARNED,
    )
    signal_init: str | None = option(
        "zero",
        "start the signals at zero (paper) or at random",
        choices=("zero", "random"),
        **LEARNED,
    )


class RingFormer(LoopedTransformer):
    """One block for all passes; low-rank level signals on Q, K, V and the FFN's input, and LayerNorms for each pass.

    `--encoder-order 0,1,1,2` stores several blocks, which run in any order.

    The rows of Table 4 as options, with their core parameters at 128/512 and 6 + 6 passes:
    `--level-signal static` 460,032; `--attention-signal none` 491,008; `--signal-rank-divisor 32` 515,584, 16 564,736,
    8 663,040; `--level-signal full` 1,252,864; `--attention-signal before` 564,736.

    Differs from the paper: two counts in Table 4 do not match their description. Without FFN signals (`--ffn-signal
    none`) there are 540,160 parameters (paper: 0.57M); with a signal inside the FFN (`--ffn-signal inside`) 601,600
    (paper: 0.54M). The paper tried signals in cross-attention (section 3.2.2, `--cross-attention-signal after`) and a
    random start (section 3.2, `--signal-init random`), but left them out.
    """

    options = RingFormerOptions
    initialise = init.ringformer_

    @classmethod
    def hub_models(cls) -> dict[str, dict[str, str]]:
        """The models inside the package, which `from_pretrained` takes by name."""
        return {name: {"path": str(WEIGHTS / name), "bpe": "letters"} for name in ("ringformer_small.pronounce",)}

    @classmethod
    def has_static_levels(cls, args) -> bool:
        return args.level_signal == "static"

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        given = getattr(args, f"{side}_order")
        order = (0,) * getattr(args, f"{side}_layers") if given is None else parse_order(given)
        if args.level_signal == "static":
            return shared_layers(shape, order, **parts)
        return ringformer(shape, order, _signals(args, shape.width), **parts)

    @classmethod
    def unshared(cls, args, layers: dict[str, int]) -> dict[str, Any]:
        return {**vanilla_layers(args, layers), **{f"{side}_order": None for side in SIDES}}

    @classmethod
    def _check(cls, args, task) -> None:
        super()._check(args, task)
        if {getattr(args, place) for place in PLACES} == {"none"}:
            rule = "has no effect with --attention-signal=none and --ffn-signal=none"
            raise FieldError("level_signal", args.level_signal, rule)


def _signals(args, width: int) -> Signals:
    if args.level_signal == "none":
        return NO_SIGNALS
    rank = None
    if args.level_signal == "low-rank":
        divisor = args.signal_rank_divisor
        if not 1 <= divisor <= width:
            raise FieldError("signal_rank_divisor", divisor, "must be >= 1 and <= {width}", width=width)
        rank = width // divisor
    given = {place: getattr(args, place) for place in PLACES}
    places = {place: None if where == "none" else where for place, where in given.items()}
    return Signals(rank, **places, signal_init=args.signal_init)


def _separate(args) -> bool:
    """Whether the output matrix is not an embedding; the published code then starts embeddings at deviation 1."""
    return not (args.share_all_embeddings or args.share_decoder_input_output_embed)


# Options that all published experiments share.
PUBLISHED = dict(
    activation_dropout=0.1,
    activation_fn="gelu",
    no_scale_embedding=_separate,
    embedding_std=lambda args: 1.0 if args.no_scale_embedding and _separate(args) else None,
    projection_bias=False,
    output_bias=True,
    position_table="interleaved",
)
TINY, SMALL = size(128, 512, 8, 6), size(128, 512, 4, 4)
BASE, LARGE = size(512, 2048, 8, 6), size(1024, 4096, 16, 6)

register_family(
    "ringformer",
    RingFormer,
    {"ringformer_tiny": TINY, "ringformer_small": SMALL, "ringformer_base": BASE, "ringformer_large": LARGE},
    **PUBLISHED,
)
