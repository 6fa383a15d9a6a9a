"""The loop over depth: a few stored blocks, an order in which they run, and a little that is unique to each pass."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from recurrence.depth import passes_at, same_kind, source_passes, warn, warn_outside
from recurrence.order import Order

if TYPE_CHECKING:
    from recurrence.elastic import Draw


GRAPHS = 64  # of all compiled blocks together: each has one with padding, one without, one for each kind of pass


class Loop(nn.Module):
    """Runs stored blocks in an order. The only code that walks shared blocks.

    Each block is registered once, however often it runs, so that a state dict, a checkpoint on disk and a safetensors
    file hold each tensor once. What belongs to a pass (its own parameters, its cache slot, its level) is indexed by
    the pass, what belongs to a block (projections that every pass of it would repeat) by the block.

    Training may draw the passes that run (`draw`), and may cut gradients to the last of them (`backprop_passes`), see
    :mod:`recurrence.elastic`. The passes before those then count as a constant that is added to the stream: what
    stands before the loop gets the gradient of the stream behind them.

    Args:
        blocks: the stored blocks, called as `block(x, own=..., context=..., slot=..., **shared)`, with each of the
            three only where there are any.
        order: one block index per pass.
        own: one module per pass with the parameters that the pass shares with no other; None where there are none.
        checkpointing: recompute each pass in the backward pass instead of keeping its activations. Non-reentrant: the
            reentrant form fails under DistributedDataParallel as soon as a block runs twice.
        inject: blocks whose later passes get the input of their first pass added to theirs.

    Raises:
        ValueError: if the order is empty, names a missing block or leaves one out, or `own` has not one entry per pass.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        order: Order,
        own: Sequence[nn.Module] | None = None,
        checkpointing: bool = False,
        inject: Collection[int] = (),
    ):
        super().__init__()
        missing = sorted(set(order) - set(range(len(blocks))))
        unused = sorted(set(range(len(blocks))) - set(order))
        if not order:
            raise ValueError(f"order={order}: needs at least one pass")
        if missing:
            raise ValueError(f"order={order}: names block {missing[0]}, but there are {len(blocks)} blocks")
        if unused:
            raise ValueError(f"order={order}: block {unused[0]} of {len(blocks)} never runs")
        if own is not None and len(own) != len(order):
            raise ValueError(f"own has {len(own)} entries: needs one for each of the {len(order)} passes")
        self.blocks = nn.ModuleList(blocks)
        self.order = tuple(order)
        self.own = None if own is None else nn.ModuleList(own)
        self.checkpointing = checkpointing
        self.inject = frozenset(inject)
        self.noted: Tensor | None = None
        self.safe: Tensor | None = None  # smallest and largest depth, where the checkpoint notes them
        self.draw: Draw | None = None  # number of an update -> how many passes it runs
        self.backprop_passes: int | None = None
        self.run: tuple[int, ...] | None = None  # other passes than all, in training and outside
        self._drawn: tuple[int, ...] | None = None
        self.register_state_dict_post_hook(_note_order)

    def compile_blocks(self, **options: Any) -> None:
        """Compiles each stored block for training, once for all its passes and for all shapes.

        A pass owns tensors of the same shapes as the others, so that a block runs one graph in all its passes.
        Outside training blocks run as they are: steps of decoding would be compiled anew as their cache grows.

        Args:
            **options: of :func:`torch.compile`.
        """
        from torch._dynamo import config  # here, for it imports the compiler

        config.recompile_limit = max(config.recompile_limit, GRAPHS)  # which counts the graphs of all blocks together
        for block in self.blocks:
            block.compile(**{"dynamic": True, **options})

    @property
    def passes(self) -> int:
        return len(self.order)

    @property
    def running(self) -> tuple[int, ...]:
        """Indices of the passes that a call runs, in their order: all, unless `run` or an update's draw says otherwise.

        Raises:
            RuntimeError: in training, if depths are drawn and nobody has told which update this is.
        """
        if self.run is not None:
            return self.run
        if self.draw is None or not self.training:
            return tuple(range(self.passes))
        if self._drawn is None:
            raise RuntimeError("a depth is drawn for each update: call model.set_num_updates(update) before it")
        return self._drawn

    def set_num_updates(self, num_updates: int) -> None:
        """Draws the depth of the update that so many updates have gone before. fairseq's trainer calls this."""
        if self.draw is not None:
            self._drawn = passes_at(self.order, self.draw(num_updates))

    def passes_without_gradients(self, running: int) -> int:
        """How many of so many running passes come before those that training goes back through."""
        cuts = self.training and torch.is_grad_enabled() and self.backprop_passes is not None
        return max(0, running - self.backprop_passes) if cuts else 0

    def note_order(self) -> None:
        """Keeps the order among the tensors of the state dict, where a checkpoint tells the order by nothing else."""
        where = None if self.noted is None else self.noted.device
        del self.noted
        self.register_buffer("noted", torch.tensor(self.order, device=where))

    def truncate(self, passes: int) -> None:
        """Keeps the first passes alone, and of the blocks those that still run."""
        self.order = self.order[:passes]
        kept = sorted(set(self.order))
        self.blocks = nn.ModuleList(self.blocks[which] for which in kept)
        self.order = tuple(kept.index(which) for which in self.order)
        self.inject = frozenset(kept.index(which) for which in self.inject.intersection(kept))
        self.draw = self.backprop_passes = self.run = None
        if self.own is not None:
            self.own = self.own[:passes]
        if self.noted is not None:
            self.note_order()

    def forward(
        self,
        x: Tensor,
        levels: Sequence[Tensor] | None = None,
        contexts: Sequence[Any] | None = None,
        slots: Sequence[Any] | None = None,
        run: Sequence[int] | None = None,
        first_inputs: dict[int, Tensor] | None = None,
        **shared: Any,
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs the passes.

        Args:
            x: (B, T, C).
            levels: one tensor a pass, broadcastable to x, added to x before the pass.
            contexts: one value per pass; passes may share one.
            slots: one value per pass (its cache).
            run: indices of the passes to run, in their order; None runs :attr:`running`.
            first_inputs: what blocks of `inject` read on their first pass, where a call before ran it; takes in what
                they read on one that this call runs.
            **shared: handed to every pass.

        Returns:
            The output (B, T, C), and the states after each pass, the last of which it is.
        """
        run = self.running if run is None else run
        first_inputs = {} if first_inputs is None else first_inputs
        of_pass = dict(own=self.own, context=contexts, slot=slots, level=levels)
        of_pass = {name: values for name, values in of_pass.items() if values is not None}
        states: list[Tensor] = []
        past = self.passes_without_gradients(len(run))
        if past:
            with torch.no_grad():
                made = self._walk(x, run[:past], states, first_inputs, of_pass, shared)
            torch.clear_autocast_cache()  # it may hold casts of the weights that were made without gradients
            x = _Onward.apply(x, made)
        return self._walk(x, run[past:], states, first_inputs, of_pass, shared), states

    def _walk(
        self, x: Tensor, run: Sequence[int], states: list, first_inputs: dict[int, Tensor], of_pass: dict, shared: dict
    ) -> Tensor:
        """Runs some of the passes; notes their states and what blocks first read."""
        for index in run:
            which = self.order[index]
            kwargs = {name: values[index] for name, values in of_pass.items()}
            if "level" in kwargs:
                x = x + kwargs.pop("level")
            if which in self.inject:
                x = x + first_inputs[which] if which in first_inputs else first_inputs.setdefault(which, x)
            kwargs.update(shared)
            block: Any = self.blocks[which]
            if block._compiled_call_impl is not None and not self.training:
                block = block._call_impl  # as it was before it was compiled
            if self.checkpointing and self.training and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False, **kwargs)
            else:
                x = block(x, **kwargs)
            states.append(x)
        return x

    def _load_from_state_dict(self, state_dict: dict, prefix: str, local_metadata: dict, *rest: Any) -> None:
        """Loads weights that were trained at another depth too, see :mod:`recurrence.depth`; the log says so."""
        trained, name = self._trained_order(state_dict, prefix, local_metadata), prefix.rstrip(".")
        safe = self._take_safe(state_dict, prefix)
        if safe is not None and not safe[0] <= self.passes <= safe[1]:
            warn_outside(name, self.passes, safe)
        if trained is not None and trained != self.order:
            if set(trained) == set(self.order):
                if safe is None:
                    warn(name, self.order, trained)
                self._take_passes(state_dict, prefix, source_passes(trained, self.order))
            else:
                *_, errors = rest
                errors.append(
                    f"{name}: the checkpoint stores {1 + max(trained)} blocks, this depth runs "
                    f"{len(self.blocks)}: another depth may only run the stored blocks more or less often"
                )
        if self.noted is not None:
            state_dict[f"{prefix}noted"] = torch.tensor(self.order)  # the buffer itself may be without a value yet
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def _take_safe(self, state_dict: dict, prefix: str) -> tuple[int, int] | None:
        """The depths that the state dict notes as safe, which the loop notes from now on; None if it notes none."""
        found = state_dict.get(f"{prefix}safe")
        if found is None:
            return None
        del self.safe
        self.register_buffer("safe", torch.empty(2, device=None if self.noted is None else self.noted.device))
        smallest, largest = found.tolist()
        return int(smallest), int(largest)

    def _trained_order(self, state_dict: dict, prefix: str, local_metadata: dict) -> Order | None:
        """The order that the state dict notes, or the one that its number of passes stands for; None if it tells none.

        What is stored in safetensors, or was filtered, has lost the note in the metadata.
        """
        noted = state_dict.pop(f"{prefix}noted", None)
        if noted is not None:
            return tuple(noted.tolist())
        if "order" in local_metadata:
            return tuple(local_metadata["order"])
        passes = self._own_passes(state_dict, prefix)
        return None if passes in (0, self.passes) else same_kind(self.order, passes)

    def _own_passes(self, state_dict: dict, prefix: str) -> int:
        """Of how many passes the state dict has parameters."""
        found = (re.match(rf"{re.escape(prefix)}own\.(\d+)\.", key) for key in state_dict)
        return 1 + max((int(match[1]) for match in found if match), default=-1)

    def _take_passes(self, state_dict: dict, prefix: str, sources: Sequence[int]) -> None:
        """Makes entry i of the passes' own tensors what entry sources[i] was, in place."""
        start = f"{prefix}own."
        theirs = {key: state_dict.pop(key) for key in list(state_dict) if key.startswith(start)}
        for index, source in enumerate(sources):
            taken = f"{start}{source}."
            mine = (key for key in theirs if key.startswith(taken))
            state_dict.update({f"{start}{index}.{key[len(taken) :]}": theirs[key] for key in mine})


class _Onward(torch.autograd.Function):
    """What passes without gradients made of x; the gradient goes to x, as if they had added a constant to it."""

    @staticmethod
    def forward(x: Tensor, made: Tensor) -> Tensor:
        return made.view_as(made)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def _note_order(loop: Loop, state_dict: dict, prefix: str, local_metadata: dict) -> None:
    """Notes beside the tensors, in the metadata of a state dict, in which order they were trained."""
    local_metadata["order"] = loop.order
