"""A loop over depth as the causal stack of a decoder, with or without a memory to attend to.

Tokens are read all at once or in steps, such as a prompt and then token after token, with a cache slot for each pass.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recurrence.attention import padding_bias
from recurrence.cache import Cache
from recurrence.loop import Loop
from recurrence.position import AttentionPositions, LevelTable
from recurrence.relative import KeptKeys


class LoopState:
    """Decoding state of a loop: its cache, and the inputs that `inject` needs again.

    Its passes may have read different numbers of tokens.
    """

    def __init__(self, loop: Loop):
        self.loop, self.cache = loop, Cache(loop.passes)
        self._first_inputs: dict[int, Tensor] = {}
        self.kept_keys = KeptKeys()  # of relative positions

    @property
    def length(self) -> int:
        """Number of tokens that the first pass has read."""
        return self.cache.length

    def run(self, x: Tensor, indices: Sequence[int], **arguments: Any) -> Tensor:
        """Runs consecutive passes, which have read the same number of tokens, on their next ones.

        Args:
            x: (B, T, C), the input of the first of these passes.
            indices: those of the passes.
            **arguments: of :meth:`Loop.forward`.

        Returns:
            The state after the last of these passes, (B, T, C).
        """
        start, order = self.cache.lengths[indices[0]], self.loop.order
        end = start + x.size(1)
        known = {
            which: kept[:, start:end] for which, kept in self._first_inputs.items() if order.index(which) < indices[0]
        }
        first_inputs = dict(known)
        x = self.loop(x, slots=self.cache.slots(), indices=indices, first_inputs=first_inputs, **arguments)
        for which in first_inputs.keys() - known.keys():
            new = first_inputs[which]
            self._first_inputs[which] = torch.cat([self._first_inputs.get(which, new[:, :0]), new], dim=1)
        return x

    def rewind(self, length: int) -> None:
        """Drops all tokens after the first `length`."""
        self.cache.rewind(length)
        self._first_inputs = {which: kept[:, :length] for which, kept in self._first_inputs.items()}

    def reorder(self, order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry order[i], (new B,)."""
        self.cache.reorder(order)
        self._first_inputs = {which: kept.index_select(0, order) for which, kept in self._first_inputs.items()}


class CausalStack(nn.Module):
    """A loop under a causal mask, whose blocks may also attend to a memory, the output of an encoder.

    Args:
        loop: the passes.
        positions: those inside attention, see :mod:`recurrence.position`; None for none.
        norm: applied after the last pass; None for none.
        level_table: signals added before each pass; None for none.
    """

    def __init__(
        self,
        loop: Loop,
        positions: AttentionPositions | None = None,
        norm: nn.Module | None = None,
        level_table: LevelTable | None = None,
    ):
        super().__init__()
        self.loop, self.norm, self.level_table = loop, norm, level_table
        self.positions = AttentionPositions() if positions is None else positions

    def new_state(self) -> LoopState:
        """The decoding state of a new text."""
        return LoopState(self.loop)

    def project(self, memory: Tensor) -> list[Tensor]:
        """Keys and values of the memory (B, S, memory width) for each pass: P times (B, S, 2 C).

        Passes of a block share a tensor, unless they have terms of their own.
        """
        loop, terms = self.loop, [own.term("cross_kv") for own in self.loop.own]
        if terms[0] is None:
            of_blocks = [block.cross_attn.project(memory) for block in loop.blocks]
            return [of_blocks[which] for which in loop.order]
        return [loop.blocks[which].cross_attn.project(memory, term) for which, term in zip(loop.order, terms)]

    def forward(
        self,
        x: Tensor,
        padding: Tensor | None = None,
        state: LoopState | None = None,
        states: list[Tensor] | None = None,
        **memory: Any,
    ) -> Tensor:
        """Runs all passes on the tokens of x.

        Args:
            x: (B, T, C), embedded tokens; with a state, the new ones.
            padding: (B, L) bool over all tokens, including those in the state; None for no padding.
            state: from :meth:`new_state`, updated in place.
            states: see :meth:`Loop.forward`.
            **memory: `contexts`, `memory_padding` and `record`, see :meth:`arguments`.

        Returns:
            (B, T, C).
        """
        if state is None:
            x = self.loop(x, states=states, **self.arguments(x, padding, 0, **memory))
        else:
            arguments = self.arguments(x, padding, state.length, state, **memory)
            x = state.run(x, self.loop.running, states=states, **arguments)
        return self.finish(x)

    def finish(self, x: Tensor) -> Tensor:
        """From the state after a pass to the output of the stack."""
        return x if self.norm is None else self.norm(x)

    def arguments(
        self,
        x: Tensor,
        padding: Tensor | None,
        start: int,
        state: LoopState | None = None,
        contexts: list[Tensor] | None = None,
        memory_padding: Tensor | None = None,
        record: list[Tensor] | None = None,
    ) -> dict[str, Any]:
        """Arguments of the loop.

        Args:
            x: (B, T, C), tokens that follow `start` others.
            padding, state: see :meth:`forward`.
            contexts: from :meth:`project`; None without a memory.
            memory_padding: (B, S) bool; None for no padding.
            record: see :class:`recurrence.attention.CrossAttention`.
        """
        kept = None if state is None else state.kept_keys
        arguments = self.positions.causal_arguments(self.loop, x, padding, start, kept)
        if self.level_table is not None:
            length = start + x.size(1)
            arguments["levels"] = self.level_table.levels(self.loop.passes, length, padding, start, x)
        if contexts is None:
            return arguments
        cross_bias = None if memory_padding is None else padding_bias(memory_padding, like=x)
        return dict(arguments, contexts=contexts, cross_bias=cross_bias, record=record)
