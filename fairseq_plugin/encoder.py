"""fairseq's encoder interface around a loop."""

from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from recurrence.attention import padding_bias
from recurrence.loop import Loop
from recurrence.position import AttentionPositions, LevelTable


class LoopedEncoder(FairseqEncoder):
    """Input layer, loop and, if pre-norm, a final LayerNorm.

    Args:
        dictionary: the source dictionary; None for speech.
        embed_tokens: the embedding, registered here; None for speech.
        inputs: the input layer: of text, see :class:`fairseq_plugin.embedding.TokenInput`; of speech, from frames (B,
            frames, features) and lengths (B,) to the input of the stack and its padding, see
            :class:`fairseq_plugin.models.speech.SpeechInput`.
        loop: the stack.
        positions: those inside self-attention.
        level_table: table of the signals added before each pass; None for none.
        norm: final LayerNorm of a pre-norm stack; None for post-norm.
        max_positions: longest source, in tokens or frames.

    Attributes:
        passes: number of passes that calls run, see :meth:`recurrence.loop.Loop.indices`; None for all.
    """

    passes: int | None = None

    def __init__(
        self,
        dictionary,
        embed_tokens: nn.Embedding | None,
        inputs: nn.Module,
        loop: Loop,
        positions: AttentionPositions,
        level_table: LevelTable | None,
        norm: nn.LayerNorm | None,
        max_positions: int,
    ):
        super().__init__(dictionary)
        self.embed_tokens, self.inputs, self.loop = embed_tokens, inputs, loop
        self.positions, self.level_table, self.layer_norm = positions, level_table, norm
        self._max_positions = max_positions

    def forward(self, src_tokens: Tensor, src_lengths: Tensor | None = None, return_all_hiddens: bool = False):
        """Encodes a batch.

        Args:
            src_tokens: (B, S) tokens, padded on either side, or (B, frames, features), padded at the end.
            src_lengths: (B,) numbers of frames; unused for tokens.
            return_all_hiddens: also return the state after each pass.

        Returns:
            What fairseq reads of its dictionary: `encoder_out` [(S, B, C)], `encoder_padding_mask` [(B, S)] or []
            without padding, `encoder_states` P times (S, B, C) or [].
        """
        x, padding = self.embed(src_tokens, src_lengths)
        x, states = self.run(x, padding, return_all_hiddens)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [] if padding is None else [padding],
            "encoder_states": [state.transpose(0, 1) for state in states],
        }

    def run(self, x: Tensor, padding: Tensor | None, keep_states: bool = False) -> tuple[Tensor, list[Tensor]]:
        """From the input of the stack to its output, (B, S, C) -> the same, and the states after each pass, if kept."""
        mask = None if padding is None else padding_bias(padding, like=x)
        arguments = self.positions.arguments(self.loop, x, mask, passes=self.passes)
        if self.level_table is not None:
            depth = len(self.loop.indices(self.passes))
            arguments["levels"] = self.level_table.levels(depth, x.size(1), padding, 0, x)
        states: list[Tensor] | None = [] if keep_states else None
        x = self.loop(x, self.passes, states=states, **arguments)
        return x if self.layer_norm is None else self.layer_norm(x), states or []

    def embed(self, source: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The input of the stack, (B, S, C), and its padding (B, S), None without any, so that no pass needs a mask."""
        if self.embed_tokens is None:
            return self.inputs(source, lengths)
        padding = source.eq(self.embed_tokens.padding_idx)
        padding = padding if padding.any() else None
        return self.inputs(self.embed_tokens(source), padding), padding

    def reorder_encoder_out(self, encoder_out, new_order: Tensor):
        """Reorders the batch: entry i becomes entry new_order[i], (new B,)."""
        batch_dim = {"encoder_out": 1, "encoder_states": 1}
        return {
            name: [tensor.index_select(batch_dim.get(name, 0), new_order) for tensor in tensors]
            for name, tensors in encoder_out.items()
        }

    def max_positions(self) -> int:
        return self._max_positions
