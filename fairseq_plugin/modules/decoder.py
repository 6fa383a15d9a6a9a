"""fairseq's incremental decoder around a causal stack: of a language model, or of an encoder-decoder."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from fairseq.models import FairseqIncrementalDecoder
from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from torch import Tensor, nn

from fairseq_plugin.modules.embedding import Output, TokenInput, borrow
from fairseq_plugin.modules.hooks import call_before
from recurrence.cache import stays
from recurrence.causal import CausalStack
from recurrence.draft import Draft, Drafting
from recurrence.linear import pack
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
        draft: drafted tokens; None without drafting.
        contexts: None in a language model.
    """

    def __init__(self, stack: Any, draft: Draft | None, contexts: Contexts | None):
        self.stack, self.draft, self.contexts = stack, draft, contexts
        self.length, self.padded = 0, False

    def reorder(self, new_order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry new_order[i]."""
        for part in (self.stack, self.draft, self.contexts):
            if part is not None:
                part.reorder(new_order)


class StackDecoder(FairseqIncrementalDecoder):
    """Input layer, causal stack, output layer. The incremental state is one object under KEY.

    A subclass has `inputs`, `stack` and `output_projection`.

    Args:
        dictionary: the dictionary of the output.
        max_positions: longest text, in tokens.
        padding_idx: the symbol of padding in the input; None for that of the output.

    Attributes:
        stack: has `forward(x, padding, state, states)` and `new_state()`, see :class:`recurrence.causal.CausalStack`.
    """

    KEY = "recurrence"
    inputs: TokenInput

    def __init__(self, dictionary, max_positions: int, padding_idx: int | None = None):
        super().__init__(dictionary)
        self._max_positions = max_positions
        self.padding_idx = dictionary.pad() if padding_idx is None else padding_idx
        self.need_attn = False
        self.drafting: Drafting | None = None

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
            return_all_hiddens: also return the state after each pass; without effect when drafting.

        Returns:
            Logits (B, T, vocabulary) of the T tokens read, or features (B, T, C) (always with an adaptive softmax), and
            fairseq's dictionary: `attn` is [(B, T, S)], the head average of the last cross-attention, or [None] without
            need_attn; `inner_states` is P times (T, B, C) or []; `passes` is the number of passes.

        Raises:
            ValueError: if there are no new tokens, or more than the learned positions.
        """
        state = self._state(encoder_out, incremental_state)
        if state is None or state.draft is None:
            x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state, return_all_hiddens)
            return (x if features_only else self.output_layer(x)), extra
        features, logits, *attn = self._draft(prev_output_tokens, encoder_out, state)
        return (features if features_only else logits), self._extra(attn)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out=None,
        incremental_state=None,
        return_all_hiddens: bool = False,
        **unused,
    ):
        """As :meth:`forward`, without output layer and drafting."""
        state, tokens = self._state(encoder_out, incremental_state), prev_output_tokens
        start, memory = self._check_length(tokens, state), self._memory(encoder_out, state)
        padding = self._padding(tokens, start, state)
        states: list[Tensor] | None = [] if return_all_hiddens else None
        x = self.inputs(tokens, padding, start)
        x = self.stack(x, padding, None if state is None else state.stack, states, **memory)
        if state is not None:
            state.length = tokens.size(1)
        return x, self._extra(memory.get("record"), states)

    def _draft(self, tokens: Tensor, encoder_out, state: DecodingState) -> tuple[Tensor, ...]:
        """Features, logits and, with need_attn, attention weights of the new tokens, with drafting."""
        self._check_length(tokens, state)
        memory = self._memory(encoder_out, state)

        def read(known: Tensor, indices: Sequence[int], x: Tensor | None) -> Tensor:
            start = state.stack.cache.lengths[indices[0]]
            padding = self._padding(known, start, state)
            x = self.inputs(known, padding, start) if x is None else x
            return state.stack.run(x, indices, **self.stack.arguments(x, padding, start, state.stack, **memory))

        def output(x: Tensor) -> tuple[Tensor, ...]:
            x = self.finish(x)
            return (x, self.output_layer(x), *(memory.get("record") or ())[-1:])

        found = state.draft(tokens, read, self.guess, output)
        state.length = tokens.size(1)
        return found

    def _extra(self, record: list[Tensor] | None, states: list[Tensor] | None = None) -> dict[str, Any]:
        """fairseq's dictionary beside the output, see :meth:`forward`."""
        inner_states = [state.transpose(0, 1) for state in states or ()]
        attn = [record[-1] if record else None]
        return {"attn": attn, "inner_states": inner_states, "passes": len(self.stack.loop.running)}

    def finish(self, x: Tensor) -> Tensor:
        """From the state after a pass to the input of the output layer."""
        return self.stack.finish(x)

    def output_layer(self, features: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, vocabulary)."""
        return self.output_projection(features)

    def guess(self, state: Tensor) -> Tensor:
        """The most likely next token, never padding, from the state after some pass: (B, 1, C) -> (B, 1)."""
        scores = self.get_normalized_probs((self.output_layer(self.finish(state)), None), log_probs=True)
        if self.dictionary.pad() < scores.size(-1):
            scores[..., self.dictionary.pad()] = float("-inf")
        return scores.argmax(-1)

    def _check_length(self, tokens: Tensor, state: DecodingState | None) -> int:
        """How many of the tokens (B, L) were read before. Raises ValueError if there are no new ones."""
        start, length = 0 if state is None else state.length, tokens.size(1)
        if length <= start:
            raise ValueError(f"{length} tokens: must be > the {start} that the incremental state has seen")
        return start

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

    def _memory(self, encoder_out, state: DecodingState | None) -> dict[str, Any]:
        """What the stack reads beside the text, see :meth:`recurrence.causal.CausalStack.arguments`."""
        if encoder_out is None:
            return {}
        contexts = self._contexts(encoder_out) if state is None else state.contexts.tensors
        padding = (encoder_out["encoder_padding_mask"] or [None])[0]
        return dict(contexts=contexts, memory_padding=padding, record=[] if self.need_attn else None)

    def _contexts(self, encoder_out) -> list[Tensor]:
        return self.stack.project(encoder_out["encoder_out"][0].transpose(0, 1))

    def _state(self, encoder_out, incremental_state: dict | None) -> DecodingState | None:
        if incremental_state is None:
            return None
        if self.KEY not in incremental_state:
            stack, draft, contexts = self.stack.new_state(), None, None
            if self.drafting is not None:
                draft = Draft(stack, self.drafting, self.dictionary.eos(), self.max_positions())
            if encoder_out is not None:
                contexts = Contexts(self._contexts(encoder_out), encoder_out["encoder_out"][0].transpose(0, 1))
            incremental_state[self.KEY] = DecodingState(stack, draft, contexts)
        return incremental_state[self.KEY]

    def reorder_incremental_state(self, incremental_state, new_order: Tensor) -> None:
        """Beam search calls this, by its other name, after selecting hypotheses."""
        if self.KEY in incremental_state:
            incremental_state[self.KEY].reorder(new_order)

    reorder_incremental_state_scripting = reorder_incremental_state  # fairseq's own searches all modules for states

    def make_generation_fast_(self, need_attn=False, retain_dropout: bool = False, **unused) -> None:
        """fairseq calls this before generation; weights no longer change afterwards.

        Args:
            need_attn: whether to return attention weights (`--print-alignment`).
            retain_dropout: `--retain-dropout`.

        Raises:
            ValueError: for `--retain-dropout`, which is not supported.
        """
        if retain_dropout:
            raise ValueError("--retain-dropout: not available for these models, which use dropout only in training")
        self.need_attn = bool(need_attn)
        pack(self)

    def max_positions(self) -> int:
        return self._max_positions


class CrossDecoder(StackDecoder):
    """The decoder of an encoder-decoder. In checkpoints, the parts of the stack have no prefix: `decoder.loop`.

    Args:
        dictionary, max_positions: see :class:`StackDecoder`.
        embed_tokens: the embedding.
        owns_embedding: whether it is registered here; a shared embedding is registered by the encoder.
        inputs: the input layer with that embedding.
        output: the output layer.
        loop, positions, level_table, norm: the parts of the stack, see :class:`recurrence.causal.CausalStack`.
    """

    def __init__(
        self,
        dictionary,
        embed_tokens: nn.Embedding,
        owns_embedding: bool,
        inputs: TokenInput,
        output: Output,
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

    @property
    def stack(self) -> CausalStack:
        """The parts as a stack, made anew: a stored one would put every part into the state dict twice."""
        return CausalStack(self.loop, self.positions, self.layer_norm, self.level_table)


def return_attention_when_aligning() -> None:
    """Makes decoders return attention weights to any search that aligns.

    fairseq's commands ask for them in advance (`--print-alignment`), its hub interface does not.
    """
    call_before(SequenceGeneratorWithAlignment, "__init__", _return_attention)


def _return_attention(generator: Any, models: list[nn.Module], *args, **kwargs) -> None:
    for decoder in (model.decoder for model in models if hasattr(model, "decoder")):
        if isinstance(decoder, StackDecoder):
            decoder.need_attn = True
