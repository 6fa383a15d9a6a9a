"""A loop over depth under a causal mask, with or without a memory to attend to.

Tokens are read all at once or in steps, such as a prompt and then token after token, with a cache slot for each pass.
"""

from torch import Tensor, nn

from recurrence.attention import padding_bias
from recurrence.cache import Cache
from recurrence.loop import Loop
from recurrence.position import AttentionPositions, LevelTable
from recurrence.relative import KeptKeys


class LoopState:
    """Decoding state of a loop: the cache of its passes, and the keys of relative positions.

    Args:
        loop: whose passes run.
        passes: their number, see :meth:`Loop.indices`; None for all.
    """

    def __init__(self, loop: Loop, passes: int | None = None):
        self.cache, self.kept_keys = Cache(len(loop.indices(passes))), KeptKeys()

    def reorder(self, order: Tensor) -> None:
        """Reorders the batch: entry i becomes entry order[i], (new B,)."""
        self.cache.reorder(order)


def project_memory(loop: Loop, memory: Tensor, passes: int | None = None) -> list[Tensor]:
    """Keys and values of a memory (B, S, memory width) for each pass that runs: (B, S, 2 C) each.

    Passes of a block share a tensor, unless they have signals of their own on it.
    """
    indices = loop.indices(passes)
    found: dict[int, Tensor] = {}
    for which, block in enumerate(loop.blocks):
        runs = [step for step, index in enumerate(indices) if loop.order[index] == which]
        found.update(zip(runs, block.contexts(memory, [loop.own[indices[step]] for step in runs])))
    return [found[step] for step in range(len(indices))]


def run_causal(
    loop: Loop,
    x: Tensor,
    positions: AttentionPositions,
    level_table: LevelTable | None = None,
    padding: Tensor | None = None,
    state: LoopState | None = None,
    passes: int | None = None,
    states: list[Tensor] | None = None,
    contexts: list[Tensor] | None = None,
    memory_padding: Tensor | None = None,
    record: list[Tensor] | None = None,
) -> Tensor:
    """Runs the passes on the tokens of x.

    Args:
        loop: whose blocks are causal and, with contexts, attend to a memory.
        x: (B, T, C), embedded tokens; with a state, the new ones.
        positions: those inside attention, see :mod:`recurrence.position`.
        level_table: signals added before each pass; None for none.
        padding: (B, L) bool over all tokens, including those in the state; None for no padding.
        state: of this loop and number of passes, updated in place; None to read whole texts.
        passes: their number, see :meth:`Loop.indices`; None for all.
        states: see :meth:`Loop.forward`.
        contexts: of the same passes, from :func:`project_memory`; None without a memory.
        memory_padding: (B, S) bool; None for no padding.
        record: a list for the weights of the last pass, see :class:`recurrence.attention.CrossAttention`.

    Returns:
        The state after the last pass, (B, T, C).

    Raises:
        ValueError: if the state began with another number of passes.
    """
    depth = len(loop.order if passes is None else loop.indices(passes))
    if state is not None and len(state.cache.slots) != depth:
        began = len(state.cache.slots)
        raise ValueError(f"{depth} passes: must be {began}, as when the incremental state began; start a new one")
    start = 0 if state is None else state.cache.length
    kept = None if state is None else state.kept_keys
    arguments = positions.causal_arguments(loop, x, padding, start, kept, passes)
    per_pass = arguments.pop("per_pass", {})
    if level_table is not None:
        arguments["levels"] = level_table.levels(depth, start + x.size(1), padding, start, x)
    if contexts is not None:
        cross_bias = None if memory_padding is None else padding_bias(memory_padding, like=x)
        cross: list[dict] = [dict(context=context, cross_bias=cross_bias) for context in contexts]
        cross[-1]["record"] = record
        per_pass["cross"] = cross
    if state is None:
        return loop(x, passes, per_pass=per_pass, states=states, **arguments)
    per_pass["slot"] = state.cache.slots
    y = loop(x, passes, per_pass=per_pass, states=states, **arguments)
    state.cache.length += x.size(1)
    return y


class CausalStack(nn.Module):
    """A loop, positions, and a norm after the last pass: the stack of a language model.

    Args:
        loop: the passes.
        positions: those inside attention, see :mod:`recurrence.position`.
        norm: applied after the last pass; None for none.
    """

    def __init__(self, loop: Loop, positions: AttentionPositions, norm: nn.Module | None):
        super().__init__()
        self.loop, self.norm, self.positions = loop, norm, positions

    def new_state(self, passes: int | None = None) -> LoopState:
        """The decoding state of a new text."""
        return LoopState(self.loop, passes)

    def forward(
        self,
        x: Tensor,
        padding: Tensor | None = None,
        state: LoopState | None = None,
        passes: int | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """The state after the last pass, (B, T, C) -> the same; see :func:`run_causal`."""
        return run_causal(self.loop, x, self.positions, None, padding, state, passes, states)

    def finish(self, x: Tensor) -> Tensor:
        """From the state after a pass to the output of the stack."""
        return x if self.norm is None else self.norm(x)
