"""RingFormer and the baselines of its translation experiments.

Source: RingFormer (arXiv:2502.13181), sections 3 and 4.1, Tables 1 and 4; Universal Transformer (arXiv:1807.03819);
One Wide Feedforward Is All You Need (arXiv:2309.01826).

All of them as published: post-norm, exact GELU, no biases in attention and FFN, three untied matrices (source, target,
output with bias), embeddings not scaled.

Differs from the published code: the sentence may be padded on either side; dropout on the attention weights is an
option (0); with `--share-all-embeddings` or `--share-decoder-input-output-embed` embeddings start at N(0, 1 / width)
and are scaled, for N(0, 1) would be no start for an output matrix.
"""

from typing import Any

from fairseq_plugin.modules.elastic import add_depth_options
from fairseq_plugin.modules.model import HOST_DEFAULTS, LoopedTransformer, register_family, size
from recurrence import init
from recurrence.block import Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.papers.baselines import one_wide_ffn, vanilla
from recurrence.papers.ringformer import Signals, ringformer
from recurrence.papers.takase import shared_layers

LEVEL_SIGNALS = ("low-rank", "full", "static", "none")
PLACES = ("attention", "cross_attention", "ffn")
SIGNAL_DEFAULTS = dict(
    signal_rank_divisor=16,
    attention_signal="after",
    cross_attention_signal="none",
    ffn_signal="before",
    signal_init="zero",
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

    init = init.ringformer_

    @classmethod
    def add_args(cls, parser):
        """The common options, the level signals, and the depth of training."""
        super().add_args(parser)
        add_depth_options(parser)
        add = parser.add_argument
        add(
            "--level-signal",
            choices=LEVEL_SIGNALS,
            help="what tells a pass its depth; static is the Universal Transformer's position + depth table",
        )
        add("--signal-rank-divisor", type=int, metavar="D", help="rank of the low-rank signals: width // D (paper: 16)")
        add(
            "--attention-signal",
            choices=("after", "before", "none"),
            help="where the signals of Q, K and V join: after the projection (paper), before it, or nowhere",
        )
        add(
            "--cross-attention-signal",
            choices=("after", "before", "none"),
            help="the same for the decoder's cross-attention, whose keys and values are then projected once per pass "
            "(paper: none)",
        )
        add(
            "--ffn-signal",
            choices=("before", "inside", "none"),
            help="where the signal of the FFN joins: at its input (paper), at its hidden units, or nowhere",
        )
        add(
            "--signal-init",
            choices=("zero", "random"),
            help="how the signals start: at zero, so that they come in gradually (paper), or at random",
        )

    @classmethod
    def has_levels(cls, args) -> bool:
        """Only static signals are added to the stream."""
        return args.level_signal == "static"

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        """RingFormer's; with static signals it is the Universal Transformer's."""
        if args.level_signal == "static":
            return Universal.loop(args, side, shape, **parts)
        return ringformer(shape, passes(args, side), _signals(args, shape.width), **parts)

    @classmethod
    def _check(cls, args, task) -> None:
        super()._check(args, task)
        _check_signal(args)


class Universal(LoopedTransformer):
    """One block for all passes; the sinusoidal position + depth signal is added before each.

    Differs from the paper: no adaptive computation time, as in the published baseline; see also
    :func:`recurrence.position.depth_time`.
    """

    init = init.ringformer_

    @classmethod
    def add_args(cls, parser):
        """The common options, and the depth of training."""
        super().add_args(parser)
        add_depth_options(parser)

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        """0 0 0 ..."""
        return shared_layers(shape, (0,) * passes(args, side), **parts)

    @classmethod
    def has_levels(cls, args) -> bool:
        """Always."""
        return True


class OneWideFFN(LoopedTransformer):
    """An attention block per pass; one FFN after each of the encoder's, none in the decoder.

    As published, a decoder layer has one LayerNorm, which serves self- and cross-attention.
    """

    init = init.ringformer_

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        """0 1 2 ..., in the encoder with the FFN behind each."""
        return one_wide_ffn(shape, passes(args, side), **parts)

    @classmethod
    def _check(cls, args, task) -> None:
        super()._check(args, task)
        if args.decoder_ffn_embed_dim != args.encoder_ffn_embed_dim:
            raise ValueError(
                f"--decoder-ffn-embed-dim={args.decoder_ffn_embed_dim}: must equal "
                f"--encoder-ffn-embed-dim={args.encoder_ffn_embed_dim}, for the one FFN is the encoder's"
            )


class Vanilla(LoopedTransformer):
    """The unshared baseline: N blocks. As published, one LayerNorm a layer serves all its sublayers."""

    init = init.ringformer_

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        """0 1 2 ..."""
        return vanilla(shape, passes(args, side), **parts)


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
        if not 1 <= args.signal_rank_divisor <= width:
            raise FieldError("divisor", args.signal_rank_divisor, "must be >= 1 and <= {width}", width=width)
        rank = width // args.signal_rank_divisor
    places = {name: getattr(args, f"{name}_signal") for name in PLACES}
    places = {name: None if place == "none" else place for name, place in places.items()}
    return Signals(rank, **places, init=args.signal_init)


def _check_signal(args) -> None:
    """Options of signals that the model does not have are refused; a value that is not used is None."""
    kind = args.level_signal
    if kind not in LEVEL_SIGNALS:
        raise ValueError(f"--level-signal={kind}: must be one of {LEVEL_SIGNALS}")
    if kind in ("low-rank", "full") and {getattr(args, f"{place}_signal") for place in PLACES} == {"none"}:
        raise ValueError(f"--level-signal={kind}: joins nowhere, with --attention-signal=none and --ffn-signal=none")
    unused = {"low-rank": (), "full": ("signal_rank_divisor",)}.get(kind, tuple(SIGNAL_DEFAULTS))
    for name in unused:
        if getattr(args, name) is not None:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option}={getattr(args, name)}: does not apply to --level-signal={kind}")


