"""From tokens to the first input of a stack, and from its output to the vocabulary."""

import torch
from torch import Tensor, nn

from recurrence.dropout import dropout
from recurrence.linear import linear, pack_weight
from recurrence.position import Table, positions


def borrow(module: nn.Module, name: str, owned_elsewhere: nn.Module) -> None:
    """Makes a module reachable under a name without registering it, so that its tensors keep a single key."""
    module.__dict__[name] = owned_elsewhere


def padding_mask(tokens: Tensor, pad: int) -> Tensor | None:
    """(B, T) bool, or None where nothing is padding, so that no pass has to mask."""
    padding = tokens.eq(pad)
    return padding if padding.any() else None


def visible_padding(tokens: Tensor, pad: int, training: bool) -> Tensor | None:
    """As :func:`padding_mask`, for a causal stack; in training also None where all padding stands behind the tokens.

    No token sees what stands behind it, and no loss counts what padding gives, so that causality is mask enough.
    """
    padding = tokens.eq(pad)
    matters = padding[:, :-1] & ~padding[:, 1:] if training else padding
    return padding if matters.any() else None


class TokenInput(nn.Module):
    """Embedding, position, LayerNorm where asked for, and dropout.

    Args:
        embed_tokens: the embedding; it is not registered here, its owner is the encoder or decoder.
        scale: factor on the embedding.
        table: sinusoidal positions; None for none.
        learned: number of learned positions that take the table's place; 0 for none.
        std: standard deviation of the learned positions at initialisation.
        layernorm: whether a LayerNorm follows.
        dropout: rate on the result.
    """

    def __init__(
        self,
        embed_tokens: nn.Embedding,
        scale: float,
        table: Table | None,
        learned: int = 0,
        std: float = 1.0,
        layernorm: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        borrow(self, "embed_tokens", embed_tokens)
        width = embed_tokens.embedding_dim
        self.scale, self.dropout = scale, dropout
        self.table = None if learned else table
        self.embed_positions = nn.Embedding(learned, width) if learned else None
        self.layernorm = nn.LayerNorm(width) if layernorm else None
        if learned:
            nn.init.normal_(self.embed_positions.weight, std=std)

    def forward(self, tokens: Tensor, padding: Tensor | None, start: int = 0) -> tuple[Tensor, Tensor]:
        """Embeds the tokens from `start` on.

        Args:
            tokens: (B, T).
            padding: (B, T) bool, or None where nothing is padding.
            start: how many leading tokens to leave out.

        Returns:
            The input of the stack (B, T - start, C), and the embedding alone, scaled.

        Raises:
            ValueError: if T is more than the learned positions.
        """
        embedded = x = self.embed_tokens(tokens[:, start:]) * self.scale
        if self.table is not None:
            x = x + self.table(tokens.size(1), padding, start, like=x)
        if self.embed_positions is not None:
            x = x + self._learned(tokens, padding)[..., start:, :]
        if self.layernorm is not None:
            x = self.layernorm(x)
        return dropout(x, self.dropout, self.training), embedded

    def read(self, tokens: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None, Tensor]:
        """What an encoder makes of its source.

        Args:
            tokens: (B, S), padded on either side.
            lengths: (B,), unused: the padding shows in the tokens.

        Returns:
            The input of the stack (B, S, C), its padding (B, S) or None where there is none, and the embedding alone.
        """
        padding = padding_mask(tokens, self.embed_tokens.padding_idx)
        x, embedded = self(tokens, padding)
        return x, padding, embedded

    def _learned(self, tokens: Tensor, padding: Tensor | None) -> Tensor:
        length, most = tokens.size(1), self.embed_positions.num_embeddings
        if length > most:
            raise ValueError(f"{length} tokens: must be <= the {most} learned positions")
        index = torch.arange(length, device=tokens.device) if padding is None else positions(padding)
        return self.embed_positions(index)


class Output(nn.Module):
    """Features to logits, by a matrix of its own or by the embedding's.

    Args:
        width: C.
        vocabulary: number of symbols.
        bias: whether a bias is added.
        tied: the embedding that provides the matrix, None for a matrix of its own; it is not registered here.
        std: standard deviation of an own matrix at initialisation; None for PyTorch's Linear.
    """

    def __init__(
        self, width: int, vocabulary: int, bias: bool, tied: nn.Embedding | None = None, std: float | None = None
    ):
        super().__init__()
        layer = nn.Linear(width, vocabulary, bias=bias)
        borrow(self, "tied", tied)
        self.weight = layer.weight if tied is None else None
        self.bias = layer.bias
        if tied is None and std is not None:
            nn.init.normal_(self.weight, std=std)

    def forward(self, features: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, vocabulary)."""
        return linear(features, self.matrix, self.bias)

    @property
    def matrix(self) -> Tensor:
        """(vocabulary, C)."""
        return self.weight if self.tied is None else self.tied.weight

    def make_generation_fast_(self, **unused) -> None:
        """fairseq's hook before generation, behind which the weights stay as they are."""
        pack_weight(self.matrix)
