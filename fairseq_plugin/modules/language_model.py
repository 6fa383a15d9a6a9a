"""The decoder-only model, the base of every language-model family."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq.models import FairseqLanguageModel
from torch import Tensor, nn

from fairseq_plugin.modules import adaptive, elastic
from fairseq_plugin.modules.decoder import StatefulDecoder
from fairseq_plugin.modules.drafting import DraftingModel, DraftingOptions, set_drafting
from fairseq_plugin.modules.eight_bits import EightBitModel, EightBitOptions, set_eight_bits
from fairseq_plugin.modules.embedding import Output, TokenInput, store_positions, visible_padding
from fairseq_plugin.modules.options import option
from recurrence import position
from recurrence.attention_position import AttentionPositions, attention_positions
from recurrence.block import Shape
from recurrence.draft import Draft
from recurrence.loop import Loop


@dataclass
class LanguageOptions(adaptive.AdaptiveOptions, DraftingOptions, EightBitOptions):
    """Options of every language model."""

    no_scale_embedding: bool = option(False, "do not multiply embeddings by sqrt(width)")
    share_decoder_input_output_embed: bool = option(
        False, "use the embedding as the output matrix (without adaptive bands)"
    )
    embedding_std: float = option(0.02)
    max_target_positions: int | None = option(None)


class TextState:
    """Incremental state: that of the stack, the draft, the number of tokens seen, and whether any was padding."""

    def __init__(self, stack, draft: Draft | None):
        self.stack, self.draft, self.length, self.padded = stack, draft, 0, False

    def reorder(self, new_order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry new_order[i]."""
        self.stack.reorder(new_order)
        if self.draft is not None:
            self.draft.reorder(new_order)


