"""A loop over depth as the causal stack of a language model.

Tokens are read all at once or in steps, such as a prompt and then token after token, with a cache slot for each pass.
"""

from typing import Any

from torch import Tensor, nn

from recurrence.attention_position import AttentionPositions
from recurrence.loop import Loop
from recurrence.loop_state import LoopState


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

    def forward(self, x: Tensor, padding: Tensor | None = None, state: LoopState | None = None) -> Tensor:
        """Runs all passes on the tokens of x.

        Args:
            x: (B, T, C), embedded tokens; with a state, the new ones.
            padding: (B, L) bool over all tokens, including those in the state; None for no padding.
            state: from :meth:`new_state`, updated in place.

        Returns:
            (B, T, C).
        """
        if state is None:
            x = self.loop(x, **self.arguments(x, padding, 0))
        else:
            x = state.run(x, self.loop.running, **self.arguments(x, padding, state.length, state))
        return self.finish(x)

    def finish(self, x: Tensor) -> Tensor:
        """From the state after a pass to the output of the stack."""
        return x if self.norm is None else self.norm(x)

    def arguments(
        self, x: Tensor, padding: Tensor | None, start: int, state: LoopState | None = None
    ) -> dict[str, Any]:
        """Arguments of the loop for tokens x (B, T, C) that follow `start` others; padding: (B, L)."""
        return self.positions.causal_arguments(self.loop, x, padding, start, state)
