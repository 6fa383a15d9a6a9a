"""Drafting with the first passes and checking with the rest: the tokens of a plain search, in fewer full runs.

The first d passes of a looped model are the beginning of its own full computation. So a search that writes one token at
a time may look ahead: the first d passes and the output layer guess the next tokens one by one, and then a single run
of the remaining passes reads all of them at once, on the keys and values that the first d have left. Its outputs are
those of the full depth. The search chooses from them as ever; as long as it chooses what was guessed, its next output
is there already, and at the first token that it chooses otherwise the rest is forgotten. Whatever the search does with
the outputs (greedy, sampling, forced prefixes, penalties), it sees what it would have seen without guesses.

Source: LayerSkip (arXiv:2404.16710), section 4.3; speculative decoding, arXiv:2211.17192.
Differs from both: guesses are never accepted by a rule of their own. Sampling with the seed of a plain search gives its
tokens, too.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from recurrence.errors import FieldError
from recurrence.steps import Steps
from recurrence.tally import Tally


class Drafting:
    """How far to look ahead, and a tally of how many tokens came of it.

    Args:
        passes: d, how many of the first passes guess.
        tokens: k, guesses in a row at most.
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
        self.tally = Tally(f"drafting: {{average}} of at most {tokens + 1} tokens a check on average")


class Draft:
    """What was computed ahead of a search on a batch of texts.

    Args:
        steps: what the loop keeps of the texts.
        drafting: how far to look ahead.
        end: the token that ends a text, behind which nothing is guessed.
        most: length of the longest text.
    """

    def __init__(self, steps: Steps, drafting: Drafting, end: int, most: int):
        self.steps, self.drafting, self.end, self.most = steps, drafting, end, most
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
        """What the full depth gives for the tokens that have come since the last call.

        Args:
            tokens: (B, L), all that stands.
            read: runs passes on those of the tokens (B, L) that they have not read, from a state (B, T, C), or from the
                embedding where that is None; returns the state after them.
            guess: of the state (B, 1, C) after the first passes, the next token (B, 1).
            output: of the state (B, T, C) after the last pass, tensors (B, T, ...) that the search is to see.

        Returns:
            Of each tensor of `output` the part that belongs to the new tokens.
        """
        start, length = self._seen, tokens.size(1)
        foreseen = self._foreseen(tokens)
        self.drafting.tally.add(1, 0 if foreseen else 1)
        if not foreseen:
            self.steps.rewind(start)
            self._tokens, state = self._ahead(tokens, read, guess)
            rest = self.steps.loop.running[self.drafting.passes :]
            self._start, self._outputs = start, output(read(self._tokens, rest, state))
        self._seen = length
        return tuple(tensor[:, start - self._start : length - self._start] for tensor in self._outputs)

    def _ahead(self, tokens: Tensor, read: Callable, guess: Callable) -> tuple[Tensor, Tensor]:
        """The tokens with guesses behind them, and the state of all new ones after the first passes."""
        first, states = self.steps.loop.running[: self.drafting.passes], []
        longest = min(tokens.size(1) + self.drafting.tokens, self.most)
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
        """Entry i becomes what entry order[i] was; the batch may shrink or grow. order: (new B,)."""
        if self._tokens is not None and not torch.equal(order, torch.arange(len(self._tokens), device=order.device)):
            self._tokens = self._tokens.index_select(0, order)
            self._outputs = tuple(tensor.index_select(0, order) for tensor in self._outputs)