class LanguageDecoder(StatefulDecoder):
    """Input layer, stack, output layer.

    Args:
        dictionary: the dictionary of the output.
        embed_tokens: the embedding.
        inputs: the input layer with that embedding.
        stack: has `forward(x, padding, state)` and `new_state()`, see :class:`recurrence.causal.CausalStack`.
        output: the output layer, or fairseq's adaptive softmax.
        max_positions: longest text, in tokens.
    """

    def __init__(
        self,
        dictionary,
        embed_tokens: nn.Module,
        inputs: TokenInput,
        stack: nn.Module,
        output: nn.Module,
        max_positions: int,
    ):
        super().__init__(dictionary, max_positions)
        self.embed_tokens, self.inputs, self.stack = embed_tokens, inputs, stack
        adapts = isinstance(output, adaptive.AdaptiveSoftmax)
        self.adaptive_softmax = output if adapts else None
        self.output_projection = None if adapts else output

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: None = None,
        incremental_state: dict | None = None,
        features_only: bool = False,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
    ):
        """Reads all tokens or, with an incremental state, the new ones: a prompt, then one per step.

        Args:
            prev_output_tokens: (B, L), the text from its beginning, padded on either side.
            incremental_state: fairseq's dictionary that keeps the state between steps.
            features_only: skip the output layer.
            encoder_out, src_lengths, return_all_hiddens: unused.

        Returns:
            Logits (B, T, vocabulary) of the T tokens read, or features (B, T, C) (always with an adaptive softmax), and
            fairseq's dictionary, whose `attn` is [None]; `passes` is the number of passes.

        Raises:
            ValueError: if there are no new tokens, or more than the learned positions.
        """
        state = self._state(incremental_state)
        if state is not None and state.draft is not None:
            self._check_length(prev_output_tokens, state)
            features, logits = self._draft(prev_output_tokens, state)
            state.length = prev_output_tokens.size(1)
            return (features if features_only else logits), {"attn": [None]}
        x, extra = self.extract_features(prev_output_tokens, incremental_state=incremental_state)
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(self, prev_output_tokens: Tensor, encoder_out: None = None, incremental_state=None, **unused):
        """As :meth:`forward`, without output layer and drafting."""
        state = self._state(incremental_state)
        start = self._check_length(prev_output_tokens, state)
        padding = self._padding(prev_output_tokens, start, state)
        x = self.inputs(prev_output_tokens, padding, start)
        x = self.stack(x, padding, None if state is None else state.stack)
        if state is not None:
            state.length = prev_output_tokens.size(1)
        return x, {"attn": [None], "passes": len(self.stack.loop.running)}

    def finish(self, x: Tensor) -> Tensor:
        """From the state after a pass to the input of the output layer."""
        return self.stack.finish(x)

    def _draft(self, tokens: Tensor, state: TextState) -> tuple[Tensor, Tensor]:
        """Features and logits of the new tokens, with drafting."""

        def read(known: Tensor, passes: Sequence[int], x: Tensor | None) -> Tensor:
            start = state.stack.cache.lengths[passes[0]]
            padding = self._padding(known, start, state)
            x = self.inputs(known, padding, start) if x is None else x
            return state.stack.run(x, passes, **self.stack.arguments(x, padding, start, state.stack))

        def output(x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.finish(x)
            return x, self.output_layer(x)

        return state.draft(tokens, read, self.guess, output)

    def _check_length(self, tokens: Tensor, state: TextState | None) -> int:
        """How many of the tokens (B, L) were read before. Raises ValueError if there are no new ones."""
        start, length = 0 if state is None else state.length, tokens.size(1)
        if length <= start:
            raise ValueError(f"{length} tokens: must be > the {start} that the incremental state has seen")
        return start

    def output_layer(self, features: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, vocabulary); unchanged features with an adaptive softmax, which needs the targets."""
        return features if self.adaptive_softmax is not None else self.output_projection(features)

    def _padding(self, tokens: Tensor, start: int, state: TextState | None) -> Tensor | None:
        """(B, L) bool; None if no token can see padding. A step only searches its new tokens."""
        pad = self.dictionary.pad()
        if state is None:
            return visible_padding(tokens, pad, self.training)
        state.padded = state.padded or bool(tokens[:, start:].eq(pad).any())
        return tokens.eq(pad) if state.padded else None

    def _state(self, incremental_state: dict | None) -> TextState | None:
        if incremental_state is None:
            return None
        if self.KEY not in incremental_state:
            stack = self.stack.new_state()
            incremental_state[self.KEY] = TextState(stack, self.new_draft(stack))
        return incremental_state[self.KEY]


class LanguageModel(DraftingModel, EightBitModel, elastic.ElasticModel, FairseqLanguageModel):
    """A language model. A family defines `options` and :meth:`build_stack`."""

    options: type[LanguageOptions] = LanguageOptions

    @classmethod
    def build_stack(cls, args, shape: Shape) -> nn.Module:
        """The initialised stack, including its final norm; see :class:`LanguageDecoder`."""
        raise TypeError(f"{cls.__name__}: a family must define build_stack")

    @classmethod
    def position(cls, args) -> str:
        """The kind of positions, one of :data:`recurrence.attention_position.POSITIONS`."""
        kind: Any = getattr(args, "position", None)  # not in older checkpoints
        if kind is None:
            kind = cls.options.known()["position"].default
        return "rotary" if kind == "rope" else kind

    @classmethod
    def attention_positions(cls, args, shape: Shape) -> AttentionPositions:
        """The positions inside self-attention."""
        return attention_positions(cls.position(args), shape.width, shape.heads, causal=True)

    @classmethod
    def depth_step(cls, args) -> int:
        """The number of passes must be a multiple of this."""
        return 1

    @classmethod
    def build_model(cls, args, task):
        """Builds the model; fairseq calls this. Options are checked before anything is built.

        Raises:
            ValueError: naming the option, the value and the rule.
        """
        with cls.options.flags_in_errors():
            cls._check(args, task)
        most = remember_positions(args, task) if cls.position(args) == "learned" else sys.maxsize
        with cls.options.flags_in_errors("decoder"):
            stack = cls.build_stack(args, cls.options.shape(args, "decoder"))
        stack.loop.checkpointing = args.checkpoint_activations
        if args.compile:
            stack.loop.compile_blocks(backend=args.compile)
        embedding = cls._embedding(args, task.source_dictionary)
        inputs = cls._inputs(args, embedding, task.source_dictionary, most)
        output = cls._output(args, embedding, task.target_dictionary)
        model = cls(LanguageDecoder(task.target_dictionary, embedding, inputs, stack, output, most))
        set_drafting(model, args)
        set_eight_bits(model, args)
        model.set_elastic(args, cls.depth_step(args))
        return model

    def loops_by_side(self) -> dict[str, Loop]:
        """The only loop."""
        return {"decoder": self.decoder.stack.loop}

    @classmethod
    def _embedding(cls, args, dictionary) -> nn.Module:
        if args.adaptive_input_cutoff != adaptive.NONE:
            return adaptive.adaptive_input(args, dictionary)
        # Published vocabularies have no padding: the index in their dictionary is after the last symbol.
        padding = dictionary.pad() if dictionary.pad() < len(dictionary) else None
        embedding = nn.Embedding(len(dictionary), args.decoder_embed_dim, padding_idx=padding)
        nn.init.normal_(embedding.weight, std=args.embedding_std)
        if padding is not None:
            nn.init.zeros_(embedding.weight[padding])
        return embedding

    @classmethod
    def _inputs(cls, args, embedding: nn.Module, dictionary, most: int) -> TokenInput:
        width, kind = args.decoder_embed_dim, cls.position(args)
        table = position.Table(position.halved, width, dictionary.pad() + 1, blank_padding=True)
        return TokenInput(
            embedding,
            scale=1.0 if args.no_scale_embedding else math.sqrt(width),
            table=table if kind == "sinusoidal" else None,
            learned=most if kind == "learned" else 0,
            std=args.embedding_std,
            dropout=args.dropout,
        )

    @classmethod
    def _output(cls, args, embedding: nn.Module, dictionary) -> nn.Module:
        if args.adaptive_softmax_cutoff != adaptive.NONE:
            return adaptive.adaptive_softmax(args, dictionary, embedding)
        tied = embedding if args.share_decoder_input_output_embed else None
        return Output(args.decoder_embed_dim, len(dictionary), False, tied, args.embedding_std)

    @classmethod
    def _check(cls, args, task) -> None:
        """Raises ValueError for options that do not go together."""
        cls.options.check(args)
        elastic.check(args, sides=1)
        symbols, target = len(task.source_dictionary), len(task.target_dictionary)
        adaptive.check(args, min(symbols, target))
        tied = args.share_decoder_input_output_embed or args.tie_adaptive_weights
        if tied and symbols != target:
            raise ValueError(
                f"--output-dictionary-size={target}: must equal the {symbols} symbols of the input, because input and "
                "output share a matrix"
            )


def remember_positions(args, task) -> int:
    """Number of learned positions, see :func:`store_positions`."""
    given = getattr(args, "max_target_positions", None) or getattr(task.args, "max_target_positions", None)
    return store_positions(args, "max_target_positions", given or task.args.tokens_per_sample)
