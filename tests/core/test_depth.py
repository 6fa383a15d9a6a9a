"""A loop at another depth than the trained one: which pass's parameters a pass takes, and what is logged."""

import pytest
import torch
from torch import nn

from recurrence import order
from recurrence.block import Shape
from recurrence.depth import same_kind, source_passes
from recurrence.loop import Loop
from recurrence.papers.ringformer import Signals, ringformer
from tests.support import stacks


def owning_loop(which: order.Order, seed: int = 0) -> Loop:
    """A loop of width 8 whose passes own LayerNorms and level signals of rank 2, all random."""
    torch.manual_seed(seed)
    return stacks.randomise(ringformer(Shape(8, 11, 2), which, Signals(2)), seed)


@pytest.mark.parametrize(
    ("trained", "used", "sources"),
    [
        ((0, 0, 0), (0, 0), (0, 1)),
        ((0, 0), (0, 0, 0, 0), (0, 1, 1, 1)),
        (order.cycle(2, 4), order.cycle(2, 6), (0, 1, 2, 3, 2, 3)),
        (order.sequence(2, 4), order.sequence(2, 2), (0, 2)),
        (order.sequence(2, 4), order.sequence(2, 6), (0, 1, 1, 2, 3, 3)),
        (order.cycle_rev(2, 4), order.cycle(2, 4), (0, 1, 3, 2)),
    ],
)
def test_a_pass_uses_the_parameters_of_the_same_run_of_its_block(trained, used, sources):
    assert source_passes(trained, used) == sources


@pytest.mark.parametrize(
    ("which", "passes", "expected"),
    [
        ((0, 0, 0), 5, (0,) * 5),
        ((0, 0, 1, 1), 6, (0, 0, 0, 1, 1, 1)),
        ((0, 1, 0, 1), 6, (0, 1, 0, 1, 0, 1)),
        ((0, 1, 1, 0), 6, (0, 1, 0, 1, 1, 0)),
        ((0, 0, 1, 1), 5, None),  # sequence would store a third block
        ((0, 1, 0, 1), 1, None),
        ((0, 0, 0, 1), 8, (0,) * 7 + (1,)),  # a loop in the middle, or at either end
        ((0, 1, 1, 2, 3), 4, (0, 1, 2, 3)),
        ((0, 1, 2, 1, 2, 1, 2, 3), 6, (0, 1, 2, 1, 2, 3)),
        ((0, 1, 2, 1, 2, 3), 5, None),
        ((0, 1, 2, 1, 2, 3), 2, None),
        ((0, 0, 1, 1, 2), 3, None),  # two loops
        ((0, 1, 0, 0), 2, None),  # a block that runs once within the loop
        ((0, 1, 1), 2, (0, 1)),
        ((0, 1, 1), 4, None),  # (0, 1, 1, 0) by CYCLE (REV), (0, 1, 1, 1) by a loop
    ],
)
def test_an_order_keeps_its_strategy_at_another_depth(which, passes, expected):
    assert same_kind(which, passes) == expected


@pytest.mark.parametrize("noted", [True, False])
def test_loading_gives_each_pass_the_parameters_of_its_source_pass(noted, caplog):
    trained, used = owning_loop(order.cycle(2, 4)), owning_loop(order.cycle(2, 6), seed=1)
    weights = trained.state_dict() if noted else dict(trained.state_dict())
    weights["safe"] = torch.tensor([1.0, 4.0])  # which early versions stored
    used.load_state_dict(weights, assign=True)
    assert len({tensor.data_ptr() for tensor in used.parameters()}) == len(list(used.parameters()))
    for own, source in zip(used.own, (0, 1, 2, 3, 2, 3)):
        expected = trained.own[source].state_dict()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in own.state_dict().items())
    assert caplog.messages == [": runs at depth 6 (0 1 0 1 0 1), trained at 4 (0 1 0 1)"]


def test_a_saved_state_dict_notes_its_order(tmp_path):
    torch.save(owning_loop((0, 1, 1)).state_dict(), tmp_path / "loop.pt")
    loaded = torch.load(tmp_path / "loop.pt", weights_only=True)
    assert loaded._metadata[""]["order"] == (0, 1, 1)
    owning_loop((0, 1, 1), seed=1).load_state_dict(loaded)


def noting_loop(which: order.Order) -> Loop:
    """A loop of two blocks that stores its order as a tensor."""
    loop = Loop([nn.Linear(2, 2), nn.Linear(2, 2)], which)
    loop.note_order()
    return loop


def test_an_order_stored_as_a_tensor_survives_without_metadata(caplog):
    trained, used = noting_loop((0, 1, 0, 1)), noting_loop((0, 1))
    used.load_state_dict(dict(trained.state_dict()))
    assert caplog.messages == [": runs at depth 2 (0 1), trained at 4 (0 1 0 1)"]
    assert used.state_dict()["noted"].tolist() == [0, 1]


def test_a_checkpoint_without_its_order_loads_without_a_warning(caplog):
    weights = dict(noting_loop((0, 1, 0)).state_dict())
    del weights["noted"]
    noting_loop((0, 1)).load_state_dict(weights)
    own = nn.Linear(2, 2), nn.Identity()  # passes at the end that own nothing leave no key
    ends_bare = Loop([nn.Linear(2, 2)], (0, 0), own)
    ends_bare.load_state_dict(dict(ends_bare.state_dict()))
    assert not caplog.messages
