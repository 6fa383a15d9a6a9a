"""Elastic depth for image models: constructor options, and the losses for logits of several passes or depths.

Trainers must call `model.set_num_updates(number)` before each update, as `timm_plugin.train` does.

Source: see :mod:`recurrence.elastic`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from torch import Tensor, nn

from recurrence.elastic import check_effects, check_options, make_elastic
from recurrence.errors import FieldError
from recurrence.loop import Loop


@dataclass(frozen=True)
class ElasticConfig:
    """How many passes training runs, and which of them have a loss. The model at inference does not change.

    Args:
        depth_range: smallest and largest number of passes (for SReT, of `loops`) that an update may draw.
        depth_seed: seed of the draws (default 0).
        depth_warmup_updates: updates during which the smallest depth that is drawn, or has a loss by `pass_loss`, falls
            linearly from the full depth.
        mixed_depth: train at two depths in every update: all passes, and the drawn depth or, without `depth_range`, one
            run of each stored block. Needs :class:`timm_plugin.task.DeepSupervisionTask`, as `pass_loss` does.
        pass_loss: weight of the mean loss of the earlier passes at which a shallower model would end; 0 for none.
    """

    depth_range: Sequence[int] | None = None
    depth_seed: int | None = None
    depth_warmup_updates: int = 0
    mixed_depth: bool = False
    pass_loss: float = 0.0

    def check_depth(self) -> None:
        """Checks the options that do not depend on the stack; raises ValueError, of which FieldError is one."""
        if self.depth_range is not None and len(self.depth_range) != 2:
            raise ValueError(f"depth_range={self.depth_range}: must be two numbers of passes")
        if self.depth_seed is not None and self.depth_range is None:
            raise ValueError(f"depth_seed={self.depth_seed}: needs depth_range")
        given = {name: getattr(self, name) for name in DEPTH_OPTIONS}
        check_options({name: value for name, value in given.items() if value != DEPTH_OPTIONS[name]})

    def make_elastic(self, loop: Loop, unit: int = 1, step: int = 1, prefix_only: bool = False) -> None:
        """Applies the options to a loop.

        Args:
            loop: the stack.
            unit: number of passes that the range counts as one.
            step, prefix_only: see :func:`recurrence.elastic.depths_of`.

        Raises:
            FieldError, ValueError: naming the option, its value and the rule.
        """
        depths = None if self.depth_range is None else (unit * self.depth_range[0], unit * self.depth_range[1])
        how = dict(seed=self.depth_seed or 0, step=max(unit, step), prefix_only=prefix_only)
        try:
            make_elastic(loop, depths, self.depth_warmup_updates, self.mixed_depth, **how)
        except FieldError as error:
            if error.field == "depth_range":
                error.value = "{}-{}".format(*self.depth_range)  # in the option's unit
            raise
        check_effects([loop], pass_loss=self.pass_loss)


DEPTH_OPTIONS = {spec.name: spec.default for spec in fields(ElasticConfig)}
"""The options with their defaults."""


class DepthLoss(nn.Module):
    """The loss of the logits of several depths, for models with `pass_loss` or `mixed_depth`.

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
