"""fairseq's incremental decoder interface around a loop, with one cache slot per pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from fairseq.models import FairseqIncrementalDecoder
from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from torch import Tensor, nn

from fairseq_plugin.modules.embedding import Output, TokenInput, borrow, visible_padding
from fairseq_plugin.modules.encoder import LevelTable, depth_levels
from fairseq_plugin.repairs.replace import call_before
from recurrence.attention import padding_bias
from recurrence.attention_position import AttentionPositions
from recurrence.cache import stays
from recurrence.draft import Draft, Drafting
from recurrence.linear import pack
from recurrence.loop import Loop
from recurrence.loop_state import LoopState


class DecodingState:
    """Incremental state of a decoder.

    Args:
        loop_state: keys and values of the passes.
        draft: drafted tokens; None without drafting.
        contexts: projections of the memory, each (B, S, 2 C).
        memory: (B, S, memory width).
    """

    def __init__(self, loop_state: LoopState, draft: Draft | None, contexts: list[Tensor], memory: Tensor):
        self.loop_state, self.draft, self.contexts = loop_state, draft, contexts
        # The source sentence of each entry; adjacent beams of a sentence have the same one.
        self.sources = F.pad((memory[1:] != memory[:-1]).flatten(1).any(1), (1, 0)).cumsum(0)

    def reorder(self, new_order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry new_order[i]."""
        self.loop_state.reorder(new_order)
        if self.draft is not None:
            self.draft.reorder(new_order)
        sources = self.sources.index_select(0, new_order)
        if not stays(sources, self.sources):
            self.contexts = [context.index_select(0, new_order) for context in self.contexts]
        self.sources = sources


class StatefulDecoder(FairseqIncrementalDecoder):
    """Base of the decoders: the incremental state is one object under KEY."""

    KEY = "recurrence"

    def __init__(self, dictionary, max_positions: int):
        super().__init__(dictionary)
        self._max_positions = max_positions
        self.need_attn = False
        self.drafting: Drafting | None = None

    def new_draft(self, loop_state: LoopState) -> Draft | None:
        """Drafting state for new texts; None without drafting."""
        if self.drafting is None:
            return None
        return Draft(loop_state, self.drafting, self.dictionary.eos(), self.max_positions())

    def guess(self, state: Tensor) -> Tensor:
        """The most likely next token, never padding, from the state after some pass: (B, 1, C) -> (B, 1)."""
        scores = self.get_normalized_probs((self.output_layer(self.finish(state)), None), log_probs=True)
        if self.dictionary.pad() < scores.size(-1):
            scores[..., self.dictionary.pad()] = float("-inf")
        return scores.argmax(-1)

    def reorder_incremental_state(self, incremental_state, new_order: Tensor) -> None:
        """Beam search calls this after selecting hypotheses."""
        if self.KEY in incremental_state:
            incremental_state[self.KEY].reorder(new_order)

    def reorder_incremental_state_scripting(self, incremental_state, new_order: Tensor) -> None:
        """Beam search calls this at each step; fairseq's own version searches all modules for states."""
        self.reorder_incremental_state(incremental_state, new_order)

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
        """Longest text, in tokens."""
        return self._max_positions


def return_attention_when_aligning() -> None:
    """Makes decoders return attention weights to any search that aligns.

    fairseq's commands ask for them in advance (`--print-alignment`), its hub interface does not.
    """
    call_before(SequenceGeneratorWithAlignment, "__init__", _return_attention)


def _return_attention(generator: SequenceGeneratorWithAlignment, models: list[nn.Module], *args, **kwargs) -> None:
    for decoder in (model.decoder for model in models if hasattr(model, "decoder")):
        if isinstance(decoder, StatefulDecoder):
            decoder.need_attn = True


