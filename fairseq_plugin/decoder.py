"""fairseq's incremental decoder around a causal stack: of a language model, or of an encoder-decoder."""

from typing import Any

import torch.nn.functional as F
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor, nn

from fairseq_plugin.embedding import TokenInput, borrow
from recurrence.cache import stays
from recurrence.causal import LoopState, project_memory, run_causal
from recurrence.loop import Loop
from recurrence.position import AttentionPositions, LevelTable


class Contexts:
    """Projections of the memory, which beam search reorders.

    Args:
        tensors: (B, S, 2 C) for each pass, some of them the same.
        memory: (B, S, memory width).
    """

    def __init__(self, tensors: list[Tensor], memory: Tensor):
        self.tensors = tensors
        # The source sentence of each entry; adjacent beams of a sentence have the same one.
        self.sources = F.pad((memory[1:] != memory[:-1]).flatten(1).any(1), (1, 0)).cumsum(0)

    def reorder(self, new_order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry new_order[i]."""
        sources = self.sources.index_select(0, new_order)
        if not stays(sources, self.sources):
            reordered = {tensor: tensor.index_select(0, new_order) for tensor in set(self.tensors)}
            self.tensors = [reordered[tensor] for tensor in self.tensors]
        self.sources = sources


class DecodingState:
    """Incremental state of a decoder, with the number of tokens read, and whether any was padding.

    Args:
        stack: decoding state of the stack.
        contexts: None in a language model.
    """

    def __init__(self, stack: Any, contexts: Contexts | None):
        self.stack, self.contexts = stack, contexts
        self.length, self.padded = 0, False

    def reorder(self, new_order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry new_order[i]."""
        self.stack.reorder(new_order)
        if self.contexts is not None:
            self.contexts.reorder(new_order)


class StackDecoder(FairseqIncrementalDecoder):
    """Embedding, input layer, causal stack, output layer. The incremental state is one object under KEY.

    A subclass has `embed_tokens`, `inputs` and `output_projection`, and defines `new_state`, `run` and `finish`.

    Args:
        dictionary: the dictionary of the output.
        max_positions: longest text, in tokens.
        padding_idx: the symbol of padding in the input; None for that of the output.

    Attributes:
        passes: number of passes that calls run, see :meth:`recurrence.loop.Loop.indices`; None for all.
    """

    KEY = "recurrence"
    embed_tokens: nn.Module
    inputs: TokenInput
    passes: int | None = None

    def __init__(self, dictionary, max_positions: int, padding_idx: int | None = None):
        super().__init__(dictionary)
        self._max_positions = max_positions
        self.padding_idx = dictionary.pad() if padding_idx is None else padding_idx
        self.need_attn = False

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out=None,
        incremental_state=None,
        features_only: bool = False,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
    ):
        """Reads all tokens or, with an incremental state, the new ones: a prompt, then one per step.

        Args:
            prev_output_tokens: (B, L), the text from its beginning, padded on either side.
            encoder_out: output of the encoder; None in a language model.
            incremental_state: fairseq's dictionary that keeps the state between steps.
            features_only: skip the output layer.
            src_lengths: unused.
            return_all_hiddens: also return the state after each pass.

        Returns:
            Logits (B, T, vocabulary) of the T tokens read, or features (B, T, C) (always with an adaptive softmax), and
            fairseq's dictionary: `attn` is [(B, T, S)], the head average of the last cross-attention, or [None] where
            there is none, in training, and in steps without need_attn; `inner_states` is P times (T, B, C) or [].

        Raises:
            ValueError: if there are no new tokens, or more than the learned positions.
        """
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state, return_all_hiddens)
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out=None,
        incremental_state=None,
        return_all_hiddens: bool = False,
        **unused,
    ):
        """As :meth:`forward`, without output layer."""
        tokens, state = prev_output_tokens, self._state(encoder_out, incremental_state)
        start, length = 0 if state is None else state.length, tokens.size(1)
        if length <= start:
            raise ValueError(f"{length} tokens: must be > the {start} that the incremental state has seen")
        padding = self._padding(tokens, start, state)
        states: list[Tensor] | None = [] if return_all_hiddens else None
        aligns = self.need_attn or (state is None and not self.training)  # a search that aligns reads whole texts
        record: list[Tensor] | None = [] if aligns else None
        x = self.inputs(self.embed_tokens(tokens[:, start:]), padding, start)
        memory: dict[str, Any] = {}
        if encoder_out is not None:
            contexts = self.contexts(encoder_out) if state is None else state.contexts.tensors
            memory_padding = (encoder_out["encoder_padding_mask"] or [None])[0]
            memory = dict(contexts=contexts, memory_padding=memory_padding, record=record)
        x = self.run(x, padding, None if state is None else state.stack, states, **memory)
        if state is not None:
            state.length = length
        inner_states = [each.transpose(0, 1) for each in states or ()]
        return self.finish(x), {"attn": [record[-1] if record else None], "inner_states": inner_states}

    def new_state(self) -> Any:
        """The decoding state of the stack for a new text; it has `reorder`."""
        raise TypeError(f"{type(self).__name__}: must define new_state")

    def run(self, x: Tensor, padding: Tensor | None, state: Any, states: list[Tensor] | None, **memory: Any) -> Tensor:
        """Runs the passes on embedded tokens, (B, T, C) -> (B, T, C).

        Args:
            x: the new tokens.
            padding: (B, L) bool over all tokens; None for no padding.
            state: from :meth:`new_state`, updated in place; None to read whole texts.
            states: the state after each pass is appended to this list; None to keep none.
            **memory: `contexts`, `memory_padding` and `record` of :func:`recurrence.causal.run_causal`.
        """
        raise TypeError(f"{type(self).__name__}: must define run")

    def finish(self, x: Tensor) -> Tensor:
        """From the state after a pass to the input of the output layer."""
        raise TypeError(f"{type(self).__name__}: must define finish")

    def output_layer(self, features: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, vocabulary)."""
        return self.output_projection(features)

    def _padding(self, tokens: Tensor, start: int, state: DecodingState | None) -> Tensor | None:
        """(B, L) bool; None if no token that matters can see padding. A step only searches its new tokens.

        In training, the causal mask hides padding after the text, and the loss ignores the outputs there.
        """
        padding = tokens.eq(self.padding_idx)
        if state is None:
            visible = padding[:, :-1] & ~padding[:, 1:] if self.training else padding
            return padding if visible.any() else None
        state.padded = state.padded or bool(padding[:, start:].any())
        return padding if state.padded else None

    def contexts(self, encoder_out) -> list[Tensor]:
        """Keys and values of the encoder's output for each pass."""
        raise TypeError(f"{type(self).__name__}: has no cross-attention")

    def _state(self, encoder_out, incremental_state: dict | None) -> DecodingState | None:
        if incremental_state is None:
            return None
        if self.KEY not in incremental_state:
            contexts = None
            if encoder_out is not None:
                contexts = Contexts(self.contexts(encoder_out), encoder_out["encoder_out"][0].transpose(0, 1))
            incremental_state[self.KEY] = DecodingState(self.new_state(), contexts)
        return incremental_state[self.KEY]

    def reorder_incremental_state(self, incremental_state, new_order: Tensor) -> None:
        """Beam search calls this, by its other name, after selecting hypotheses."""
        if self.KEY in incremental_state:
            incremental_state[self.KEY].reorder(new_order)

    reorder_incremental_state_scripting = reorder_incremental_state  # fairseq's own searches all modules for states

    def make_generation_fast_(self, need_attn=False, retain_dropout: bool = False, **unused) -> None:
        """fairseq calls this before generation.

        Args:
            need_attn: whether to return attention weights (`--print-alignment`).
            retain_dropout: `--retain-dropout`.

        Raises:
            ValueError: for `--retain-dropout`, which is not supported.
        """
        if retain_dropout:
            raise ValueError("--retain-dropout: not available for these models, which use dropout only in training")
        self.need_attn = bool(need_attn)

    def max_positions(self) -> int:
        return self._max_positions


