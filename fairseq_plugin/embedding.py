"""The input layer, from tokens to vectors, and the output layer, from vectors to logits."""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugin.options import flag
from recurrence.parts import Dropout
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
        raise ValueError(f"{flag(name)}={number}: must be >= 1")
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
    reason = ""
    try:
        vectors = utils.parse_embedding(path)
    except OSError as error:
        raise ValueError(f"{path}: embedding cannot be read: {error.strerror}") from error
    except (StopIteration, ValueError) as error:
        vectors, reason = {}, f" ({error})" if str(error) else ""
    width = embedding.embedding_dim
    if {len(vector) for vector in vectors.values()} != {width}:
        rule = "must be an embedding: a header line, then one 'symbol numbers' per line"
        raise ValueError(f"{path}: {rule}, with the {width} numbers of the model's width{reason}")
    utils.load_embedding(vectors, dictionary, embedding)


class TokenInput(nn.Module):
    """From embedded tokens to the input of a stack: scale, positions, optional LayerNorm, dropout.

    Args:
        width: C.
        scale: factor on the embedding.
        table: sinusoidal positions; None for none.
        learned: number of learned positions; 0 for none.
        std: initial standard deviation of the learned positions.
        dropout: rate on the output.
        layernorm: whether a LayerNorm follows.
    """

    def __init__(
        self,
        width: int,
        scale: float,
        table: Table | None,
        learned: int,
        std: float,
        dropout: float,
        layernorm: bool = False,
    ):
        super().__init__()
        self.scale, self.table, self.dropout = scale, table, Dropout(dropout)
        self.embed_positions = nn.Embedding(learned, width) if learned else None
        self.layernorm = nn.LayerNorm(width) if layernorm else None
        if learned:
            nn.init.normal_(self.embed_positions.weight, std=std)

    def forward(self, x: Tensor, padding: Tensor | None, start: int = 0) -> Tensor:
        """The input of the stack, (B, T, C).

        Args:
            x: (B, T, C), embedded tokens that follow `start` others.
            padding: (B, start + T) bool over all tokens, or None for no padding.
            start: number of tokens before those of x.

        Raises:
            ValueError: if there are more tokens than learned positions.
        """
        length, x = start + x.size(1), x * self.scale
        if self.table is not None:
            x = x + self.table(length, padding, start, like=x)
        if self.embed_positions is not None:
            most = self.embed_positions.num_embeddings
            if length > most:
                raise ValueError(f"{length} tokens: must be <= the {most} learned positions")
            index = torch.arange(length, device=x.device) if padding is None else positions(padding)
            x = x + self.embed_positions(index[..., start:])
        if self.layernorm is not None:
            x = self.layernorm(x)
        return self.dropout(x)


class BorrowingLinear(nn.Module):
    """A linear layer whose weight is read from the layer that stores it, so that it has one key.

    Args:
        owner: the layer; of an embedding, (vocabulary, C), this is the output layer.
        bias: (out,); None for none.
    """

    def __init__(self, owner: nn.Module, bias: nn.Parameter | None = None):
        super().__init__()
        borrow(self, "owner", owner)
        self.bias = bias

    @property
    def weight(self) -> Tensor:
        """The owner's, which is not in the state dict under this name; fairseq's tasks ask for that of the output."""
        return self.owner.weight

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return F.linear(x, self.weight, self.bias)


def output_layer(width: int, vocabulary: int, bias: bool, tied: nn.Embedding | None, std: float | None) -> nn.Module:
    """Features to logits, with a matrix of its own or that of an embedding.

    Args:
        width: C.
        vocabulary: number of symbols.
        bias: whether a bias is added.
        tied: the embedding whose matrix is used; None for a separate matrix.
        std: initial standard deviation of a separate matrix; None for the default of PyTorch's Linear.
    """
    layer = nn.Linear(width, vocabulary, bias=bias)
    if tied is not None:
        return BorrowingLinear(tied, layer.bias)
    if std is not None:
        nn.init.normal_(layer.weight, std=std)
    return layer
