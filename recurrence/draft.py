"""Drafting with the first passes and checking with the rest: the tokens of a plain search, in fewer full runs.

The first d passes of a looped model and the output layer guess the next tokens one by one. A single run of the
remaining passes, on the keys and values of the first d, then computes the outputs of the full depth for all guesses at
once. As long as the search chooses the guessed tokens, its next output is already there; at the first other token, the
remaining guesses are dropped. The search (greedy, sampling, forced prefixes, penalties) only sees outputs of the full
depth.

Source: LayerSkip (arXiv:2404.16710), section 4.3; speculative decoding, arXiv:2211.17192.
Differs from both: there is no acceptance rule, so sampling gives the same tokens as a plain search with the same seed.
"""

import atexit
import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from recurrence.cache import stays
from recurrence.causal import LoopState
from recurrence.errors import FieldError

logger = logging.getLogger(__name__)


class Drafting:
    """How far to look ahead, and how many tokens each check gave, which is logged when the interpreter exits.

    Args:
        passes: d, number of passes that guess.
        tokens: k, maximum number of guesses in a row.
        total: passes of the loop.

    Raises:
        FieldError: where a value breaks its rule.
    """

    def __init__(self, passes: int, tokens: int, total: int):
        if not 1 <= passes < total:
            raise FieldError("draft_passes", passes, f"must be >= 1 and < the {total} passes of the decoder")
        if tokens < 1:
            raise FieldError("draft_tokens", tokens, "must be >= 1")
        self.passes, self.tokens = passes, tokens
        self.given = self.checks = 0  # tokens, checks

    def count(self, checked: bool) -> None:
        """Counts a token, and the check that gave it if it was not there yet."""
        if not self.checks:
            atexit.register(self.log)
        self.given, self.checks = self.given + 1, self.checks + checked

    def log(self) -> None:
        """Logs how many tokens a check gave on average."""
        average = self.given / self.checks
        logger.info(f"drafting: {average:.2f} of at most {self.tokens + 1} tokens a check on average")


class Draft:
    """The outputs computed ahead of the search for a batch of texts.

    Args:
        loop_state: decoding state of the loop.
        drafting: how far to look ahead.
        end: the end-of-text token; nothing is guessed after it.
        most: maximum length of a text.
    """

    def __init__(self, loop_state: LoopState, drafting: Drafting, end: int, most: int):
        self.loop_state, self.drafting, self.end, self.most = loop_state, drafting, end, most
        self._seen = self._start = 0
        self._tokens: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def __call__(
        self,
        tokens: Tensor,
        read: Callable[[Tensor, Sequence[int], Tensor | None], Tensor],
        guess: Callable[[Tensor], Tensor],
        output: Callable[[Tensor], tuple[Tensor, ...]],
    ) -> tuple[Tensor, ...]:
        """The outputs of the full depth for the tokens added since the last call.

        Args:
            tokens: (B, L), the complete text so far.
            read: runs passes on the tokens (B, L) that they have not read, from a state (B, T, C), or from the
                embedding if that is None; returns the state after them.
            guess: the state (B, 1, C) after the first passes -> the next token (B, 1).
            output: the state (B, T, C) after the last pass -> tensors (B, T, ...) for the search.

        Returns:
            The tensors of `output`, for the new tokens.
        """
        start, length = self._seen, tokens.size(1)
        foreseen = self._foreseen(tokens)
        self.drafting.count(not foreseen)
        if not foreseen:
            self.loop_state.rewind(start)
            self._tokens, state = self._ahead(tokens, read, guess)
            rest = self.loop_state.loop.running[self.drafting.passes :]
            self._start, self._outputs = start, output(read(self._tokens, rest, state) if rest else state)
        self._seen = length
        return tuple(tensor[:, start - self._start : length - self._start] for tensor in self._outputs)

    def _ahead(self, tokens: Tensor, read: Callable, guess: Callable) -> tuple[Tensor, Tensor]:
        """The tokens followed by guesses, and the state of the new tokens and guesses after the first passes."""
        running, passes, states = self.loop_state.loop.running, self.drafting.passes, []
        first = running[:passes]
        longest = tokens.size(1) if len(running) <= passes else min(tokens.size(1) + self.drafting.tokens, self.most)
        while True:
            states.append(read(tokens, first, None))
            if tokens.size(1) >= longest:
                break
            following = guess(states[-1][:, -1:])
            if following.eq(self.end).all():
                break
            tokens = torch.cat([tokens, following], dim=1)
        return tokens, torch.cat(states, dim=1)

    def _foreseen(self, tokens: Tensor) -> bool:
        start, length = self._seen, tokens.size(1)
        if self._tokens is None or self._tokens.size(1) < length:
            return False
        return torch.equal(self._tokens[:, start:length], tokens[:, start:])

    def reorder(self, order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry order[i], (new B,)."""
        if self._tokens is not None and not stays(order, torch.arange(len(self._tokens), device=order.device)):
            self._tokens = self._tokens.index_select(0, order)
            self._outputs = tuple(tensor.index_select(0, order) for tensor in self._outputs)
