"""The loop over depth: a few stored blocks, an order in which they run, and what each pass owns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from recurrence.depth import passes_at
from recurrence.loading import fit, store_order
from recurrence.order import Order, check_order, first_runs
from recurrence.private_torch import allow_graphs, uncompiled

GRAPHS = 64  # limit for all compiled blocks together; each has a graph with padding and one without


@dataclass
class TrainingDepth:
    """The depth of a loop in training."""

    passes: int  # of the loop
    draw: Any = None  # a recurrence.elastic.Draw: update number -> how many passes it runs; None for all
    warmup: int = 0  # updates during which the smallest depth falls linearly from all passes
    mixed: bool = False  # each update trains at two depths, see recurrence.elastic.branches
    loop_after: int = 0  # updates in which each block runs once, before its loops begin
    updates: int | None = field(default=None, init=False)  # how many updates there were

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of passes that may be drawn, ascending; all passes if none is drawn."""
        return (self.passes,) if self.draw is None else self.draw.depths

    @property
    def drawn(self) -> int:
        """How many passes this update runs, once the loops have begun; RuntimeError if that needs `updates`."""
        if self.loop_after:
            self._known_updates()
        return self.passes if self.draw is None else self.draw(self._known_updates(), self.smallest)

    @property
    def smallest(self) -> int:
        """The smallest depth that this update may draw or supervise: all passes at first, fewer during the warm-up."""
        smallest = 1 if self.draw is None else self.draw.depths[0]
        if not self.warmup:
            return smallest
        return self.passes - int((self.passes - smallest) * min(1.0, self._known_updates() / self.warmup))

    def _known_updates(self) -> int:
        if self.updates is None:
            raise RuntimeError("the depth changes in training: call model.set_num_updates(update) before each update")
        return self.updates


