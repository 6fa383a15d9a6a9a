"""Early exit of images: each image leaves as it would in a batch of its own."""

import pytest
import torch
from torch import Tensor, nn

from recurrence.early_exit import moved
from recurrence.loop import Loop
from tests.support import vision
from tests.support.vision import timm


class Picked:
    """Lets every loop of a model run all passes, and then picks for each image the state with which it leaves."""

    def __init__(self, model: nn.Module, threshold: float):
        self.threshold, self.steps, self.ran = threshold, [], 0
        for loop in model.loops():
            loop.register_forward_pre_hook(self.ask, with_kwargs=True)
            loop.register_forward_hook(self.pick, with_kwargs=True)

    def ask(self, loop: Loop, inputs: tuple[Tensor], options: dict) -> tuple[tuple[Tensor], dict]:
        return inputs, {**options, "states": [inputs[0]]}

    def pick(self, loop: Loop, inputs: tuple[Tensor], options: dict, output: Tensor) -> Tensor:
        first, *states = options["states"]
        steps = torch.stack([moved(*sides) for sides in zip([first, *states], states)])  # (P, B)
        self.steps += steps.flatten().tolist()
        leaves = steps < self.threshold
        leaves[-1] = True
        picked = leaves.int().argmax(0).tolist()
        self.ran += sum(picked) + len(picked)
        return torch.stack([states[index][row] for row, index in enumerate(picked)])


@vision.every_case
@torch.no_grad()
def test_images_leave_one_by_one(case):
    model = vision.small(case)
    x = vision.images(model, 5) * torch.tensor([1.0, 0.1, 3.0, 0.5, 1.0], dtype=torch.float64)[:, None, None, None]
    measured = Picked(model, 0)
    model(x)
    threshold = 1.0001 * sorted(measured.steps)[len(measured.steps) // 2]
    expected = vision.small(case)
    reference = Picked(expected, threshold)
    leaving = vision.small(case, exit_threshold=threshold)
    torch.testing.assert_close(leaving(x), expected(x), rtol=0, atol=1e-10)
    tallies = [part.early_exit.tally for part in leaving.modules() if getattr(part, "early_exit", None) is not None]
    assert sum(tally.total for tally in tallies) == reference.ran
    assert {tally.entries for tally in tallies} == {5}
    assert len(tallies) == len(leaving.loops())


@vision.every_model
def test_the_threshold_0_changes_nothing(name):
    model, x = vision.small_with_images(name)
    assert torch.equal(vision.small(name, exit_threshold=0.0)(x), model(x))


@vision.every_registered_structure
@torch.no_grad()
def test_images_leave_under_autocast(structure):
    model = vision.small(structure, exit_threshold=0.5).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert model(vision.images(model, 3)).isfinite().all()


def test_training_runs_all_passes():
    model = vision.small("uit", exit_threshold=1e9).train()
    model(vision.images(model))
    assert not model.early_exit.tally.entries


@pytest.mark.parametrize("model", ["uit", "sret_t"])
def test_tracing_says_what_is_in_its_way(model):
    model = vision.small(model, exit_threshold=0.1)
    x = vision.images(model)
    for trace, arguments in ((torch.jit.script, ()), (torch.jit.trace, (x,)), (torch.export.export, ((x,),))):
        with pytest.raises(RuntimeError, match="exit_threshold: a traced graph cannot leave a loop early"):
            trace(model, *arguments)


@pytest.mark.parametrize("model", ["uit", "sret_t"])
def test_bad_thresholds_are_rejected(model):
    with pytest.raises(ValueError, match="exit_threshold=-0.1: must be >= 0"):
        timm.create_model(model, exit_threshold=-0.1)
    with pytest.raises(ValueError, match="exit_threshold='often': must be a number"):
        timm.create_model(model, exit_threshold="often")
