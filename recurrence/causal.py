"""A loop over depth as the stack of a language model: every token sees itself and what stands before it.

Tokens come all at once, or in steps: a prompt of any length, then token after token. The state between steps is the
cache of the loop's passes, one slot each, so that a step costs one token, whatever came before it.
"""

from typing import Any

from torch import Tensor, nn

from recurrence import position
from recurrence.attention import causal_bias
from recurrence.leave import Exit, LeavingSteps
from recurrence.linear import product_dtype
from recurrence.loop import Loop
from recurrence.steps import Steps


class CausalStack(nn.Module):
    """Passes of a loop under a causal mask, with positions that act within attention, at every pass.

    Args:
        loop: the passes; its blocks take `self_bias`, `causal` and, with rotary positions, `rotary`.
        heads: H.
        rotary_width: width of a head, for rotary positions; None for none.
        alibi: whether attention with linear biases gives the positions.
        norm: what follows the last pass; None for nothing.
    """

    def __init__(
        self,
        loop: Loop,
        heads: int,
        rotary_width: int | None = None,
        alibi: bool = False,
        norm: nn.Module | None = None,
    ):
        super().__init__()
        self.loop, self.heads, self.alibi, self.norm = loop, heads, alibi, norm
        self.table = None if rotary_width is None else position.Table(position.rotary, rotary_width)
        self.way_out: Exit | None = None

    def new_state(self, room: int = 32) -> Steps:
        """The state of a text that begins. room: tokens to make room for at once; beyond it the room doubles."""
        return Steps(self.loop, room) if self.way_out is None else LeavingSteps(self.loop, self.way_out, room)

    def forward(self, x: Tensor, padding: Tensor | None = None, state: Steps | None = None) -> Tensor:
        """Runs all passes on the tokens of x.

        Args:
            x: (B, T, C), embedded tokens; with a state those that follow the ones it has seen.
            padding: (B, L) bool over all tokens, those in the state included; None where nothing is padding.
            state: of :meth:`new_state`; takes the tokens in.

        Returns:
            (B, T, C).
        """
        if state is None:
            x, _ = self.loop(x, **self.arguments(x, padding, 0))
        elif isinstance(state, LeavingSteps):
            x = state.read(x, lambda x, start: self.arguments(x, padding, start))
        else:
            x = state.run(x, self.loop.running, **self.arguments(x, padding, state.length))
        return self.finish(x)

    def finish(self, x: Tensor) -> Tensor:
        """The state after a pass -> what the stack gives."""
        return x if self.norm is None else self.norm(x)

    def arguments(self, x: Tensor, padding: Tensor | None, start: int) -> dict[str, Any]:
        """What the passes are told of the tokens x (B, T, C), before which stand `start` others; padding: (B, L)."""
        length = start + x.size(1)
        bias = self._bias(x, padding, start, length)
        told = dict(self_bias=bias, causal=bias is None)
        if self.table is not None:
            told["rotary"] = self.table.rows(length, like=x)[start:].chunk(2, dim=-1)
        return told

    def _bias(self, x: Tensor, padding: Tensor | None, start: int, length: int) -> Tensor | None:
        """What is added to the scores, broadcastable to (B, H, T, L); None where a causal mask says it all."""
        several = x.size(1) > 1
        masked = padding is not None or several and (self.alibi or start)
        mask = causal_bias(length, x, padding, start) if masked else None
        if not self.alibi:
            return mask
        slopes = position.alibi(self.heads, length, start, like=x).to(product_dtype(x))
        return slopes if mask is None else slopes + mask
