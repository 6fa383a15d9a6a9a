"""Elastic depth: the drawn depths, and equality with a model of that depth."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from recurrence import order
from recurrence.block import Shape
from recurrence.elastic import (
    DEEPEST,
    Draw,
    at_depths,
    branches,
    depths_of,
    idle,
    make_elastic,
    may_idle,
    stops,
    trained_depths,
)
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.papers.ilr import llama_layers
from recurrence.papers.relaxed import relaxed
from recurrence.papers.ringformer import Signals, ringformer
from recurrence.papers.sret import Recursion, sret
from recurrence.papers.takase import shared_layers

SHAPE = Shape(8, 12, 2)
STACKS = {
    "ringformer": (lambda which: ringformer(SHAPE, len(which), Signals(2)), (0,) * 4, (1, 2, 3, 4, 6)),
    "universal": (lambda which: shared_layers(SHAPE, which), (0,) * 4, (1, 3, 5)),
    "sequence": (lambda which: relaxed(SHAPE, which, 2), order.sequence(2, 6), (2, 4, 6, 8)),
    "cycle": (lambda which: relaxed(SHAPE, which, 2), order.cycle(2, 6), (2, 3, 5, 6, 7)),
    "cycle_rev": (lambda which: relaxed(SHAPE, which, 2), order.cycle_rev(2, 6), (2, 3, 4, 5, 8)),
    "sandwich": (lambda which: relaxed(SHAPE, which, 2), order.sandwich(3, 6), (3, 4, 7)),
    "middle loop": (lambda which: relaxed(SHAPE, which, 2), (0, 1, 2, 1, 2, 3), (4, 6, 8)),
    "reuse map": (lambda which: llama_layers(SHAPE, which, inject=(1,)), (0, 1, 1, 1, 2, 3), (4, 5, 6, 9)),
    "sret": (lambda which: sret(SHAPE, which, Recursion(projection_width=4)), order.sequence(2, 4), (2, 4, 6)),
    "block recurrence": (lambda which: llama_layers(SHAPE, which, (0,), adapter=True), order.cycle(2, 6), (2, 4, 6)),
    "beyond one run": (lambda which: llama_layers(SHAPE, which, (0,), adapter=True), (0,), (1, 2, 4)),
}


def made(name: str, which: order.Order, seed: int = 0) -> Loop:
    torch.manual_seed(seed)
    loop = STACKS[name][0](which).double()
    for parameter in loop.parameters():
        nn.init.normal_(parameter, std=0.5)
    return loop


def states(seed: int = 3) -> Tensor:
    return torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "depth"), [(name, depth) for name, (*_, depths) in STACKS.items() for depth in depths]
)
def test_a_depth_is_the_model_of_that_depth_with_the_same_checkpoint(name, depth):
    which = STACKS[name][1]
    elastic = made(name, which)
    make_elastic(elastic, (min(STACKS[name][2]), max(STACKS[name][2])))
    built = made(name, order_at(which, depth), seed=1)
    built.load_state_dict(elastic.state_dict())
    elastic.training_depth.draw = Draw((depth,))
    elastic.set_num_updates(0)
    x, y = (states().requires_grad_() for _ in range(2))
    drawn, expected = elastic(x), built(y)
    assert torch.equal(drawn, expected)
    drawn.sum().backward(), expected.sum().backward()
    assert torch.equal(x.grad, y.grad)
    unused = {id(parameter) for parameter in elastic.parameters() if parameter.grad is None}
    assert {id(parameter) for parameter in idle(elastic, elastic.running)} == unused
    assert not torch.equal(drawn, elastic.eval()(x)) or depth == len(which)
    with at_depths({elastic: depth}):
        assert torch.equal(elastic(x), expected)
    assert torch.equal(elastic(x), made(name, which)(x))


def order_at(which: order.Order, depth: int) -> order.Order:
    """By the rule of Figure 2, not by the library's own search; of a middle loop, the loops."""
    loops = {(0, 1, 2, 1, 2, 3): ((0,), (1, 2), (3,)), (0, 1, 1, 1, 2, 3): ((0,), (1,), (2, 3))}
    if which in loops:
        first, body, last = loops[which]
        return first + body * ((depth - len(first + last)) // len(body)) + last
    blocks = 1 + max(which)
    rule = next(rule for rule in order.STRATEGIES.values() if rule.rule(blocks, len(which)) == which)
    return rule.order(blocks, depth)


def test_draws_are_a_function_of_seed_and_update():
    draws = [[Draw((1, 2, 3, 4), seed=seed)(update) for update in range(400)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    counts = Counter(draws[0])
    assert set(counts) == {1, 2, 3, 4}
    assert all(70 < count < 130 for count in counts.values())  # 100 +- 3.5 standard deviations
    assert {Draw((1, 2), seed=-1)(update) for update in range(20)} == {1, 2}
    assert {Draw((1, 2))(update, smallest=4) for update in range(20)} == {2}, "a range below the warm-up's depth"


def test_depths_warm_up_from_all_passes_to_the_smallest():
    loop = relaxed(SHAPE, (0,) * 4, 2)
    make_elastic(loop, (1, 4), depth_warmup_updates=300)
    with pytest.raises(RuntimeError, match="the depth changes in training: call model.set_num_updates"):
        _ = loop.training_depth.smallest
    drawn: dict[int, set[int]] = {}
    for update in range(600):
        loop.set_num_updates(update)
        drawn.setdefault(loop.training_depth.smallest, set()).add(len(loop.running))
        assert loop.training_depth.smallest == 4 - min(3, update // 100)
        assert stops(loop, 4, loop.training_depth.smallest) == list(range(loop.training_depth.smallest, 4))
        if update >= 300:
            assert len(loop.running) == Draw((1, 2, 3, 4))(update)
    assert drawn == {smallest: set(range(smallest, 5)) for smallest in (4, 3, 2, 1)}


def test_depths_are_multiples_of_a_step():
    assert depths_of(order.cycle(2, 4), 2, 6, step=2) == (2, 4, 6)


def test_a_range_of_absurd_depths_is_rejected_without_a_search():
    """Trying each of these depths would take minutes."""
    assert depths_of((0,) * 4, 998, DEEPEST) == (998, 999, 1000)
    with pytest.raises(FieldError, match="^depth_range=2-99999: MAX must be at most 1000 passes$"):
        depths_of((0,) * 4, 2, 99_999)


def test_mixed_depth_trains_all_passes_and_fewer():
    loops = [made("cycle", (0, 1) * 2), made("cycle", (0, 1) * 3)]
    for loop in loops:
        make_elastic(loop, mixed_depth=True)
    assert branches(loops) == [dict(zip(loops, (4, 6))), dict.fromkeys(loops, 2)]
    for loop in loops:
        make_elastic(loop, (2, len(loop.order)), mixed_depth=True)
    for update in range(9):
        for loop in loops:
            loop.set_num_updates(update)
        full, drawn = dict(zip(loops, (4, 6))), {loop: len(loop.running) for loop in loops}
        assert branches(loops) == ([full] if drawn == full else [full, drawn])
        assert not any(idle(loop, loop.running) for loop in loops)
    assert not any(map(may_idle, loops))
    loop = made("beyond one run", (0,))
    make_elastic(loop, (1, 4), mixed_depth=True)
    assert may_idle(loop)  # the adapter, where the drawn depth is the full one
    make_elastic(loops[0], (2, 4))
    assert may_idle(loops[0])


def test_trained_depths_are_those_with_a_loss():
    loop = made("cycle", (0, 1) * 3)
    for given, expected in (
        ({}, (6, 6)),
        (dict(depth_range=(2, 4)), (2, 4)),
        (dict(depth_range=(2, 4), mixed_depth=True), (2, 6)),
        (dict(depth_range=(4, 8), mixed_depth=True), (4, 8)),
        (dict(mixed_depth=True), (2, 6)),
    ):
        make_elastic(loop, **given)
        assert trained_depths(loop) == expected


@pytest.mark.parametrize(
    ("which", "given", "running", "expected"),
    [
        ((0,) * 4, {}, 4, [1, 2, 3]),
        ((0,) * 4, dict(depth_range=(2, 4)), 4, [2, 3]),
        ((0, 1, 0, 1), {}, 4, [2, 3]),
        ((0, 0, 1, 1), {}, 4, []),
    ],
)
def test_where_a_model_of_fewer_passes_ends(which, given, running, expected):
    loop = shared_layers(SHAPE, which)
    make_elastic(loop, **given)
    assert stops(loop, running) == expected


def test_contexts_of_a_depth_are_nested_and_reject_depths_that_do_not_run():
    loop = made("sequence", order.sequence(2, 6))
    with at_depths({loop: 4}):
        with at_depths({loop: 2}):
            assert loop.running == (0, 3)
        with pytest.raises(ValueError, match="depth=3: the order 0 0 0 1 1 1 does not run"), at_depths({loop: 3}):
            pass
        assert loop.running == (0, 1, 3, 4)
    assert loop.chosen is None
