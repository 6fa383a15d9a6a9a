"""timm's training tasks for image models: a loss at several depths, and the two distillations of SReT's Table 3.

task = DeepSupervisionTask(model, nn.CrossEntropyLoss())
task(images, target)["loss"].backward()
"""

from typing import Any

import timm
import torch.nn.functional as F
from torch import Tensor, nn

from timm_plugin._model import ImageModel
from timm_plugin.elastic import DepthLoss

try:
    from timm.task import (
        ClassificationTask,
        LogitDistillationTask,
        TokenDistillationTask,
        TrainingTask,
        evaluation_sample_limit,  # noqa: F401  the newest of what the trainer needs of this module
    )
except ImportError:
    raise ImportError(f"timm {timm.__version__}: must be 1.0.31 or later, which has what the trainer needs") from None


class DeepSupervisionTask(ClassificationTask):
    """Classification whose loss is that of all depths which the model's options train at once.

    Args:
        model: with `mixed_depth` or `pass_loss`.
        *args, **kwargs: of timm's `ClassificationTask`.

    Raises:
        ValueError: if the model has neither option.
    """

    def __init__(self, model: ImageModel, *args: Any, **kwargs: Any):
        super().__init__(model, *args, **kwargs)
        model.set_deep_supervision()
        self.criterion: nn.Module = DepthLoss(self.criterion, model.config.pass_loss or None)

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Images and labels -> the loss, and as the output the logits of the last pass."""
        result = super().forward(input, target)
        output = result["output"]
        return {**result, "output": output[0] if isinstance(output, list) else output}


def soft_distillation(student: nn.Module, teacher: nn.Module, temperature: float, **settings: Any) -> TrainingTask:
    """SReT's distillation: the mean of -sum softmax(teacher / T) log_softmax(student / T), without hard labels.

    timm's loss is the Kullback-Leibler divergence times T^2; the weight cancels T^2. The result differs from the loss
    above by the teacher's entropy, which has no gradient. Source: arXiv 2111.05297 and its published code.
    """
    weights = dict(task_loss_weight=0.0, distill_loss_weight=temperature**-2)
    return LogitDistillationTask(student, teacher, temperature=temperature, **weights, **settings)


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


def hard_distillation(student: nn.Module, teacher: nn.Module, **settings: Any) -> TrainingTask:
    """DeiT's distillation: the mean of the loss on the labels and the loss on the teacher's classes.

    A student with a distillation token learns the teacher's classes with that token's output, any other student with
    its only output. timm's task computes a Kullback-Leibler divergence, which for a one-hot distribution is the
    cross-entropy. Source: DeiT (arXiv 2012.12877), section 4, and its published code; SReT's Table 3, "GT+Hard
    Distill".
    """
    if hasattr(student, "set_distilled_training"):
        return TokenDistillationTask(student, teacher, distill_type="hard", task_loss_weight=0.5, **settings)
    return LogitDistillationTask(student, HardLabels(teacher), task_loss_weight=0.5, **settings)
