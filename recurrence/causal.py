"""A loop over depth as the causal stack of a language model.

Tokens are read all at once or in steps, such as a prompt and then token after token, with a cache slot for each pass.
"""

from typing import Any

from torch import Tensor, nn

from recurrence import position
from recurrence.attention import causal_bias
from recurrence.eager import product_dtype
from recurrence.early_exit import EarlyExit, EarlyExitState, new_loop_state
from recurrence.loop import Loop
from recurrence.loop_state import LoopState


class CausalStack(nn.Module):
    """A loop under a causal mask, optionally with positions inside attention at every pass.

    Args:
        loop: the passes; its blocks take `self_bias`, `causal` and, with rotary positions, `rotary`.
        heads: H.
        rotary_width: width of a head, for rotary positions; None for none.
        alibi: whether positions are ALiBi's linear biases.
        norm: applied after the last pass; None for none.
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
        self.early_exit: EarlyExit | None = None

    def new_state(self) -> LoopState:
        """The decoding state of a new text."""
        return new_loop_state(self.loop, self.early_exit)

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
        elif isinstance(state, EarlyExitState):
            x = state.read(x, lambda x, start: self.arguments(x, padding, start), padding)
        else:
            x = state.run(x, self.loop.running, **self.arguments(x, padding, state.length))
        return self.finish(x)

    def finish(self, x: Tensor) -> Tensor:
        """From the state after a pass to the output of the stack."""
        return x if self.norm is None else self.norm(x)

    def arguments(self, x: Tensor, padding: Tensor | None, start: int) -> dict[str, Any]:
        """Arguments of the loop for tokens x (B, T, C) that follow `start` others; padding: (B, L)."""
        length = start + x.size(1)
        bias = self._bias(x, padding, start, length)
        arguments = dict(self_bias=bias, causal=bias is None)
        if self.table is not None:
            arguments["rotary"] = self.table.rows(length, like=x)[start:].chunk(2, dim=-1)
        return arguments

    def _bias(self, x: Tensor, padding: Tensor | None, start: int, length: int) -> Tensor | None:
        """The bias of the scores, broadcastable to (B, H, T, L); None if a causal mask is enough."""
        several = x.size(1) > 1
        needs_mask = padding is not None or (several and (self.alibi or start > 0))
        mask = causal_bias(length, x, padding, start) if needs_mask else None
        if not self.alibi:
            return mask
        slopes = position.alibi(self.heads, length, start, like=x).to(product_dtype(x))
        return slopes if mask is None else slopes + mask
