"""Kausik's recurrent transformer as a language model, and the regular transformer that the paper compares it with.

Source: Kausik, recurrent transformers, Table 2 of the text of June 2025 (Table 3 of July's); the published code's
`gpt/model.py`, which is nanoGPT's: pre-norm, exact GELU, no biases (nor in the LayerNorms), a norm after the last
layer, the output matrix tied to the embedding.

`recurrent_lm` is the row of one recurrent layer without positions; its dropout is 0 (the paper: 0.2). The other rows:
`--position learned`; `--regular` with `--decoder-layers 1` or 6. With the 65 symbols of the paper's corpus they store
1,795,584, 1,893,888, 1,893,888 and 10,745,088 parameters (256 positions). fairseq's dictionary has 72 symbols for that
corpus, because it adds special symbols and pads to a multiple of 8; each of the 7 adds 384 parameters.

July's text has two more experiments: images as pixels, with windows drawn for each batch (`--task
pixel_classification`, `--window-range`), and copying with accumulation (`--task copying`, `--accumulate`). With the
options of `recipes/kausik` they store 53,664 parameters (90,720 with four regular layers) and 508,704.

Differs from the published code: see :mod:`recurrence.papers.kausik`; the language model also has windows and
accumulation.
"""

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from fairseq_plugin.adaptive import PLAIN
from fairseq_plugin.language_model import LanguageModel, LanguageOptions, remember_positions
from fairseq_plugin.options import ACTIVATIONS, like, option, position_option
from fairseq_plugin.register import activation, register_family
from recurrence import init
from recurrence.block import Shape
from recurrence.causal import CausalStack
from recurrence.errors import FieldError
from recurrence.order import cycle
from recurrence.papers.kausik import RecurrentStack
from recurrence.papers.takase import shared_layers

RECURRENT = dict(where={"regular": (False,)})


@dataclass
class KausikRecurrenceOptions(LanguageOptions):
    """The recurrence, or none, and the layer."""

    fixed = dict(PLAIN, no_scale_embedding=True)

    decoder_layers: int = option(6, "number of layers", least=1)
    decoder_ffn_embed_dim: int = option(
        lambda args: 4 * args.decoder_embed_dim, "hidden width of the FFN (default: 4 times the model's)"
    )
    attention_dropout: float = option(like("dropout"), "rate on attention weights (default: that of --dropout)")
    activation_fn: str = option("gelu", "activation of the FFN", choices=ACTIVATIONS)
    regular: bool = option(False, "no recurrence: each token attends to all earlier ones")
    window: int | None = option(1, "tokens that the recurrence reads at a time (paper: 1 for text)", **RECURRENT)
    window_range: str | None = option(
        None,
        "A,B: in training, draw the window of each batch uniformly from A to B (paper: 16,48 for images); validation "
        "uses --window",
        **RECURRENT,
    )
    accumulate: bool = option(
        False, "add half of the output two windows back to the input of the recurrence", **RECURRENT
    )
    position: str = position_option(
        lambda args: "learned" if args.regular else "none",
        " (default: none, or learned with --regular, which relative, rotary and alibi need)",
    )
    share_decoder_input_output_embed: bool = option(True)


class KausikRecurrence(LanguageModel):
    """nanoGPT's blocks, recurrent along the sequence, or regular."""

    options = KausikRecurrenceOptions

    @classmethod
    def add_options(cls, parser):
        """Also adds the option to untie the output matrix, which is tied by default."""
        super().add_options(parser)
        parser.add_argument(
            "--no-share-decoder-input-output-embed",
            dest="share_decoder_input_output_embed",
            action="store_false",
            help="use a separate output matrix, for outputs that are not tokens",
        )

    @classmethod
    def build_stack(cls, args, shape: Shape) -> nn.Module:
        layers, function = args.decoder_layers, activation(args.activation_fn)
        if args.regular:
            order = cycle(layers, layers)
            parts: dict[str, Any] = dict(activation=function, bias=False, norm_bias=False, pre_norm=True)
            loop = shared_layers(shape, order, relative=cls.position_kind(args) == "relative", **parts)
            norm = nn.LayerNorm(shape.width, shape.norm_eps, bias=False)
            stack = CausalStack(loop, cls.attention_positions(args, shape), norm)
        else:
            window = args.window, args.accumulate, _window_range(args.window_range)
            stack = RecurrentStack(shape, layers, function, *window)
        init.nanogpt_(stack, args.embedding_std, layers)
        return stack

    @classmethod
    def _check(cls, args, task) -> None:
        super()._check(args, task)
        if not args.regular and args.position in ("relative", "rotary", "alibi"):
            raise FieldError("position", args.position, "acts in attention, so it needs {regular}")
        if args.regular or args.position != "learned":
            return
        positions = remember_positions(args, task)
        _, longest = _window_range(args.window_range) or (0, 0)
        for name, tokens in (("window", args.window), ("window_range", longest)):
            if tokens > positions:
                raise FieldError(name, getattr(args, name), f"must be <= the {positions} learned positions")


def _window_range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d+,\d+", text):
        raise FieldError("window_range", text, "must be two whole numbers, as in 16,48")
    low, high = text.split(",")
    return int(low), int(high)


register_family(
    "kausik_recurrence",
    KausikRecurrence,
    {"recurrent_lm": dict(decoder_embed_dim=384, decoder_layers=1, decoder_attention_heads=6, dropout=0.0)},
)