class CrossDecoder(StackDecoder):
    """The decoder of an encoder-decoder.

    Args:
        dictionary, max_positions: see :class:`StackDecoder`.
        embed_tokens: the embedding.
        owns_embedding: whether it is registered here; a shared embedding is registered by the encoder.
        inputs: the input layer.
        output: the output layer.
        loop: the passes.
        positions: those inside attention.
        level_table: signals added before each pass; None for none.
        norm: after the last pass of a pre-norm stack; None for post-norm.
    """

    def __init__(
        self,
        dictionary,
        embed_tokens: nn.Embedding,
        owns_embedding: bool,
        inputs: TokenInput,
        output: nn.Module,
        max_positions: int,
        *,
        loop: Loop,
        positions: AttentionPositions,
        level_table: LevelTable | None,
        norm: nn.LayerNorm | None,
    ):
        super().__init__(dictionary, max_positions)
        if owns_embedding:
            self.embed_tokens = embed_tokens
        else:
            borrow(self, "embed_tokens", embed_tokens)
        self.inputs, self.loop, self.output_projection = inputs, loop, output
        self.positions, self.level_table, self.layer_norm = positions, level_table, norm

    def new_state(self) -> LoopState:
        return LoopState(self.loop, self.passes)

    def run(self, x: Tensor, padding: Tensor | None, state: Any, states: list[Tensor] | None, **memory: Any) -> Tensor:
        places = self.positions, self.level_table
        return run_causal(self.loop, x, *places, padding, state, self.passes, states, **memory)

    def finish(self, x: Tensor) -> Tensor:
        return x if self.layer_norm is None else self.layer_norm(x)

    def contexts(self, encoder_out) -> list[Tensor]:
        return project_memory(self.loop, encoder_out["encoder_out"][0].transpose(0, 1), self.passes)
