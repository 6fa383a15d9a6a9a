"""Early exit: the measured step, and the state that later tokens see of tokens that left early."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recurrence.causal import CausalStack
from recurrence.early_exit import EarlyExitState, exit_rule, moved, run_until_each_exits, run_until_exit
from recurrence.errors import FieldError
from recurrence.loop import Loop
from tests.support.exit_reference import ExitReference, some_exits
from tests.support.llama import llama_stack, random_states

EXACT = dict(rtol=0, atol=1e-9)


class Halfway(nn.Module):
    """Moves half of the way to 1: each pass makes half the step of the one before."""

    def forward(self, x: Tensor, **unused: Any) -> Tensor:
        return (1 + x) / 2


def halfway(passes: int = 8) -> Loop:
    return Loop([Halfway()], (0,) * passes)


def test_the_step_is_measured_relative_to_where_it_starts():
    before, after = torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]]]), torch.tensor([[[3.0, 4.5]], [[1.0, 1.0]]])
    torch.testing.assert_close(moved(before, after), torch.tensor([0.1, 1.0]))


def test_a_state_may_be_longer_than_the_largest_half():
    before = torch.full((1, 64, 512), 2000, dtype=torch.float16)
    torch.testing.assert_close(moved(before, 1.5 * before), torch.tensor([0.5]))


def test_padding_does_not_count():
    before, after = random_states(2, 5, 3), random_states(2, 5, 3, seed=1)
    padding = torch.tensor([[False] * 5, [False, False, True, True, True]])
    alone = moved(before[1:, :2], after[1:, :2])
    torch.testing.assert_close(moved(before, after, padding)[1:], alone)
    torch.testing.assert_close(moved(before, after, padding)[:1], moved(before[:1], after[:1]))


def test_a_batch_leaves_with_the_last_of_its_entries():
    """From 3 on, the steps are 1/3, 1/4, 1/6, 1/10, ...; from 1.5 on, 1/6, 1/10, ..."""
    x = torch.tensor([3.0, 1.5]).view(2, 1, 1)
    for threshold, passes in ((0.3, 2), (0.2, 3), (0.11, 4), (1e-6, 8)):
        rule = exit_rule("batch", threshold, 8)
        states: list = []
        y = run_until_exit(halfway(), x, rule, states=states)
        assert (len(states), rule.tally.average) == (passes, passes)
        torch.testing.assert_close(y, halfway(passes)(x), rtol=0, atol=0)


def test_entries_leave_one_by_one():
    x, rule = torch.tensor([3.0, 1.5, 1.0, 3.0]).view(4, 1, 1), exit_rule("images", 0.2, 8)
    y = run_until_each_exits(halfway(), x, rule)
    ran = (3, 1, 1, 3)
    assert (rule.tally.total, rule.tally.entries) == (sum(ran), 4)
    alone = [halfway(passes)(entry[None]) for entry, passes in zip(x, ran)]
    torch.testing.assert_close(y, torch.cat(alone), rtol=0, atol=0)


def test_an_injected_input_is_that_of_the_first_pass():
    loop, x = Loop([Halfway()], (0,) * 4, inject=(0,)), torch.full((1, 1, 1), 3.0)
    states, expected = [], []
    run_until_exit(loop, x, exit_rule("text", 1e-12, 4), states=states)
    loop(x, states=expected)
    torch.testing.assert_close(states, expected, rtol=0, atol=0)


def test_without_a_threshold_there_is_no_way_out():
    assert exit_rule("nowhere", 0.0, 4) is None
    for value in (-0.1, float("nan")):
        with pytest.raises(FieldError, match=f"exit_threshold={value}: must be >= 0, where 0 runs all passes"):
            exit_rule("nowhere", value, 4)


def arguments_for(model: CausalStack) -> Callable[[Tensor], dict[str, Any]]:
    return lambda x: model.arguments(x, None, 0)


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["none", "rotary", "alibi", "relative"])
@pytest.mark.parametrize("inject", [(), (0, 2)], ids=["", "injected"])
def test_later_tokens_see_the_states_that_left(encoding, inject):
    model, x = llama_stack(encoding, inject=inject), random_states(1, 50, 12)
    threshold = some_exits(ExitReference(model.loop, arguments_for(model), 0), x)
    reference = ExitReference(model.loop, arguments_for(model), threshold)
    rule = exit_rule("text", threshold, 5)
    loop_state = EarlyExitState(model.loop, rule)
    for t in range(50):
        found = loop_state.read(x[:, t : t + 1], lambda read, start: model.arguments(read, None, start))
        torch.testing.assert_close(found, reference.read(x[:, t : t + 1]), **EXACT)
    assert (rule.tally.total, rule.tally.entries) == (reference.ran, 50)
    assert 60 < reference.ran < 240


@torch.no_grad()
def test_states_that_left_follow_reordering():
    model, chance = llama_stack("rotary", inject=(0,)), torch.Generator().manual_seed(0)
    threshold = some_exits(ExitReference(model.loop, arguments_for(model), 0), random_states(1, 30, 12))
    reference, rows = ExitReference(model.loop, arguments_for(model), 1.5 * threshold), 4
    loop_state = EarlyExitState(model.loop, exit_rule("text", 1.5 * threshold, 5))
    for t in range(40):
        x = random_states(1, 1, 12, seed=t).repeat(rows, 1, 1) + 0.1 * random_states(rows, 1, 12, seed=100 + t)
        found = loop_state.read(x, lambda read, start: model.arguments(read, None, start))
        torch.testing.assert_close(found, reference.read(x), **EXACT)
        order = torch.randint(rows, (rows - (t in (10, 25)),), generator=chance)
        rows = len(order)
        loop_state.reorder(order)
        reference.reorder(order)
    assert 60 < reference.ran < 190


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["rotary", "alibi", "relative"])
def test_left_padding_does_not_change_where_a_text_leaves(encoding):
    model, x = llama_stack(encoding), random_states(1, 20, 12)
    padded = torch.cat([random_states(1, 6, 12, seed=1), x], dim=1)
    padding = torch.arange(26)[None] < 6
    threshold = some_exits(ExitReference(model.loop, arguments_for(model), 0), x)
    found = []
    for text, mask in ((x, None), (padded, padding)):
        rule = model.early_exit = exit_rule("text", threshold, 5)
        state = model.new_state()
        outputs = [model(text[:, :-10], None if mask is None else mask[:, :-10], state)]
        for t in range(10):
            end = text.size(1) - 9 + t
            outputs.append(model(text[:, end - 1 : end], None if mask is None else mask[:, :end], state))
        found.append((torch.cat(outputs, dim=1)[:, -20:], rule.tally.total))
    torch.testing.assert_close(found[1][0], found[0][0], **EXACT)
    assert found[0][1] == found[1][1] < 11 * 5


def test_an_entry_of_padding_alone_has_not_moved():
    before, after = random_states(2, 3, 4), random_states(2, 3, 4, seed=1)
    assert moved(before, after, torch.tensor([[False] * 3, [True] * 3])).tolist()[1] == 0
