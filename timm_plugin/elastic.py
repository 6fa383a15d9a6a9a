"""The loss of the logits of several depths, for models with `pass_loss` or `mixed_depth`.

Trainers must call `model.set_num_updates(number)` before each update, as `timm_plugin.train` does.

Source: see :mod:`recurrence.elastic`.
"""

from collections.abc import Callable

from torch import Tensor, nn


class DepthLoss(nn.Module):
    """The loss of the logits of several depths.

    Needs `model.set_deep_supervision()`. For mixed depth, the weights are assumed to be equal; the paper (Sliced
    Recursive Transformer, arXiv:2111.05297, section 5.7) does not say.

    Args:
        criterion: `(logits, target) -> loss`.
        weight: `pass_loss`, of the mean over the depths after the first one; None for the mean over all.
    """

    def __init__(self, criterion: Callable[[Tensor, Tensor], Tensor], weight: float | None = None):
        super().__init__()
        self.criterion, self.weight = criterion, weight

    def forward(self, output: Tensor | list[Tensor], target: Tensor) -> Tensor:
        """output: logits (B, num_classes), or a list with those of the deepest first -> the loss, a scalar."""
        losses = [self.criterion(logits, target) for logits in (output if isinstance(output, list) else [output])]
        if self.weight is None or len(losses) == 1:
            return sum(losses) / len(losses)
        return losses[0] + self.weight * sum(losses[1:]) / (len(losses) - 1)
