"""A loop over depth as the causal stack of a decoder, with or without a memory to attend to.

Tokens are read all at once or in steps, such as a prompt and then token after token, with a cache slot for each pass.
"""

from typing import Any

from torch import Tensor, nn

from recurrence.attention import padding_bias
from recurrence.attention_position import AttentionPositions
from recurrence.loop import Loop
from recurrence.loop_state import LoopState
from recurrence.position import LevelTable


class CausalStack(nn.Module):
    """A loop under a causal mask.

    Args:
        loop: the passes; its blocks take `self_bias`, `causal` and what the positions add.
        positions: those inside attention, see :mod:`recurrence.attention_position`; None for none.
        norm: applied after the last pass; None for none.
    """

    def __init__(self, loop: Loop, positions: AttentionPositions | None = None, norm: nn.Module | None = None):
        super().__init__()
        self.loop, self.norm = loop, norm
        self.positions = AttentionPositions() if positions is None else positions

    def new_state(self) -> LoopState:
        """The decoding state of a new text."""
        return LoopState(self.loop)

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
            **memory: what :meth:`arguments` takes beside the text.

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
        self, x: Tensor, padding: Tensor | None, start: int, state: LoopState | None = None
    ) -> dict[str, Any]:
        """Arguments of the loop for tokens x (B, T, C) that follow `start` others; padding: (B, L)."""
        return self.positions.causal_arguments(self.loop, x, padding, start, state)


class CrossStack(CausalStack):
    """A loop under a causal mask whose blocks also attend to a memory, the output of an encoder.

    Args:
        loop, positions, norm: see :class:`CausalStack`.
        level_table: signals added before each pass; None for none.
    """

    def __init__(
        self,
        loop: Loop,
        positions: AttentionPositions | None = None,
        norm: nn.Module | None = None,
        level_table: LevelTable | None = None,
    ):
        super().__init__(loop, positions, norm)
        self.level_table = level_table

    def project(self, memory: Tensor) -> list[Tensor]:
        """Keys and values of the memory (B, S, memory width): one (B, S, 2 C) per stored block.

        Or one per pass, if passes have terms of their own.
        """
        loop = self.loop
        if not self._projects_per_pass():
            return [block.cross_attn.project(memory) for block in loop.blocks]
        passes = zip(loop.order, loop.own)
        return [loop.blocks[which].cross_attn.project(memory, own.term("cross_kv")) for which, own in passes]

    def arguments(  # type: ignore[override]  # it needs the memory, too
        self,
        x: Tensor,
        padding: Tensor | None,
        start: int,
        state: LoopState | None = None,
        *,
        contexts: list[Tensor],
        memory_padding: Tensor | None,
        record: list[Tensor] | None,
    ) -> dict[str, Any]:
        """As :meth:`CausalStack.arguments`, and those of cross-attention.

        Args:
            x, padding, start, state: see :meth:`CausalStack.arguments`.
            contexts: from :meth:`project`.
            memory_padding: (B, S) bool; None for no padding.
            record: see :meth:`recurrence.block.Block.forward`.
        """
        arguments = super().arguments(x, padding, start, state)
        if self.level_table is not None:
            length = start + x.size(1)
            arguments["levels"] = self.level_table.levels(self.loop.passes, length, padding, start, x)
        if not self._projects_per_pass():
            contexts = [contexts[which] for which in self.loop.order]
        cross_bias = None if memory_padding is None else padding_bias(memory_padding, like=x)
        return dict(arguments, contexts=contexts, cross_bias=cross_bias, record=record)

    def _projects_per_pass(self) -> bool:
        return self.loop.own[0].term("cross_kv") is not None
