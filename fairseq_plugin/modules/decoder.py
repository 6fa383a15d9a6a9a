"""fairseq's incremental decoder interface around a loop, with one cache slot a pass."""

from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor, nn

from fairseq_plugin.modules.embedding import Output, TokenInput, borrow, padding_mask
from fairseq_plugin.modules.encoder import depth_levels
from recurrence.attention import causal_bias, padding_bias
from recurrence.cache import Cache
from recurrence.loop import Loop
from recurrence.position import Table


class DecodingState:
    """Incremental state of one decoder: the cache of its passes, and the memory as blocks or passes projected it."""

    def __init__(self, passes: int, contexts: list[Tensor]):
        self.cache, self.contexts = Cache(passes), contexts

    def reorder(self, new_order: Tensor) -> None:
        """Entry i of the batch becomes what entry new_order[i] was."""
        self.cache.reorder(new_order)
        self.contexts = [context.index_select(0, new_order) for context in self.contexts]


class StatefulDecoder(FairseqIncrementalDecoder):
    """What decoders share that keep everything between steps in one object, found under KEY."""

    KEY = "recurrence"

    def __init__(self, dictionary, max_positions: int):
        super().__init__(dictionary)
        self._max_positions = max_positions
        self.need_attn = False

    def reorder_incremental_state(self, incremental_state, new_order: Tensor) -> None:
        """Called by beam search after it has chosen which hypotheses go on."""
        if self.KEY in incremental_state:
            incremental_state[self.KEY].reorder(new_order)

    def make_generation_fast_(self, need_attn=False, retain_dropout: bool = False, **unused) -> None:
        """fairseq's hook before generation: `--print-alignment` asks for attention weights.

        Raises:
            ValueError: on `--retain-dropout`, which these models do not have.
        """
        if retain_dropout:
            raise ValueError(
                "--retain-dropout: not available for recurrent architectures, whose dropout ends with training"
            )
        self.need_attn = bool(need_attn)

    def max_positions(self) -> int:
        """Longest text, in tokens."""
        return self._max_positions


class RecurrentDecoder(StatefulDecoder):
    """Token input, loop, final LayerNorm in a pre-norm stack, output layer.

    Args:
        dictionary: the target dictionary.
        embed_tokens: the embedding.
        owns_embedding: whether it is registered here; an embedding shared with the encoder is registered there.
        inputs: token input on that embedding.
        loop: the stack.
        output: the output layer.
        level_table: depth-time table added before each pass, None for none.
        layer_norm: final LayerNorm of a pre-norm stack, None in a post-norm one.
        max_positions: longest target, in tokens.
    """

    def __init__(
        self,
        dictionary,
        embed_tokens: nn.Embedding,
        owns_embedding: bool,
        inputs: TokenInput,
        loop: Loop,
        output: Output,
        level_table: Table | None,
        layer_norm: nn.LayerNorm | None,
        max_positions: int,
    ):
        super().__init__(dictionary, max_positions)
        if owns_embedding:
            self.embed_tokens = embed_tokens
        else:
            borrow(self, "embed_tokens", embed_tokens)
        self.inputs, self.loop, self.output_projection = inputs, loop, output
        self.level_table, self.layer_norm = level_table, layer_norm

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out=None,
        incremental_state=None,
        features_only: bool = False,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
    ):
        """Decodes all positions, or with an incremental state the last one.

        Args:
            prev_output_tokens: (B, T).
            encoder_out: what the encoder returned.
            incremental_state: dictionary that keeps the state between steps; the steps come one token at a time.
            features_only: leave the output layer out.
            src_lengths: unused.
            return_all_hiddens: unused; the states are always returned.

        Returns:
            Logits (B, T, vocabulary) (T = 1 with an incremental state) or features (B, T, C), and fairseq's dictionary:
            `attn` [(B, T, S)], the weights of the last cross-attention averaged over its heads, or [None] unless
            alignments were asked for; `inner_states` P times (T, B, C).
        """
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(self, prev_output_tokens: Tensor, encoder_out=None, incremental_state=None):
        """As :meth:`forward`, without the output layer."""
        state = self._state(encoder_out, incremental_state)
        start = 0 if state is None else prev_output_tokens.size(1) - 1
        padding = padding_mask(prev_output_tokens, self.dictionary.pad())
        x, _ = self.inputs(prev_output_tokens, padding, start)
        bias = None if padding is None else padding_bias(padding, like=x)
        if bias is not None and state is None:
            bias = bias + causal_bias(x.size(1), like=x)
        mask = encoder_out["encoder_padding_mask"]
        record: list[Tensor] | None = [] if self.need_attn else None
        x, states = self.loop(
            x,
            levels=depth_levels(self.level_table, self.loop.passes, prev_output_tokens.size(1), padding, start, x),
            contexts=self._of_passes(self._contexts(encoder_out) if state is None else state.contexts),
            slots=None if state is None else state.cache.slots(),
            self_bias=bias,
            cross_bias=padding_bias(mask[0], like=x) if mask else None,
            causal=bias is None,
            record=record,
        )
        if state is not None:
            state.cache.advance()
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x, {"attn": [record[-1] if record else None], "inner_states": [s.transpose(0, 1) for s in states]}

    def output_layer(self, features: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, vocabulary)."""
        return self.output_projection(features)

    def _contexts(self, encoder_out) -> list[Tensor]:
        """Keys and values of the memory, once for each stored block, however often it runs.

        Once for each pass where the passes add terms of their own.
        """
        memory, loop = encoder_out["encoder_out"][0].transpose(0, 1), self.loop
        if not self._project_apart():
            return [block.cross_attn.project(memory) for block in loop.blocks]
        passes = zip(loop.order, loop.own)
        return [loop.blocks[which].cross_attn.project(memory, own.term("cross_kv")) for which, own in passes]

    def _of_passes(self, contexts: list[Tensor]) -> list[Tensor]:
        """What each pass reads of :meth:`_contexts`."""
        return contexts if self._project_apart() else [contexts[which] for which in self.loop.order]

    def _project_apart(self) -> bool:
        return self.loop.own[0].term("cross_kv") is not None

    def _state(self, encoder_out, incremental_state) -> DecodingState | None:
        if incremental_state is None:
            return None
        if self.KEY not in incremental_state:
            state = DecodingState(self.loop.passes, self._contexts(encoder_out))
            incremental_state[self.KEY] = state
        return incremental_state[self.KEY]
