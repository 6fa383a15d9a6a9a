"""The decoder-only model, the base of every language-model family."""

import math
import sys
from dataclasses import dataclass
from typing import Any

from fairseq.models import FairseqLanguageModel
from torch import Tensor, nn

from fairseq_plugin import adaptive
from fairseq_plugin.decoder import StackDecoder
from fairseq_plugin.embedding import TokenInput, dropout_rate, new_embedding, output_layer, store_positions
from fairseq_plugin.options import ConfiguredModel, StackOptions, option
from recurrence.block import Shape
from recurrence.errors import FieldError
from recurrence.position import AttentionPositions, Table, attention_positions, halved


@dataclass
class LanguageOptions(adaptive.AdaptiveOptions, StackOptions):
    """Options of every language model."""

    no_scale_embedding: bool = option(False, "do not multiply embeddings by sqrt(width)")
    share_decoder_input_output_embed: bool = option(
        False, "use the embedding as the output matrix (without adaptive bands)"
    )
    embedding_std: float = option(0.02, least=0)
    max_target_positions: int | None = option(None)


class LanguageDecoder(StackDecoder):
    """The decoder of a language model.

    Args:
        dictionary, max_positions, padding_idx: see :class:`StackDecoder`.
        embed_tokens: the embedding.
        inputs: the input layer.
        stack: a :class:`recurrence.causal.CausalStack` or :class:`recurrence.papers.kausik.RecurrentStack`.
        output: the output layer, or fairseq's adaptive softmax.
    """

    def __init__(
        self,
        dictionary,
        embed_tokens: nn.Module,
        inputs: TokenInput,
        stack: nn.Module,
        output: nn.Module,
        max_positions: int,
        padding_idx: int,
    ):
        super().__init__(dictionary, max_positions, padding_idx)
        self.embed_tokens, self.inputs, self.stack = embed_tokens, inputs, stack
        adapts = isinstance(output, adaptive.AdaptiveSoftmax)
        self.adaptive_softmax = output if adapts else None
        self.output_projection = None if adapts else output

    def new_state(self) -> Any:
        return self.stack.new_state(self.passes)

    def run(self, x: Tensor, padding: Tensor | None, state: Any, states: list[Tensor] | None, **memory: Any) -> Tensor:
        return self.stack(x, padding, state, passes=self.passes, states=states)

    def finish(self, x: Tensor) -> Tensor:
        return self.stack.finish(x)

    def output_layer(self, features: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, vocabulary); unchanged features with an adaptive softmax, which needs the targets."""
        return features if self.adaptive_softmax is not None else super().output_layer(features)


class LanguageModel(ConfiguredModel, FairseqLanguageModel):
    """A language model. A family defines `options` and :meth:`build_stack`."""

    options: type[LanguageOptions] = LanguageOptions

    @classmethod
    def build_stack(cls, args, shape: Shape) -> nn.Module:
        """The initialised stack, including its final norm; see :class:`LanguageDecoder`."""
        raise TypeError(f"{cls.__name__}: a family must define build_stack")

    @classmethod
    def position_kind(cls, args) -> str:
        """The kind of positions, one of :data:`recurrence.position.POSITIONS`."""
        return "rotary" if args.position == "rope" else args.position

    @classmethod
    def attention_positions(cls, args, shape: Shape) -> AttentionPositions:
        """The positions inside self-attention."""
        return attention_positions(cls.position_kind(args), shape.width, shape.heads, causal=True)

    @classmethod
    def depth_step(cls, args) -> int:
        """The number of passes must be a multiple of this."""
        return 1

    @classmethod
    def _build(cls, args, task):
        source, target = task.source_dictionary, task.target_dictionary
        width, kind = args.decoder_embed_dim, cls.position_kind(args)
        most = remember_positions(args, task) if kind == "learned" else sys.maxsize
        with cls.options.flags_in_errors("decoder"):
            stack = cls.build_stack(args, cls.options.shape(args, "decoder"))
        if args.adaptive_input_cutoff != adaptive.NONE:
            embedding = adaptive.adaptive_input(args, source)
        else:
            embedding = new_embedding(source, width, args.embedding_std)
        inputs = TokenInput(
            width,
            scale=1.0 if args.no_scale_embedding else math.sqrt(width),
            table=Table(halved, width, source.pad() + 1, blank_padding=True) if kind == "sinusoidal" else None,
            learned=most if kind == "learned" else 0,
            std=args.embedding_std,
            dropout=dropout_rate(args),
        )
        if args.adaptive_softmax_cutoff != adaptive.NONE:
            output = adaptive.adaptive_softmax(args, target, embedding)
        else:
            tied = embedding if args.share_decoder_input_output_embed else None
            output = output_layer(width, len(target), False, tied, args.embedding_std)
        model = cls(LanguageDecoder(target, embedding, inputs, stack, output, most - uncounted(task), source.pad()))
        model.set_loops(args)
        model.depth_rules = dict(step=cls.depth_step(args))
        return model

    @classmethod
    def _check(cls, args, task) -> None:
        """Raises ValueError for options that conflict."""
        cls.options.check(args)
        has_source = isinstance(task.max_positions(), tuple | list | dict)  # of two sides, or of pairs of languages
        if has_source or task.source_dictionary is None:  # None: a task that reads speech
            rule = "has a source, which a language model does not read; must be language_modeling"
            raise ValueError(f"--task: {type(task).__name__} {rule}")
        symbols, target = len(task.source_dictionary), len(task.target_dictionary)
        unpadded = task.source_dictionary.pad() >= symbols or task.target_dictionary.pad() >= target
        for name in ("adaptive_input_cutoff", "adaptive_softmax_cutoff") if unpadded else ():
            if getattr(args, name) != adaptive.NONE:
                rule = f"must be '{adaptive.NONE}', as this task's symbols have no padding"
                raise FieldError(name, getattr(args, name), rule)
        adaptive.check(args, min(symbols, target))
        tied = args.share_decoder_input_output_embed or args.tie_adaptive_weights
        if tied and symbols != target:
            raise ValueError(
                f"--output-dictionary-size={target}: must equal the {symbols} symbols of the input, because input and "
                "output share a matrix"
            )


def remember_positions(args, task) -> int:
    """Number of learned positions, see :func:`store_positions`: by default one for each token of a training text."""
    text = task.args.tokens_per_sample + uncounted(task)
    known = args.max_target_positions, getattr(task.args, "max_target_positions", None), text
    return store_positions(args, "max_target_positions", next(number for number in known if number is not None))


def uncounted(task) -> int:
    """Tokens of a text that fairseq does not count in its length: the first one of `--add-bos-token`."""
    return int(bool(getattr(getattr(task, "args", None), "add_bos_token", False)))
