"""The input layer, from tokens to vectors, and the output layer, from vectors to logits."""

from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from torch import Tensor, nn

from recurrence.dropout import dropout
from recurrence.linear import linear, pack_weight
from recurrence.position import Table, positions


def borrow(module: nn.Module, name: str, owned_elsewhere: nn.Module | nn.Parameter | None) -> None:
    """Sets an attribute without registering its value, so that each tensor keeps a single key."""
    module.__dict__[name] = owned_elsewhere


def new_embedding(dictionary: Dictionary, width: int, std: float) -> nn.Embedding:
    """A normally distributed embedding; that of the padding is 0."""
    # Published vocabularies of language models have no padding: its index is after the last symbol.
    padding = dictionary.pad() if dictionary.pad() < len(dictionary) else None
    embedding = nn.Embedding(len(dictionary), width, padding_idx=padding)
    nn.init.normal_(embedding.weight, std=std)
    if padding is not None:
        nn.init.zeros_(embedding.weight[padding])
    return embedding


def store_positions(args: Any, name: str, number: int) -> int:
    """Stores the number of learned positions in the model's options and returns it.

    Commands that read the checkpoint have other limits on the length.

    Raises:
        ValueError: if it is below 1.
    """
    if number < 1:
        raise ValueError(f"--{name.replace('_', '-')}={number}: must be >= 1")
    setattr(args, name, number)
    return number


def dropout_rate(args: Any) -> float:
    """The rate on embeddings: `--embedding-dropout`, or else `--dropout`."""
    return args.dropout if args.embedding_dropout is None else args.embedding_dropout


def load_pretrained(path: str, dictionary: Dictionary, embedding: nn.Embedding) -> None:
    """Sets the vectors of the symbols that a file has; the others keep theirs.

    Raises:
        ValueError: naming the file, if it cannot be read, is not an embedding, or is of another width.
    """
    try:
        vectors = utils.parse_embedding(path)
    except OSError as error:
        raise ValueError(f"{path}: embedding cannot be read: {error.strerror}") from error
    except (StopIteration, ValueError):
        vectors = {}
    width = embedding.embedding_dim
    if {len(vector) for vector in vectors.values()} != {width}:
        rule = "must be an embedding: a header line, then one 'symbol numbers' per line"
        raise ValueError(f"{path}: {rule}, {width} numbers as the model is wide")
    utils.load_embedding(vectors, dictionary, embedding)


class TokenInput(nn.Module):
    """Embedding, positions, optional LayerNorm, and dropout.

    Args:
        embed_tokens: the embedding, registered by the encoder or decoder and not here.
        scale: factor on the embedding.
        table: sinusoidal positions; None for none.
        learned: number of learned positions; 0 for none.
        std: initial standard deviation of the learned positions.
        dropout: rate on the output.
        layernorm: whether a LayerNorm follows.
    """

    def __init__(
        self,
        embed_tokens: nn.Embedding,
        scale: float,
        table: Table | None,
        learned: int,
        std: float,
        dropout: float,
        layernorm: bool = False,
    ):
        super().__init__()
        borrow(self, "embed_tokens", embed_tokens)
        width = embed_tokens.embedding_dim
        self.scale, self.dropout = scale, dropout
        self.table = table
        self.embed_positions = nn.Embedding(learned, width) if learned else None
        self.layernorm = nn.LayerNorm(width) if layernorm else None
        if learned:
            nn.init.normal_(self.embed_positions.weight, std=std)

    def forward(self, tokens: Tensor, padding: Tensor | None, start: int = 0) -> Tensor:
        """Embeds the tokens from `start` on.

        Args:
            tokens: (B, T).
            padding: (B, T) bool, or None for no padding.
            start: number of leading tokens to skip.

        Returns:
            The input of the stack (B, T - start, C).

        Raises:
            ValueError: if T is more than the learned positions.
        """
        x = self.embed_tokens(tokens[:, start:]) * self.scale
        if self.table is not None:
            x = x + self.table(tokens.size(1), padding, start, like=x)
        if self.embed_positions is not None:
            length, most = tokens.size(1), self.embed_positions.num_embeddings
            if length > most:
                raise ValueError(f"{length} tokens: must be <= the {most} learned positions")
            index = torch.arange(length, device=tokens.device) if padding is None else positions(padding)
            x = x + self.embed_positions(index[..., start:])
        if self.layernorm is not None:
            x = self.layernorm(x)
        return dropout(x, self.dropout, self.training)

    def read(self, tokens: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Embeds an encoder's source (B, S), padded on either side: (B, S, C), and its padding (B, S) or None."""
        padding = tokens.eq(self.embed_tokens.padding_idx)
        padding = padding if padding.any() else None  # so that no pass needs a mask
        return self(tokens, padding), padding


class Output(nn.Module):
    """Features to logits, with its own matrix or that of the embedding.

    Args:
        width: C.
        vocabulary: number of symbols.
        bias: whether a bias is added.
        tied: the embedding whose matrix is used (not registered here); None for a separate matrix.
        std: initial standard deviation of a separate matrix; None for the default of PyTorch's Linear.
    """

    def __init__(self, width: int, vocabulary: int, bias: bool, tied: nn.Embedding | None, std: float | None):
        super().__init__()
        layer = nn.Linear(width, vocabulary, bias=bias)
        borrow(self, "tied", tied)
        if tied is None:
            self.weight = layer.weight if std is None else nn.init.normal_(layer.weight, std=std)
        self.bias = layer.bias

    def forward(self, features: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, vocabulary)."""
        return linear(features, self.weight, self.bias)

    def __getattr__(self, name: str) -> Any:
        """The matrix of the embedding is also `weight`, as fairseq's tasks expect, but not in the state dict."""
        return super().__getattr__(name) if name != "weight" or self.tied is None else self.tied.weight

    def make_generation_fast_(self, **unused) -> None:
        """fairseq calls this before generation; weights no longer change afterwards."""
        pack_weight(self.weight)
