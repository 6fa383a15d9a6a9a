"""SReT's soft distillation, made of timm's task: recorded losses and gradients of the published code."""

import sys

import pytest
import torch
from torch import Tensor, nn

from tests import cli, models

sys.path.insert(0, str(cli.REPOSITORY / "recipes"))

import train_image  # noqa: E402


class Logits(nn.Module):
    """A model whose output is its parameter, whatever the images."""

    pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}

    def __init__(self, logits: Tensor):
        super().__init__()
        self.logits = nn.Parameter(logits.clone())
        self.num_classes, self.in_chans = logits.shape[1], 3

    def forward(self, images: Tensor) -> Tensor:
        return self.logits + images.mean()  # not the leaf itself: that one asks for a gradient in any case


def published_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The formula: soft cross entropy, both logits divided by the temperature, the mean over the batch."""
    return -((teacher / temperature).softmax(1) * (student / temperature).log_softmax(1)).sum(1).mean()


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy of the distributions: what the loss of timm leaves out."""
    return published_loss(logits, logits, 1)


def distil(temperature: float) -> tuple[dict, Tensor, Tensor]:
    """The golden file, the loss of the task and its gradient."""
    file = models.golden("sret_kd_loss")
    student, teacher = (Logits(file["inputs"][name]) for name in ("student", "teacher"))
    task = train_image.soft_distillation(student, teacher, temperature, dtype=torch.float64)
    labels = torch.zeros(len(student.logits), dtype=torch.long)
    loss = task(torch.zeros(len(labels), 3, 2, 2, dtype=torch.float64), labels)["loss"]
    loss.backward()
    assert teacher.logits.grad is None
    return file, loss.detach(), student.logits.grad


def test_gradient_is_the_recorded_one():
    file, loss, gradient = distil(1)
    torch.testing.assert_close(gradient, file["grads"]["student"], rtol=0, atol=1e-12)
    assert loss + entropy(file["inputs"]["teacher"]) == pytest.approx(file["loss"], abs=1e-12)


@pytest.mark.parametrize("temperature", [2, 4])
def test_temperature_is_that_of_the_published_code(temperature):
    file, loss, gradient = distil(temperature)
    student, teacher = file["inputs"]["student"].requires_grad_(), file["inputs"]["teacher"]
    expected = published_loss(student, teacher, temperature)
    recorded = file["outputs"]["loss_with_temperature"]
    assert expected.item() == pytest.approx(recorded[f"T{temperature}"].item(), abs=1e-12)
    assert (loss + entropy(teacher / temperature)).item() == pytest.approx(expected.item(), abs=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, student)[0], rtol=0, atol=1e-12)
