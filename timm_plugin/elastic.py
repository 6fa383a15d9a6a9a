"""Elastic depth for image models: the options of a constructor, and the loss of a model that answers at several passes.

`recipes/train_image.py` tells the model each update (`model.set_num_updates(number)`), as any other trainer has to.

Source: see :mod:`recurrence.elastic`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from recurrence.elastic import make_elastic, stops
from recurrence.errors import FieldError
from recurrence.loop import Loop


@dataclass(frozen=True)
class ElasticConfig:
    """How many passes training runs, and which of them learn; nothing of it changes what the model is.

    Args:
        depth_range: smallest and largest number of passes (of SReT: of `loops`), between which every update draws.
        depth_distribution: "uniform", the default of a range, or "poisson", Huginn's log-normal Poisson.
        depth_seed: of the draws.
        pass_loss: weight of the mean loss of the earlier passes at which a model of fewer passes would end; 0 for none.
        backprop_passes: how many of the last passes have gradients; None for all.
    """

    depth_range: Sequence[int] | None = None
    depth_distribution: str | None = None
    depth_seed: int = 0
    pass_loss: float = 0.0
    backprop_passes: int | None = None

    def check_depth(self) -> None:
        """Raises ValueError where a value breaks its rule whatever the stack."""
        if self.depth_range is not None and (len(self.depth_range) != 2 or not self.depth_range[0] >= 1):
            raise ValueError(f"depth_range={self.depth_range}: must be two numbers of passes, each >= 1")
        if self.pass_loss < 0:
            raise ValueError(f"pass_loss={self.pass_loss}: must be >= 0")

    def train(self, loop: Loop, unit: int = 1, step: int = 1, beyond: bool = True) -> None:
        """Makes the training of a loop elastic where the options ask for it.

        Args:
            loop: the stack.
            unit: passes that the numbers of the range count as one.
            step, beyond: see :func:`recurrence.elastic.depths_of`.

        Raises:
            ValueError: by the option's name.
        """
        depths = None if self.depth_range is None else (unit * self.depth_range[0], unit * self.depth_range[1])
        how = self.depth_distribution, self.backprop_passes, self.depth_seed
        try:
            make_elastic(loop, depths, *how, step=max(unit, step), beyond=beyond)
        except FieldError as error:
            raise ValueError(str(error)) from None
        most = loop.passes if loop.draw is None else max(loop.draw.depths)
        if self.pass_loss and not stops(loop, most):
            order = " ".join(map(str, loop.order))
            raise ValueError(f"pass_loss={self.pass_loss}: no earlier pass ends a model of fewer, in the order {order}")


class PassLoss(nn.Module):
    """The loss of a model with `pass_loss`, whose training gives the logits of its last pass, then of earlier ones.

    Args:
        criterion: `(logits, target) -> loss`.
        weight: of the mean over the earlier passes.
    """

    def __init__(self, criterion: Callable[[Tensor, Tensor], Tensor], weight: float):
        super().__init__()
        self.criterion, self.weight = criterion, weight

    def forward(self, output: Tensor | list[Tensor], target: Tensor) -> Tensor:
        """output: logits (B, num_classes), or a list of them, the last pass's first -> the loss, a scalar."""
        last, *earlier = output if isinstance(output, list) else (output,)
        loss = self.criterion(last, target)
        if not earlier:
            return loss
        return loss + self.weight * sum(self.criterion(logits, target) for logits in earlier) / len(earlier)
