"""Late loops: each stored block runs once until an update, then the whole order."""

import pytest
import torch

from recurrence.elastic import idle, make_elastic, may_idle, trained_depths
from recurrence.papers.takase import shared_layers
from tests.core.test_elastic import SHAPE, made, states


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("ringformer", (0,) * 4),
        ("middle loop", (0, 1, 2, 1, 2, 3)),
        ("cycle", (0, 1, 1, 0, 2, 1)),
        ("sret", (0, 0, 1, 1)),
    ],
)
def test_parameters_of_loops_that_have_not_begun_are_neither_moved_nor_decayed(name, which):
    loop = made(name, which)
    make_elastic(loop, loop_after_updates=2)
    optimizer = torch.optim.AdamW(loop.parameters(), lr=0.1, weight_decay=0.5)
    assert may_idle(loop)
    assert trained_depths(loop) == (len(which), len(which))  # validation reports no other depth
    with pytest.raises(RuntimeError, match="call model.set_num_updates"):
        loop(states())
    for update in range(4):
        loop.set_num_updates(update)
        before = {key: parameter.detach().clone() for key, parameter in loop.named_parameters()}
        optimizer.zero_grad()
        loop(states(update)).square().sum().backward()
        optimizer.step()
        unmoved = {key for key, parameter in loop.named_parameters() if torch.equal(parameter, before[key])}
        runs = [which.index(block) for block in range(max(which) + 1)]
        later = {key for key in before if key.startswith("own.") and int(key.split(".")[1]) not in runs}
        assert unmoved == (later if update < 2 else set())
        left_out = {id(parameter) for parameter in idle(loop, loop.running)}
        assert unmoved == {key for key, parameter in loop.named_parameters() if id(parameter) in left_out}


def test_where_there_is_nothing_to_begin_or_to_leave_out():
    loop, plain = (shared_layers(SHAPE, which) for which in ((0, 1, 1, 2), (0, 1, 2)))
    for each in (loop, plain):
        make_elastic(each, loop_after_updates=2)
    assert not may_idle(loop), "its passes own nothing"
    assert plain.training_depth.loop_after == 0
    assert "looping" not in plain.state_dict()


def test_a_checkpoint_from_before_the_loops_began_runs_what_was_trained(caplog):
    which = (0, 1, 1, 1, 2)
    trained, x = made("middle loop", which), states()
    make_elastic(trained, loop_after_updates=3)
    trained.set_num_updates(2)
    early, used = {key: tensor.clone() for key, tensor in trained.state_dict().items()}, made("middle loop", which, 1)
    used.load_state_dict(early)
    assert torch.equal(used(x), trained.eval()(x))
    assert caplog.messages == [
        ": runs each block once, 3 of 5 passes, as in training: the checkpoint is from before its loops began"
    ]
    assert "looping" not in used.state_dict()
    trained.set_num_updates(3)
    used.load_state_dict(trained.state_dict())
    assert torch.equal(used(x), trained(x))
    assert len(used.running) == 5
    mean = {key: (tensor + early[key]) / 2 for key, tensor in trained.state_dict().items()}
    used.load_state_dict(mean)  # the mean of both loops
    assert len(used.running) == 5
    resumed = made("middle loop", which, 1)
    make_elastic(resumed, loop_after_updates=3)
    resumed.load_state_dict(early)
    assert len(resumed.running) == 3
    assert len(caplog.messages) == 1  # where training goes on there is nothing to warn of
    used.load_state_dict(early)
    used.train().set_num_updates(0)  # of a training without late loops
    assert len(used.running) == 5