def _unless(value, *kinds):
    return lambda args: None if args.level_signal in kinds else value


PUBLISHED = dict(
    HOST_DEFAULTS,
    dropout=0.1,
    attention_dropout=0.0,
    activation_dropout=0.1,
    activation_fn="gelu",
    no_scale_embedding=lambda args: not (args.share_all_embeddings or args.share_decoder_input_output_embed),
    projection_bias=False,
    output_bias=True,
    position_table="interleaved",
)
TINY, BASE, LARGE = size(128, 512, 8, 6), size(512, 2048, 8, 6), size(1024, 4096, 16, 6)
RINGFORMER = {
    **PUBLISHED,
    "norm_eps": 1e-5,
    "level_signal": "low-rank",
    **{name: _unless(value, "static", "none") for name, value in SIGNAL_DEFAULTS.items()},
    "signal_rank_divisor": _unless(16, "full", "static", "none"),
}
BASELINE = dict(PUBLISHED, norm_eps=1e-6)
ENCODER_FFN = dict(decoder_ffn_embed_dim=lambda args: args.encoder_ffn_embed_dim)


def _sizes(values: dict, *names: str) -> dict[str, dict]:
    """Presets of the three sizes, under these names; the family's values come after the size and may depend on it."""
    return {name: {**dimensions, **values} for name, dimensions in zip(names, (TINY, BASE, LARGE))}


register_family("ringformer", RingFormer, _sizes(RINGFORMER, "ringformer_tiny", "ringformer_base", "ringformer_large"))
register_family("universal_transformer", Universal, _sizes(BASELINE, "universal_tiny", "universal", "universal_large"))
register_family(
    "one_wide_ffn",
    OneWideFFN,
    _sizes({**BASELINE, **ENCODER_FFN}, "one_wide_ffn_tiny", "one_wide_ffn_base", "one_wide_ffn_large"),
)
register_family("vanilla_transformer", Vanilla, _sizes(BASELINE, "vanilla_tiny", "vanilla_base", "vanilla_large"))
