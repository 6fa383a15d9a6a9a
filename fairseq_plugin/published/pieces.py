"""Which rows of which published tensor are which rows of ours; read backwards, the inverse."""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

# Tables that are functions of their sizes, version marks, and a matrix that the code of Intra-Layer Recurrence makes
# for block recurrence and never uses.
FIXED = re.compile(
    r"(encoder|decoder)\.(pos_layer\.pe|lev_layer\.enc_le|version|embed_positions\._float_tensor)|model\.adapter\.weight"
)

StateDict = dict[str, Tensor]
Rows = tuple[int, int, int]  # from, to, of how many equal parts along the first dimension
WHOLE = (0, 1, 1)


@dataclass(frozen=True)
class Piece:
    """Rows of a published tensor and the rows of ours that they are.

    Args:
        theirs, ours: keys.
        their_rows, our_rows: which part of the first dimension.
        level: index into a published tensor that stacks all levels; None for one that does not.
    """

    theirs: str
    ours: str
    their_rows: Rows = WHOLE
    our_rows: Rows = WHOLE
    level: int | None = None

    def read(self, theirs: StateDict) -> Tensor:
        tensor = theirs[self.theirs] if self.level is None else theirs[self.theirs][self.level]
        return part(tensor, self.their_rows)


def convert(theirs: StateDict, pieces: list[Piece], shapes: StateDict) -> StateDict:
    """Fills tensors of our shapes from published ones.

    Raises:
        ValueError: if a key on either side is not covered, or two sources of one shared piece differ.
    """
    _cover("published", theirs, {piece.theirs for piece in pieces})
    _cover("own", shapes, {piece.ours for piece in pieces})
    dtype = theirs[pieces[0].theirs].dtype
    own = {key: tensor.new_empty(tensor.shape, dtype=dtype) for key, tensor in shapes.items()}
    filled = set()
    for piece in pieces:
        target, source = part(own[piece.ours], piece.our_rows), piece.read(theirs)
        if (piece.ours, piece.our_rows) in filled and not target.equal(source.view_as(target)):
            raise ValueError(f"{piece.theirs}: differs from the tensor that it shares, {piece.ours}")
        target.copy_(source)
        filled.add((piece.ours, piece.our_rows))
    return own


def _cover(whose: str, tensors: StateDict, named: set[str]) -> None:
    unmapped = sorted(key for key in tensors if key not in named and not FIXED.fullmatch(key))
    missing = sorted(named - set(tensors))
    if unmapped:
        raise ValueError(f"{unmapped[0]}: {whose} key that nothing is mapped to ({len(unmapped)} in all)")
    if missing:
        raise ValueError(f"{missing[0]}: {whose} key is missing ({len(missing)} in all)")


def part(tensor: Tensor, rows: Rows) -> Tensor:
    """Those rows of a tensor, a view."""
    start, end, parts = rows
    step = tensor.size(0) // parts
    return tensor[start * step : end * step]


def join(parts: dict) -> Tensor:
    """The tensor whose parts these are, by level and rows."""
    in_order = [part for _, part in sorted(parts.items(), key=lambda item: (item[0][0] or 0, item[0][1]))]
    if len(in_order) == 1 and next(iter(parts))[0] is None:
        return in_order[0]
    return torch.stack(in_order) if next(iter(parts))[0] is not None else torch.cat(in_order)
