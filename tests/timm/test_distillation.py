"""Distillation with timm's task: SReT's recorded losses and gradients, and DeiT's formula."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.golden import golden
from timm_plugin.training import tasks


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


def logits() -> tuple[Tensor, Tensor, Tensor]:
    """Of student and teacher, (6, 11), and labels (6,)."""
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 6, 11, dtype=torch.float64)
    return student, 3 * teacher, torch.randint(11, (6,))


def distil(temperature: float) -> tuple[dict, Tensor, Tensor]:
    """The golden file, the loss of the task and its gradient."""
    file = golden("sret_kd_loss")
    student, teacher = (Logits(file["inputs"][name]) for name in ("student", "teacher"))
    task = tasks.soft_distillation(student, teacher, temperature, dtype=torch.float64)
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


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "mixed labels"])
def test_hard_distillation_is_deits(soft):
    """Half the cross-entropy with the labels, half that with the teacher's class, for a model with one output."""
    student, teacher, labels = logits()
    target = F.one_hot(labels, 11).double().lerp(F.one_hot(labels.flip(0), 11).double(), 0.3) if soft else labels
    models = Logits(student), Logits(teacher)
    criterion = dict(soft_targets=True) if soft else dict(smoothing=0.1)
    task = tasks.hard_distillation(*models, criterion_kwargs=criterion, dtype=torch.float64)
    result = task(torch.zeros(6, 3, 2, 2, dtype=torch.float64), target)
    result["loss"].backward()
    student.requires_grad_()
    labelled = (
        -(target * student.log_softmax(1)).sum(1).mean()
        if soft
        else F.cross_entropy(student, target, label_smoothing=0.1)
    )
    expected = (labelled + F.cross_entropy(student, teacher.argmax(1))) / 2
    torch.testing.assert_close(result["loss"], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(models[0].logits.grad, torch.autograd.grad(expected, student)[0], rtol=0, atol=1e-12)
    assert models[1].logits.grad is None


def test_a_distillation_token_learns_the_teachers_class():
    torch.manual_seed(0)
    shape = dict(img_size=32, patch_size=16, embed_dim=12, depth=1, num_heads=2, num_classes=5)
    student = timm.create_model("deit_tiny_distilled_patch16_224", **shape)
    teacher = timm.create_model("vit_tiny_patch16_224", **shape)
    learning = tasks.hard_distillation(student, teacher, criterion_kwargs={})
    images, target = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    loss = learning(images, target)["loss"]
    of_labels, of_teacher = student(images)
    expected = (F.cross_entropy(of_labels, target) + F.cross_entropy(of_teacher, teacher(images).argmax(1))) / 2
    torch.testing.assert_close(loss, expected)
    assert torch.is_tensor(student.eval()(images))


def test_a_logarithm_on_both_sides_does_not_make_the_divergence_small():
    """SReT's footnote 7 says so of DeiT's loss. It is the cross-entropy less the teacher's entropy, with the gradient
    of the cross-entropy; what makes DeiT's small is that it divides by all elements, not by the images."""
    student, teacher, _ = logits()
    student.requires_grad_()
    logarithms = student.log_softmax(1), teacher.log_softmax(1)
    divergence = F.kl_div(*logarithms, reduction="batchmean", log_target=True)
    cross_entropy = published_loss(student, teacher, 1)
    torch.testing.assert_close(divergence, cross_entropy - entropy(teacher), rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(divergence, student)
    torch.testing.assert_close(gradient, torch.autograd.grad(cross_entropy, student)[0], rtol=0, atol=1e-12)
    deits = F.kl_div(*logarithms, reduction="sum", log_target=True) / student.numel()
    torch.testing.assert_close(deits * student.shape[1], divergence, rtol=0, atol=1e-12)
