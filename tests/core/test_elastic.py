"""Elastic depth: which depths updates draw, supervise and report, and which parameters then have no gradient."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from recurrence import order
from recurrence.block import Shape
from recurrence.depth import passes_at
from recurrence.elastic import DEEPEST, TrainingDepth, branches, depths_of, idle, may_idle, training_depth
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.papers.ilr import llama_layers
from recurrence.papers.ringformer import Signals, ringformer
from recurrence.papers.sret import Recursion, sret
from recurrence.papers.takase import shared_layers
from tests.support import guide

SHAPE = Shape(8, 12, 2)


def with_signals(which: order.Order) -> Loop:
    """Whose passes own LayerNorms and level signals."""
    return ringformer(SHAPE, which, Signals(2))


STACKS = {
    "ringformer": (with_signals, (0,) * 4, (1, 2, 3, 4, 6)),
    "universal": (lambda which: shared_layers(SHAPE, which), (0,) * 4, (1, 3, 5)),
    "sequence": (with_signals, order.sequence(2, 6), (2, 4, 6, 8)),
    "cycle": (with_signals, order.cycle(2, 6), (2, 3, 5, 6, 7)),
    "cycle_rev": (with_signals, order.cycle_rev(2, 6), (2, 3, 4, 5, 8)),
    "sandwich": (with_signals, order.sandwich(3, 6), (3, 4, 7)),
    "middle loop": (with_signals, (0, 1, 2, 1, 2, 3), (4, 6, 8)),
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
    built = made(name, order_at(which, depth), seed=1)
    built.load_state_dict(elastic.state_dict())
    x, y = (states().requires_grad_() for _ in range(2))
    drawn, expected = elastic(x, depth), built(y)
    assert torch.equal(drawn, expected)
    drawn.sum().backward(), expected.sum().backward()
    assert torch.equal(x.grad, y.grad)
    unused = {id(parameter) for parameter in elastic.parameters() if parameter.grad is None}
    assert {id(parameter) for parameter in idle(elastic, [passes_at(which, depth)])} == unused
    assert not torch.equal(drawn, elastic(x)) or depth == len(which)


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
    draws = [[TrainingDepth((0,) * 4, (1, 2, 3, 4), seed=seed).depth(u) for u in range(400)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    counts = Counter(draws[0])
    assert set(counts) == {1, 2, 3, 4}
    assert all(70 < count < 130 for count in counts.values())  # 100 +- 3.5 standard deviations
    assert draws[0][:12] == [3, 2, 2, 1, 2, 2, 1, 2, 3, 3, 4, 1], "those of earlier versions, so that runs resume"
    assert {TrainingDepth((0,) * 2, (1, 2), seed=-1).depth(update) for update in range(20)} == {1, 2}


def test_depths_warm_up_from_all_passes_to_the_smallest():
    depth = training_depth((0,) * 4, (1, 4), depth_warmup_updates=300)
    after = training_depth((0,) * 4, (1, 4))
    for undrawn in (depth.depth, depth.smallest, after.depth, after.stops):
        with pytest.raises(RuntimeError, match="the depth changes in training: call model.set_num_updates"):
            undrawn(None)
    drawn: dict[int, set[int]] = {}
    for update in range(600):
        smallest = depth.smallest(update)
        drawn.setdefault(smallest, set()).add(depth.depth(update))
        assert smallest == 4 - min(3, update // 100)
        assert depth.stops(update) == list(range(smallest, depth.depth(update)))
        if update >= 300:
            assert depth.depth(update) == after.depth(update)
    assert drawn == {smallest: set(range(smallest, 5)) for smallest in (4, 3, 2, 1)}
    below = training_depth((0,) * 4, (1, 2), depth_warmup_updates=9)
    assert {below.depth(update) for update in range(4)} == {2}, "a range below the warm-up's depth"


def test_depths_are_multiples_of_a_step_or_count_in_units():
    assert depths_of(order.cycle(2, 4), 2, 6, step=2) == (2, 4, 6)
    assert depths_of(order.sequence(2, 4), 1, 3, unit=2) == (2, 4, 6)
    units, passes = training_depth((0, 0, 1, 1), (1, 3), unit=2), training_depth((0, 0, 1, 1), (2, 6))
    assert [units.depth(update) for update in range(20)] == [passes.depth(update) for update in range(20)]
    with pytest.raises(FieldError, match="^depth_range=1-4: the order 0 1 2 1 2 cannot run at depth 2"):
        depths_of((0, 1, 2, 1, 2), 1, 4, unit=2)


def test_a_range_of_absurd_depths_is_rejected_without_a_search():
    """Trying each of these depths would take minutes."""
    assert depths_of((0,) * 4, 998, DEEPEST) == (998, 999, 1000)
    with pytest.raises(FieldError, match="^depth_range=2-99999: MAX must be at most 1000 passes$"):
        depths_of((0,) * 4, 2, 99_999)


def test_mixed_depth_trains_all_passes_and_fewer():
    orders = [(0, 1) * 2, (0, 1) * 3]
    once = [training_depth(which, mixed_depth=True) for which in orders]
    assert branches(once, None) == [[4, 6], [2, 2]]
    drawn = [training_depth(which, (2, len(which)), mixed_depth=True) for which in orders]
    for update in range(9):
        shallow = [depth.depth(update) for depth in drawn]
        assert branches(drawn, update) == ([[4, 6]] if shallow == [4, 6] else [[4, 6], shallow])
    alone = [training_depth(which, (2, len(which))) for which in orders]
    assert branches(alone, 3) == [[depth.depth(3) for depth in alone]]
    loops = [made("cycle", which) for which in orders]
    assert not any(map(may_idle, loops, once))
    assert not any(map(may_idle, loops, drawn))
    assert all(map(may_idle, loops, alone))
    # The adapter, where the drawn depth is the full one.
    assert may_idle(made("beyond one run", (0,)), training_depth((0,), (1, 4), mixed_depth=True))


def test_the_ends_are_depths_with_a_loss():
    for given, expected in (
        ({}, (6, 6)),
        (dict(depth_range=(2, 4)), (2, 4)),
        (dict(depth_range=(2, 4), mixed_depth=True), (2, 6)),
        (dict(depth_range=(4, 8), mixed_depth=True), (4, 8)),
        (dict(mixed_depth=True), (2, 6)),
    ):
        assert training_depth((0, 1) * 3, **given).ends == expected


@pytest.mark.parametrize(
    ("which", "given", "expected"),
    [
        ((0,) * 4, {}, [1, 2, 3]),
        ((0,) * 4, dict(depth_range=(2, 4)), [2, 3]),
        ((0, 1, 0, 1), {}, [2, 3]),
        ((0, 1) * 3, dict(step=2), [2, 4]),
        ((0, 0, 1, 1), {}, []),
    ],
)
def test_where_a_model_of_fewer_passes_ends(which, given, expected):
    assert training_depth(which, **given).stops_of(len(which)) == expected


def test_the_guide_trains_a_loop_of_the_core_alone():
    names: dict = {}
    exec(guide.example("extending.md", "training_depth(order").replace("range(100)", "range(3)"), names)
    assert names["loss"].isfinite()
    assert {names["drawn"].depth(update) for update in range(99)} == {2, 3, 4, 5, 6}
