"""Converts state dicts between key names ("theirs" and "ours") by tables of pieces; one table serves both directions.

A piece maps rows of one of their tensors to rows of one of ours. A key on either side that no piece names is an error.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

StateDict = dict[str, Tensor]
# (first, end, parts): of `parts` equal parts of the first dimension, those from first to end - 1; (1, 2, 3) is K of
# stacked Q, K, V.
Rows = tuple[int, int, int]
WHOLE = (0, 1, 1)


@dataclass(frozen=True)
class Piece:
    """Rows of one of their tensors, and the rows of ours that they become."""

    theirs: str
    ours: str
    their_rows: Rows = WHOLE  # which part of the first dimension
    our_rows: Rows = WHOLE
    level: int | None = None  # index into a tensor of theirs that stacks all levels; None for other tensors


def affine(theirs: str, ours: str) -> Iterator[Piece]:
    """The weight and the bias of a layer that is whole on both sides."""
    for kind in ("weight", "bias"):
        yield Piece(f"{theirs}.{kind}", f"{ours}.{kind}")


def stacked(theirs: Sequence[str], ours: str, level: int | None = None) -> Iterator[Piece]:
    """Tensors of theirs that ours stacks along the first dimension, in this order."""
    for row, name in enumerate(theirs):
        yield Piece(name, ours, our_rows=(row, row + 1, len(theirs)), level=level)


def to_ours(theirs: StateDict, pieces: Iterable[Piece], shapes: StateDict, fixed: Callable[[str], object]) -> StateDict:
    """Fills tensors of our shapes from theirs.

    Args:
        theirs: their state dict.
        pieces: the table.
        shapes: our tensors; only their shapes and kinds of dtype are used.
        fixed: whether a key of either side is a table computed from its sizes, which needs no piece.

    Returns:
        Our state dict in the dtype of their weights, without our fixed tables.

    Raises:
        ValueError: if a key on either side is not covered, a tensor has another size, or two sources of one shared
            piece differ.
    """
    pieces = list(pieces)
    _cover("published", theirs, {piece.theirs for piece in pieces}, fixed)
    _cover("own", shapes, {piece.ours for piece in pieces}, fixed)
    dtype = next(tensor.dtype for tensor in theirs.values() if tensor.is_floating_point())
    own = {
        key: shapes[key].new_empty(shapes[key].shape, dtype=dtype if shapes[key].is_floating_point() else None)
        for key in dict.fromkeys(piece.ours for piece in pieces)
    }
    filled = set()
    for piece in pieces:
        source = theirs[piece.theirs] if piece.level is None else theirs[piece.theirs][piece.level]
        source, target = _part(source, piece.their_rows), _part(own[piece.ours], piece.our_rows)
        if source.numel() != target.numel():
            sizes = f"{tuple(source.shape)}: must be {tuple(target.shape)}"
            raise ValueError(f"{piece.theirs}: has shape {sizes}, as {piece.ours}")
        if (piece.ours, piece.our_rows) in filled and not target.equal(source.view_as(target)):
            raise ValueError(f"{piece.theirs}: differs from the tensor that it shares, {piece.ours}")
        target.copy_(source.view_as(target))
        filled.add((piece.ours, piece.our_rows))
    return own


def to_theirs(own: StateDict, pieces: Iterable[Piece]) -> StateDict:
    """The inverse of :func:`to_ours`: our weights under their keys, without fixed tables."""
    stacks: dict[str, dict] = {}
    for piece in pieces:
        part = _part(own[piece.ours], piece.our_rows)
        if part.dim() == 3 and (piece.level is not None or piece.their_rows != WHOLE):
            part = part.squeeze(0)  # one matrix of a stack of ours
        stacks.setdefault(piece.theirs, {})[piece.level, piece.their_rows] = part
    return {key: _join(parts) for key, parts in stacks.items()}


def exported(system: str, own: StateDict, pieces: Sequence[Piece], fixed: Callable[[str], object]) -> StateDict:
    """All parameters under their published keys.

    Args:
        system: the published code.
        own: a model's weights.
        pieces: their published names.
        fixed: whether a key is that of a fixed table, which is left out.

    Raises:
        ValueError: the published code has no such parameter, or needs another one.
    """
    named = {piece.ours for piece in pieces}
    if others := [key for key in own if key not in named and not fixed(key)]:
        raise ValueError(f"{others[0]}: the published code of {system} has no such parameter ({len(others)} in all)")
    if missing := sorted(named - own.keys()):
        raise ValueError(f"{missing[0]}: the published code of {system} needs it ({len(missing)} in all)")
    return to_theirs(own, pieces)


def rename(theirs: StateDict, pieces: Iterable[Piece]) -> StateDict:
    """Their tensors under our keys, whatever their shapes; keys that no piece names stay.

    Raises:
        ValueError: if two sources of one shared tensor differ.
    """
    ours = dict(theirs)
    for piece in pieces:
        if piece.theirs not in theirs:
            continue
        tensor = ours.pop(piece.theirs)
        if piece.ours in ours and not tensor.equal(ours[piece.ours]):
            raise ValueError(f"{piece.theirs}: differs from the tensor that it shares, {piece.ours}")
        ours[piece.ours] = tensor
    return ours


def _cover(whose: str, tensors: StateDict, named: set[str], fixed: Callable[[str], object]) -> None:
    unmapped = sorted(key for key in tensors if key not in named and not fixed(key))
    missing = sorted(named - set(tensors))
    if unmapped:
        raise ValueError(f"{unmapped[0]}: {whose} key that nothing is mapped to ({len(unmapped)} in all)")
    if missing:
        raise ValueError(f"{missing[0]}: {whose} key is missing ({len(missing)} in all)")


def _part(tensor: Tensor, rows: Rows) -> Tensor:
    if rows == WHOLE:
        return tensor
    start, end, parts = rows
    step = tensor.size(0) // parts
    return tensor[start * step : end * step]


def _join(parts: dict) -> Tensor:
    """One of their tensors from its parts, by level and rows; all levels are None if they are not stacked."""
    in_order = [parts[key] for key in sorted(parts)]
    if any(level is not None for level, _ in parts):
        return torch.stack(in_order)
    return in_order[0] if len(in_order) == 1 else torch.cat(in_order)