class Loop(nn.Module):
    """Runs stored blocks in an order.

    Each block is registered once, however often it runs, so that state dicts and checkpoints hold each tensor once.
    What a pass owns is indexed by the pass. `after[index]` is the identity on the state after that pass: a module, for
    hooks and feature extraction.

    Training may draw which passes run, see :class:`TrainingDepth`.

    Args:
        blocks: called as `block(x, own=..., context=..., slot=..., distance_keys=..., **shared)` without what is None.
        order: one block index per pass.
        own: one module per pass with the parameters of that pass; None if passes own nothing.
        inject: blocks whose later passes also get the input of the block's first pass.
        join: called as `join(x, first)` with the state and that input, both (B, T, C); returns the input of the pass.

    Attributes:
        chosen: the passes to run instead of all; None for all.
        whole: the order before :meth:`truncate`; None without.
        noted: buffer with the order, see :meth:`note_order`; None if other tensors show it.
        looping: buffer, 0 until late loops begin, then 1; None if they begin at once.
        learned_levels: whether `levels` are learned; a pass that runs again then has its own again.
        moved: whether passes have loaded what other passes of a checkpoint own.

    Raises:
        ValueError: if the order is empty, names a missing block or leaves one out, or `own` is not one entry per pass.
    """

    chosen: tuple[int, ...] | None = None
    whole: Order | None = None
    noted: Tensor | None
    looping: Tensor | None
    learned_levels = False
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
        # Recompute each pass in the backward pass. Non-reentrant, because the reentrant form fails under
        # DistributedDataParallel if a block runs twice.
        self.checkpointing = False
        self.inject, self.join = frozenset(inject), join
        self.training_depth = TrainingDepth(self.passes)
        for name in ("noted", "looping"):
            self.register_buffer(name, None)
        self.register_state_dict_post_hook(store_order)

    @property
    def passes(self) -> int:
        """P, the length of the order."""
        return len(self.order)

    def forward(
        self,
        x: Tensor,
        levels: Sequence[Tensor] | None = None,
        contexts: Sequence[Any] | None = None,
        slots: Sequence[Any] | None = None,
        distance_keys: Sequence[Any] | None = None,
        indices: Sequence[int] | None = None,
        first_inputs: dict[int, Tensor] | None = None,
        states: list[Tensor] | None = None,
        **shared: Any,
    ) -> Tensor:
        """Runs the passes.

        Args:
            x: (B, T, C).
            levels: one tensor per pass, broadcastable to x, added to x before the pass.
            contexts: one value per pass, such as projected memory.
            slots: one cache slot per pass.
            distance_keys: those of relative positions, one value per pass, see :mod:`recurrence.relative`.
            indices: those of the passes to run, in order; None runs :attr:`running`.
            first_inputs: inputs of the first pass of the blocks in `inject`, if an earlier call ran that pass; updated
                in place by first passes of this call.
            states: the state after each pass is appended to this list; None to keep none, so that without gradients
                only one is in memory.
            **shared: passed to every pass.

        Returns:
            The output (B, T, C), which is the last state.

        Raises:
            RuntimeError: see :attr:`running`.
            ValueError: if a pass runs twice, which has one slot, and one of `levels` that are not learned.
        """
        indices = self.running if indices is None else indices
        static = levels is not None and not self.learned_levels
        if len(set(indices)) < len(indices) and (static or slots is not None):
            rule = "as each has one static level signal, and one slot while decoding"
            raise ValueError(f"{len(indices)} passes: must be <= {self.passes}, {rule}")
        first_inputs = {} if first_inputs is None else first_inputs
        per_pass = dict(own=self.own, context=contexts, slot=slots, distance_keys=distance_keys)
        per_pass = {name: values for name, values in per_pass.items() if values is not None}

        for index in indices:
            which = self.order[index]
            if levels is not None:
                x = x + levels[index]
            if which in first_inputs:
                x = self.join(x, first_inputs[which])
            elif which in self.inject:
                first_inputs[which] = x
            block: Any = self.blocks[which] if self.training else uncompiled(self.blocks[which])
            arguments = {**{name: values[index] for name, values in per_pass.items()}, **shared}
            if self.checkpointing and self.training and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False, **arguments)
            else:
                x = block(x, **arguments)
            x = self.after[index](x)
            if states is not None:
                states.append(x)
        return x

    @property
    def tested(self) -> tuple[int, ...]:
        """Indices of the passes that a call runs outside training: all, unless `chosen` is set."""
        return tuple(range(self.passes)) if self.chosen is None else self.chosen

    @property
    def running(self) -> tuple[int, ...]:
        """Indices of the passes that a call runs, in order: all, unless `chosen` is set or the update draws others.

        Raises:
            RuntimeError: in training, if the depth changes and :meth:`set_num_updates` was not called.
        """
        if self.chosen is not None or not self.training:
            return self.tested
        depth = self.training_depth.drawn
        return tuple(range(depth)) if depth == self.passes else passes_at(self.order, depth)

    def set_num_updates(self, num_updates: int) -> None:
        """Call this before each update, with the number of updates so far; fairseq's trainer does."""
        self.training_depth.updates = num_updates
        late = num_updates < self.training_depth.loop_after
        self.chosen = first_runs(self.order) if late else None
        if self.looping is not None:
            self.looping.fill_(not late)

    def compile_blocks(self, **options: Any) -> None:
        """Compiles each stored block for training, once for all its passes and for all shapes.

        All passes own tensors of the same shapes, so a block runs the same graph in each of them. Outside training,
        blocks are not compiled: decoding would recompile as the cache grows. Options: see :func:`torch.compile`.
        """
        allow_graphs(GRAPHS)
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
        self.chosen, self.training_depth, self.looping = None, TrainingDepth(passes), None
        if self.own is not None:
            self.own = self.own[:passes]
        if self.noted is not None:
            self.note_order()

    def note_order(self) -> None:
        """Stores the order as a buffer, for checkpoints whose other tensors do not show it."""
        self.noted = torch.tensor(self.order, device=None if self.noted is None else self.noted.device)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, local_metadata: dict, *rest: Any) -> None:
        """Also loads at another depth, see :func:`recurrence.loading.fit`."""
        fit(self, state_dict, prefix, local_metadata, errors=rest[-1])
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def named_loops(model: nn.Module) -> dict[str, Loop]:
    """The loops of a model by their names in it, in the order of registration."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Loop)}
