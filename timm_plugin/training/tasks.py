"""What the image trainer trains: the model, and its task, classification or the distillation of a teacher."""

import argparse

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recurrence.errors import misfit
from timm_plugin._task import task
from timm_plugin.task import DeepSupervisionTask
from timm_plugin.training.options import DEPTH, reject


def build(option: str, args: argparse.Namespace, **settings: object) -> nn.Module:
    """Builds the "model" or the "teacher", at --img-size if its constructor takes a size.

    Raises:
        OptionError: the constructor rejects an argument, or the weights or the images do not fit the model.
    """
    name, kwargs = getattr(args, option), dict(getattr(args, f"{option}_kwargs"))
    if option == "model":
        kwargs |= {key: value for key in DEPTH if (value := getattr(args, key)) is not None and value is not False}
        if args.depth_range:
            kwargs.setdefault("depth_seed", args.seed)
    if args.img_size and timm.get_pretrained_cfg(name).fixed_input_size:
        kwargs["img_size"] = args.img_size
    try:
        model = timm.create_model(name, **settings, **kwargs)
    except (AssertionError, OSError, RuntimeError, TypeError, ValueError) as error:
        # timm's error about a missing file has no message.
        reason = misfit(error) or " ".join(str(error).split()) or "must name files that exist"
        reject(f"{option}_kwargs", kwargs, reason)
    if getattr(model, "in_chans", 3) != 3:
        reject(f"{option}_kwargs", f"in_chans={model.in_chans}", "must be 3, as images are read in RGB")
    return model


def soft_distillation(student: nn.Module, teacher: nn.Module, temperature: float, **settings) -> task.TrainingTask:
    """SReT's distillation: the mean of -sum softmax(teacher / T) log_softmax(student / T), without hard labels.

    timm's loss is the Kullback-Leibler divergence times T^2; the weight cancels T^2. The result differs from the loss
    above by the teacher's entropy, which has no gradient. Source: arXiv 2111.05297 and its published code.
    """
    weights = dict(task_loss_weight=0.0, distill_loss_weight=temperature**-2)
    return task.LogitDistillationTask(student, teacher, temperature=temperature, **weights, **settings)


class HardLabels(nn.Module):
    """Wraps a teacher so that its softmax is exactly one-hot at its most probable class.

    Args:
        teacher: a model that returns logits (B, classes).
    """

    def __init__(self, teacher: nn.Module):
        super().__init__()
        self.teacher, self.pretrained_cfg = teacher, teacher.pretrained_cfg

    def forward(self, images: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> (B, classes): 1e4 for the most probable class, 0 for the others."""
        logits = self.teacher(images)
        return 1e4 * F.one_hot(logits.argmax(1), logits.shape[1]).to(logits.dtype)


def hard_distillation(student: nn.Module, teacher: nn.Module, **settings) -> task.TrainingTask:
    """DeiT's distillation: the mean of the loss on the labels and the loss on the teacher's classes.

    A student with a distillation token learns the teacher's classes with that token's output, any other student with
    its only output. timm's task computes a Kullback-Leibler divergence, which for a one-hot distribution is the
    cross-entropy. Source: DeiT (arXiv 2012.12877), section 4, and its published code; SReT's Table 3, "GT+Hard
    Distill".
    """
    if hasattr(student, "set_distilled_training"):
        return task.TokenDistillationTask(student, teacher, distill_type="hard", task_loss_weight=0.5, **settings)
    return task.LogitDistillationTask(student, HardLabels(teacher), task_loss_weight=0.5, **settings)


def load_teacher(args: argparse.Namespace) -> nn.Module:
    """The teacher with the weights of --teacher-checkpoint, by default timm's pretrained ones.

    Raises:
        OptionError: as :func:`build` does, or the weights do not fit the teacher, or are for another number of classes.
    """
    teacher = build("teacher", args, num_classes=args.num_classes, pretrained=not args.teacher_checkpoint)
    classes = teacher.pretrained_cfg["num_classes"]
    if not args.teacher_checkpoint and classes != args.num_classes:  # timm has drawn it a new classifier
        rule = f"its weights are for {classes} classes, the images have {args.num_classes}: needs --teacher-checkpoint"
        reject("teacher", args.teacher, rule)
    if args.teacher_checkpoint:
        try:
            timm.models.load_checkpoint(teacher, args.teacher_checkpoint)
        except (RuntimeError, ValueError) as error:
            reject("teacher_checkpoint", args.teacher_checkpoint, misfit(error) or " ".join(str(error).split()))
    return teacher


def make_task(args: argparse.Namespace, model: nn.Module, device: torch.device) -> task.TrainingTask:
    """The training task: classification of the labels, or with --teacher one of the two kinds of distillation.

    Raises:
        OptionError: --teacher with a model that is trained at several depths at once, or as :func:`load_teacher` does.
    """
    criterion = dict(soft_targets=True) if args.mixup or args.cutmix else dict(smoothing=args.smoothing)
    settings = dict(criterion_kwargs=criterion, device=device)
    supervised = getattr(model, "supervises_depths", False)
    if not args.teacher:
        return (DeepSupervisionTask if supervised else task.ClassificationTask)(model, **settings)
    if supervised and model.config.pass_loss:
        reject("pass_loss", model.config.pass_loss, "must not be given with --teacher, whose labels are for one pass")
    if supervised:
        reject("teacher", args.teacher, f"must not be given with {args.model}, whose two depths learn from labels")
    teacher = load_teacher(args).to(device)
    if args.distillation == "hard":
        return hard_distillation(model, teacher, **settings)
    return soft_distillation(model, teacher, args.temperature, **settings)
