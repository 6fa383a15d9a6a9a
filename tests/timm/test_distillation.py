"""Distillation with timm's task: SReT's recorded losses and gradients, and DeiT's formula; its teachers."""

import argparse

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.golden import golden
from timm_plugin import task as tasks
from timm_plugin.checkpoints import load
from timm_plugin.sret import CIFAR10
from timm_plugin.training import options
from timm_plugin.training.build import build, load_teacher, make_task


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


def logits() -> tuple[Tensor, Tensor, Tensor]:
    """Of student and teacher, (6, 11), and labels (6,)."""
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 6, 11, dtype=torch.float64)
    return student, 3 * teacher, torch.randint(11, (6,))


@pytest.mark.parametrize("temperature", [1, 2, 4])
def test_soft_distillation_is_srets(temperature):
    """By the recorded losses, and for temperature 1 the recorded gradient; timm's loss leaves out the entropy."""
    file = golden("sret_kd_loss")
    student, teacher = (file["inputs"][name] for name in ("student", "teacher"))
    models = Logits(student), Logits(teacher)
    task = tasks.soft_distillation(*models, temperature, dtype=torch.float64)
    loss = task(torch.zeros(len(student), 3, 2, 2, dtype=torch.float64), torch.zeros(len(student), dtype=torch.long))
    loss["loss"].backward()
    expected = published_loss(student.requires_grad_(), teacher, temperature)
    entropy = published_loss(teacher, teacher, temperature)
    recorded = file["loss"] if temperature == 1 else file["outputs"]["loss_with_temperature"][f"T{temperature}"].item()
    assert expected.item() == pytest.approx(recorded, abs=1e-12)
    assert (loss["loss"] + entropy).item() == pytest.approx(recorded, abs=1e-12)
    gradient = file["grads"]["student"] if temperature == 1 else torch.autograd.grad(expected, student)[0]
    torch.testing.assert_close(models[0].logits.grad, gradient, rtol=0, atol=1e-12)
    assert models[1].logits.grad is None


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


def test_a_teacher_has_the_images_classes_and_sees_them_as_in_its_training(tmp_path):
    path, halves = tmp_path / "last.pth.tar", (0.5, 0.5, 0.5)
    trained = argparse.Namespace(mean=halves, std=halves, label_names=["cat", "dog"])
    weights = timm.create_model("test_vit", num_classes=2).state_dict()
    torch.save(dict(arch="test_vit", epoch=0, state_dict=weights, args=trained), path)
    words = ["images", "--output", "run", "--model", "sret_nano", "--teacher", "test_vit"]
    args = options.parser("").parse_args([*words, "--teacher-checkpoint", str(path)])
    args.num_classes, args.label_names = 2, ["cat", "dog"]
    config = load_teacher(args).pretrained_cfg
    assert (config["mean"], config["std"]) == (halves, halves)
    args.label_names = ["cat", "hen"]
    rule = r"must have the images' classes: lacks 1 \(hen\) and also has 1 \(dog\)"
    with pytest.raises(options.OptionError, match=rf"^--teacher-checkpoint {path}: {rule}"):
        load_teacher(args)


def test_a_teacher_has_the_preprocessing_of_the_tag_that_was_trained(tmp_path):
    path, name = tmp_path / "last.pth.tar", "vit_small_patch16_224"
    weights = timm.create_model(name, num_classes=2).state_dict()
    torch.save(dict(arch=f"{name}.dino", epoch=0, state_dict=weights, args=argparse.Namespace()), path)
    words = ["images", "--output", "run", "--model", "sret_nano", "--teacher", name, "--teacher-checkpoint", str(path)]
    args = options.parser("").parse_args(words)
    args.num_classes, args.label_names = 2, ["cat", "dog"]
    assert load_teacher(args).pretrained_cfg["mean"] == timm.get_pretrained_cfg(f"{name}.dino").mean
    assert timm.get_pretrained_cfg(f"{name}.dino").mean != timm.get_pretrained_cfg(name).mean


def test_a_teacher_is_the_model_of_its_training(tmp_path):
    """No tensor of a checkpoint shows the number of heads, or the pooling."""
    path = tmp_path / "last.pth.tar"
    kwargs = dict(patch_size=8, embed_dim=32, depth=2, num_heads=4, global_pool="avg")
    model = timm.create_model("ringformer_vit", img_size=32, num_classes=2, **kwargs)
    seen = dict(img_size=32, num_classes=2, label_names=["cat", "dog"])
    trained = argparse.Namespace(model_kwargs=list(kwargs.items()), **seen)
    torch.save(dict(arch="ringformer_vit", epoch=0, state_dict=model.state_dict(), args=trained), path)
    words = ["images", "--output", "run", "--model", "sret_nano", "--img-size", "64", "--teacher", "ringformer_vit"]
    for more, heads in (([], 4), (["--teacher-kwargs", "num_heads=2"], 2)):
        args = options.parser("").parse_args([*words, "--teacher-checkpoint", str(path), *more])
        args.num_classes, args.label_names = 2, ["cat", "dog"]
        teacher = load_teacher(args).eval()
        assert teacher.config.num_heads == heads
        expected = load(path, img_size=64, num_heads=heads)
        images = torch.randn(2, 3, 64, 64)
        assert torch.equal(teacher(images), expected(images))


def test_pretrained_weights_of_a_teacher_are_for_the_images_classes():
    words = ["images", "--output", "run", "--model", "sret_t", "--img-size", "64", "--teacher", "sret_nano"]
    args = options.parser("").parse_args(words)
    args.num_classes, args.label_names = 10, list(CIFAR10)
    assert load_teacher(args).num_classes == 10
    args.label_names = [*CIFAR10[:9], "wagon"]
    rule = r"its weights must be for the images' classes: lacks 9 \(wagon\) and also has 9 \(truck\)"
    with pytest.raises(options.OptionError, match=f"^--teacher sret_nano: {rule}: needs --teacher-checkpoint"):
        load_teacher(args)


@pytest.mark.parametrize(
    ("words", "temperature", "labelled"), [(["--temperature", "2"], 2.0, 0.0), (["--distillation", "hard"], 1.0, 0.5)]
)
def test_the_trainer_distils_as_the_options_say(words, temperature, labelled):
    words = ["images", "--output", "run", "--model", "sret_t", "--img-size", "64", "--teacher", "sret_nano", *words]
    args = options.parser("").parse_args(words)
    args.num_classes, args.label_names = 10, list(CIFAR10)
    task = make_task(args, build("model", args, num_classes=10), torch.device("cpu"))
    assert (task.temperature, task.task_loss_weight) == (temperature, labelled)
    assert any(isinstance(module, tasks.HardLabels) for module in task.modules()) == bool(labelled)
