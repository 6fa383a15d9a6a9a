"""timm's classification task with a loss at several depths, for models with `mixed_depth` or `pass_loss`.

task = DeepSupervisionTask(model, nn.CrossEntropyLoss())
task(images, target)["loss"].backward()
"""

from typing import Any

from timm.task import ClassificationTask
from torch import Tensor, nn

from timm_plugin._model import ImageModel
from timm_plugin.elastic import DepthLoss


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
