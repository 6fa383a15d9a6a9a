"""Records the states after each pass and the attention weights of each pass, without changing what a model computes.

For whole calls of a model: not while decoding token by token.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import Tensor, nn

from recurrence.attention import SelfAttention, attention_weights, causal_bias
from recurrence.loop import Loop, named_loops


def require_loops(model: nn.Module) -> dict[str, Loop]:
    """The loops of a model by name. Raises ValueError if there are none."""
    found = named_loops(model)
    if not found:
        raise ValueError(f"{type(model).__name__}: has no loop over depth to look into")
    return found


@contextmanager
def recorded_states(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Within the context, records the states after each pass.

    Yields:
        For each loop, by name, the states (B, T, C) after each pass that ran in the latest call of the model.

    Raises:
        ValueError: if the model has no loop.
    """
    found: dict[str, list[Tensor]] = {}

    def listen(name: str, loop: Loop, inputs: tuple, options: dict) -> tuple[tuple, dict]:
        found[name] = [] if options.get("states") is None else options["states"]
        return inputs, {**options, "states": found[name]}

    with ExitStack() as stack:
        for name, loop in require_loops(model).items():
            stack.callback(loop.register_forward_pre_hook(partial(listen, name), with_kwargs=True).remove)
        yield found


@contextmanager
def recorded_attention(
    model: nn.Module, keep: Callable[[Tensor], Tensor] = lambda weights: weights
) -> Iterator[dict[str, list[Tensor]]]:
    """Within the context, records the self-attention weights of each pass that has self-attention.

    The weights are computed again from the queries and keys; fused attention does not return them.

    Args:
        model: its attention must be global.
        keep: maps the weights (B, H, T, S) of a pass to its record; by default, all weights are kept.

    Yields:
        For each loop, by name, one record per pass that ran in the latest call of the model.

    Raises:
        ValueError: if the model has no loop, or a loop has no attention, attends within slices, or reads the sequence
            with a state.
    """
    found: dict[str, list[Tensor]] = {}

    def begin(name: str, loop: Loop, inputs: tuple) -> None:
        found[name] = []

    def attend(
        name: str, plain: Callable, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool
    ) -> Tensor:
        mask = causal_bias(q.size(2), like=q) if causal else bias
        found[name].append(keep(attention_weights(q, k, mask)))
        return plain(q, k, v, bias, causal)

    with ExitStack() as stack:
        for name, loop in require_loops(model).items():
            stack.callback(loop.register_forward_pre_hook(partial(begin, name)).remove)
            for attention in _global_attention(name, loop):
                outer = vars(attention).get("attend")  # of a recorder around this one
                undo = (delattr, attention, "attend") if outer is None else (setattr, attention, "attend", outer)
                stack.callback(*undo)
                attention.attend = partial(attend, name, attention.attend)
        yield found


def _global_attention(name: str, loop: Loop) -> list[SelfAttention]:
    """The self-attention of the loop's blocks; raises ValueError where it has not all weights of the sequence."""
    found = [module for module in loop.blocks.modules() if isinstance(module, SelfAttention)]
    if not found:
        raise ValueError(f"{name}: has no attention")
    if any(hasattr(block, "window") for block in loop.blocks):
        raise ValueError(f"{name}: reads the sequence with a state; only global attention has all weights")
    for index, own in enumerate(loop.own or ()):
        if getattr(own, "slices", None) is not None:
            raise ValueError(f"{name}: pass {index + 1} attends within slices; only global attention has all weights")
    return found