class LoopedDecoder(StatefulDecoder):
    """Input layer, loop, final LayerNorm if pre-norm, output layer.

    Args:
        dictionary: the target dictionary.
        embed_tokens: the embedding.
        owns_embedding: whether it is registered here; a shared embedding is registered by the encoder.
        inputs: the input layer with that embedding.
        loop: the stack.
        positions: those inside self-attention.
        output: the output layer.
        level_table: table of the signals added before each pass; None for none.
        layer_norm: final LayerNorm of a pre-norm stack; None for post-norm.
        max_positions: longest target, in tokens.
    """

    def __init__(
        self,
        dictionary,
        embed_tokens: nn.Embedding,
        owns_embedding: bool,
        inputs: TokenInput,
        loop: Loop,
        positions: AttentionPositions,
        output: Output,
        level_table: LevelTable | None,
        layer_norm: nn.LayerNorm | None,
        max_positions: int,
    ):
        super().__init__(dictionary, max_positions)
        if owns_embedding:
            self.embed_tokens = embed_tokens
        else:
            borrow(self, "embed_tokens", embed_tokens)
        self.inputs, self.loop, self.output_projection = inputs, loop, output
        self.positions, self.level_table, self.layer_norm = positions, level_table, layer_norm

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out=None,
        incremental_state=None,
        features_only: bool = False,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
    ):
        """Decodes all positions or, with an incremental state, the new ones.

        Args:
            prev_output_tokens: (B, T).
            encoder_out: output of the encoder.
            incremental_state: fairseq's dictionary that keeps the state between steps.
            features_only: skip the output layer.
            src_lengths: unused.
            return_all_hiddens: also return the state after each pass; only without incremental state.

        Returns:
            Logits (B, T, vocabulary) or features (B, T, C), of the new tokens if there is an incremental state, and
            fairseq's dictionary: `attn` is [(B, T, S)], the head average of the last cross-attention, or [None] without
            need_attn; `inner_states` is P times (T, B, C) or [].
        """
        state = self._state(encoder_out, incremental_state)
        if state is not None and state.draft is not None:
            features, logits, *weights = self._draft(prev_output_tokens, encoder_out, state)
            return (features if features_only else logits), {"attn": weights or [None], "inner_states": []}
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state, return_all_hiddens)
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out=None, incremental_state=None, return_all_hiddens: bool = False
    ):
        """As :meth:`forward`, without output layer and drafting."""
        state = self._state(encoder_out, incremental_state)
        record: list[Tensor] | None = [] if self.need_attn else None
        states: list[Tensor] | None = [] if return_all_hiddens else None
        padding = self._padding(prev_output_tokens)
        arguments = self._arguments(padding, encoder_out, state, record)
        start = 0 if state is None else state.loop_state.length
        x = self.inputs(prev_output_tokens, padding, start)
        if state is None:
            x = self.loop(x, states=states, **arguments(x, start))
        else:
            x = state.loop_state.run(x, self.loop.running, **arguments(x, start))
        attn = [record[-1][:, -x.size(1) :] if record else None]
        return self.finish(x), {"attn": attn, "inner_states": [s.transpose(0, 1) for s in states or ()]}

    def finish(self, x: Tensor) -> Tensor:
        """From the state after a pass to the input of the output layer."""
        return x if self.layer_norm is None else self.layer_norm(x)

    def _draft(self, tokens: Tensor, encoder_out, state: DecodingState) -> tuple[Tensor, ...]:
        """Features, logits and, with need_attn, attention weights of the new tokens, with drafting."""
        record: list[Tensor] | None = [] if self.need_attn else None

        def read(known: Tensor, passes: Sequence[int], x: Tensor | None) -> Tensor:
            start, padding = state.loop_state.cache.lengths[passes[0]], self._padding(known)
            x = self.inputs(known, padding, start) if x is None else x
            return state.loop_state.run(x, passes, **self._arguments(padding, encoder_out, state, record)(x, start))

        def output(x: Tensor) -> tuple[Tensor, ...]:
            x = self.finish(x)
            return (x, self.output_layer(x), *(record[-1:] if record else ()))

        return state.draft(tokens, read, self.guess, output)

    def _padding(self, tokens: Tensor) -> Tensor | None:
        """See :func:`visible_padding`; finding out waits for the GPU, so once per call."""
        return visible_padding(tokens, self.dictionary.pad(), self.training)

    def _arguments(
        self, padding: Tensor | None, encoder_out, state: DecodingState | None, record: list | None
    ) -> Callable[[Tensor, int], dict[str, Any]]:
        """A function of x (B, T, C), the states of the tokens from `start` on, that gives the loop's arguments."""
        mask = encoder_out["encoder_padding_mask"]
        contexts = self._contexts(encoder_out) if state is None else state.contexts
        if not self._projects_per_pass():
            contexts = [contexts[which] for which in self.loop.order]

        kept = None if state is None else state.loop_state

        def arguments(x: Tensor, start: int) -> dict[str, Any]:
            length = start + x.size(1)
            part = None if padding is None else padding[:, :length]
            return dict(
                **self.positions.causal_arguments(self.loop, x, part, start, kept),
                levels=depth_levels(self.level_table, self.loop.passes, length, part, start, x),
                contexts=contexts,
                cross_bias=padding_bias(mask[0], like=x) if mask else None,
                record=record,
            )

        return arguments

    def output_layer(self, features: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, vocabulary)."""
        return self.output_projection(features)

    def _contexts(self, encoder_out) -> list[Tensor]:
        """Keys and values of the memory: one per stored block, or per pass if passes have their own terms."""
        memory, loop = encoder_out["encoder_out"][0].transpose(0, 1), self.loop
        if not self._projects_per_pass():
            return [block.cross_attn.project(memory) for block in loop.blocks]
        passes = zip(loop.order, loop.own)
        return [loop.blocks[which].cross_attn.project(memory, own.term("cross_kv")) for which, own in passes]

    def _projects_per_pass(self) -> bool:
        return self.loop.own[0].term("cross_kv") is not None

    def _state(self, encoder_out, incremental_state) -> DecodingState | None:
        if incremental_state is None:
            return None
        if self.KEY not in incremental_state:
            loop_state = LoopState(self.loop)
            incremental_state[self.KEY] = DecodingState(
                loop_state,
                self.new_draft(loop_state),
                self._contexts(encoder_out),
                encoder_out["encoder_out"][0].transpose(0, 1),
            )
        return incremental_state[self.KEY]
