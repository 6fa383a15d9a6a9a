"""The loop over depth: a few stored blocks, an order in which they run, and what each pass owns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from recurrence.depth import passes_at
from recurrence.loading import fit
from recurrence.order import Order, check_order
from recurrence.private_torch import allow_graphs, uncompiled

GRAPHS = 64  # limit for all compiled blocks together; each has a graph with padding and one without


class Loop(nn.Module):
    """Runs stored blocks in an order: (0, 0, 1, 1) runs block 0 twice, then block 1 twice.

    Each block is registered once, however often it runs, so that state dicts and checkpoints hold each tensor once.
    What a pass owns is indexed by the pass. `after[index]` is the identity on the state after that pass: a module, for
    hooks and feature extraction.

    Args:
        blocks: called as `block(x, own=..., **arguments)`, without `own` if passes own nothing.
        order: one block index per pass.
        own: one module per pass with the parameters of that pass; None if passes own nothing. Cross-attention, Admin,
            unsharing and the image models need a :class:`recurrence.block.Pass` for each pass.
        inject: blocks whose later passes also get the input of the block's first pass.
        join: called as `join(x, first)` with the state and that input, both (B, T, C); returns the input of the pass.

    Attributes:
        checkpointing: whether training recomputes each pass in the backward pass.
        compiled: whether training runs compiled blocks, see :meth:`compile_blocks`.
        noted: buffer with the order, see :meth:`note_order`; None if other tensors show it.
        whole: the order before :meth:`truncate`; None without.
        moved: whether passes have loaded what other passes of a checkpoint own.

    Raises:
        ValueError: if the order is empty, names a missing block or leaves one out, or `own` is not one entry per pass.
    """

    checkpointing = compiled = False
    noted: Tensor | None
    whole: Order | None = None
    moved = False

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        order: Order,
        own: Sequence[nn.Module] | None = None,
        inject: Collection[int] = (),
        join: Callable[[Tensor, Tensor], Tensor] = torch.add,
    ):
        super().__init__()
        check_order(order, len(blocks))
        if own is not None and len(own) != len(order):
            raise ValueError(f"own has {len(own)} entries: needs one for each of the {len(order)} passes")
        self.blocks = nn.ModuleList(blocks)
        self.order = tuple(order)
        self.own = None if own is None else nn.ModuleList(own)
        self.after = nn.ModuleList(nn.Identity() for _ in order)
        self.inject, self.join = frozenset(inject), join
        self.register_buffer("noted", None)
        self.register_state_dict_post_hook(_store_order)

    @property
    def passes(self) -> int:
        """P, the length of the order."""
        return len(self.order)

    def indices(self, passes: int | Sequence[int] | None = None) -> Sequence[int]:
        """The indices of the passes that a call runs.

        Args:
            passes: their number, which may be another depth than that of the whole loop (:mod:`recurrence.depth`), or
                the indices themselves; None for all.

        Raises:
            ValueError: if the order does not run at that depth, or needs passes for it that :meth:`truncate` removed.
        """
        if passes is None:
            return range(len(self.order))
        if not isinstance(passes, int):
            return passes
        order = self.whole or self.order
        indices = passes_at(order, passes)
        if indices is None:
            raise ValueError(f"depth={passes}: the order {' '.join(map(str, order))} cannot run at this depth")
        if max(indices) >= len(self.order):
            raise ValueError(
                f"depth={passes}: needs passes that were pruned; build the model at this depth, then prune it"
            )
        return indices

    def forward(
        self,
        x: Tensor,
        passes: int | Sequence[int] | None = None,
        levels: Sequence[Tensor] | None = None,
        per_pass: Mapping[str, Sequence[Any]] | None = None,
        states: list[Tensor] | None = None,
        **shared: Any,
    ) -> Tensor:
        """Runs the passes.

        Args:
            x: (B, T, C).
            passes: which of them, see :meth:`indices`; None for all.
            levels: one tensor per pass that runs, broadcastable to x, added to x before the pass.
            per_pass: arguments of the blocks with one value per pass that runs, such as projected memory.
            states: the state after each pass is appended to this list; None to keep none, so that without gradients
                only one is in memory.
            **shared: arguments of the blocks that every pass gets.

        Returns:
            The output (B, T, C), which is the last state.

        Raises:
            ValueError: see :meth:`indices`.
        """
        first_inputs: dict[int, Tensor] = {}
        recompute = self.checkpointing and self.training and torch.is_grad_enabled()
        for step, index in enumerate(self.indices(passes)):
            which = self.order[index]
            if levels is not None:
                x = x + levels[step]
            if which in first_inputs:
                x = self.join(x, first_inputs[which])
            elif which in self.inject:
                first_inputs[which] = x
            block: Any = self.blocks[which]
            if self.compiled and not self.training:
                block = uncompiled(block)
            arguments = dict(shared)
            if self.own is not None:
                arguments["own"] = self.own[index]
            if per_pass is not None:
                arguments.update({name: values[step] for name, values in per_pass.items()})
            # Not reentrant: that form fails under DistributedDataParallel if a block runs twice.
            x = checkpoint(block, x, use_reentrant=False, **arguments) if recompute else block(x, **arguments)
            x = self.after[index](x)
            if states is not None:
                states.append(x)
        return x

    def compile_blocks(self, **options: Any) -> None:
        """Compiles each stored block for training, once for all its passes and for all shapes.

        Passes that own tensors of the same shapes run the same graph. In SReT, runs of a block with other slices, or
        without a projection, have graphs of their own. Outside training, blocks are not compiled: decoding would
        recompile as the cache grows. Options: see :func:`torch.compile`.
        """
        allow_graphs(GRAPHS)
        self.compiled = True
        for block in self.blocks:
            block.compile(**{"dynamic": True, **options})

    def truncate(self, passes: int) -> None:
        """Keeps the first passes, and the blocks that they run."""
        self.whole, order = self.whole or self.order, self.order[:passes]
        kept = sorted(set(order))
        self.blocks = nn.ModuleList(self.blocks[which] for which in kept)
        self.order = tuple(kept.index(which) for which in order)
        self.after = self.after[:passes]
        self.inject = frozenset(kept.index(which) for which in self.inject.intersection(kept))
        if self.own is not None:
            self.own = self.own[:passes]
        if self.noted is not None:
            self.note_order()

    def note_order(self) -> None:
        """Stores the order as a buffer, for checkpoints whose other tensors do not show it."""
        self.noted = torch.tensor(self.order, device=None if self.noted is None else self.noted.device)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, local_metadata: dict, *rest: Any) -> None:
        """Also loads at another depth, see :func:`recurrence.loading.fit`."""
        shows_passes = self.own is not None and bool(self.own[-1].state_dict())
        self.moved = fit(self.order, self.whole, shows_passes, state_dict, prefix, local_metadata, errors=rest[-1])
        if self.noted is not None:  # the buffer itself may still be uninitialised
            state_dict[f"{prefix}noted"] = torch.tensor(self.order, device="cpu")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def _store_order(loop: Loop, state_dict: dict, prefix: str, local_metadata: dict) -> None:
    """State dict hook: stores the order in the metadata, and a copy of the noted one.

    Averages of weights, such as timm's ModelEmaV2, write into the state dict of their copy and would round the order.
    """
    local_metadata["order"] = loop.order
    if loop.noted is not None:
        state_dict[f"{prefix}noted"] = loop.noted.clone()


def named_loops(model: nn.Module) -> dict[str, Loop]:
    """The loops of a model by their names in it, in the order of registration."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Loop)}
