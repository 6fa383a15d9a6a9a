"""timm's tasks with models that may be trained on several outputs."""

import pytest
import torch
from torch import nn

from tests.support import vision
from timm_plugin.elastic import DepthLoss

tasks = pytest.importorskip("timm.task")
SUPERVISED = {
    "sret_108_mixed": {},
    "deit_108_mixed": {},
    "uit": dict(pass_loss=0.5),
    "ringformer_vit": dict(pass_loss=0.5),
}
supervised = pytest.mark.parametrize("name", SUPERVISED)
warned = pytest.mark.filterwarnings("ignore:.*without timm_plugin.task.DeepSupervisionTask")


def small(name: str, **options) -> nn.Module:
    """Without random slices, so that two calls can be compared."""
    groups = dict(groups=((1, 1),) * 3) if name.startswith("sret") else {}
    return vision.small(name, **{**SUPERVISED.get(name, {}), **groups, **options})


@supervised
def test_training_without_the_outputs_is_told(name):
    option = "pass_loss=0.5" if name in ("uit", "ringformer_vit") else "mixed_depth=True"
    model = small(name)
    with pytest.warns(UserWarning, match=f"^{option}: without timm_plugin.task.DeepSupervisionTask"):
        model.train()
    with pytest.raises(ValueError, match="deep supervision needs mixed_depth or pass_loss"):
        vision.fresh("uit").set_deep_supervision()


@supervised
def test_deep_supervision_is_the_loss_of_all_depths(name):
    from timm_plugin.task import DeepSupervisionTask

    model, target = small(name), torch.tensor([0, 3])
    images, weight = vision.images(model), model.config.pass_loss
    task = DeepSupervisionTask(model, nn.CrossEntropyLoss()).train()
    result = task(images, target)
    outputs = model(images)
    assert len(outputs) > 1
    of_depths = DepthLoss(nn.CrossEntropyLoss(), weight or None)
    torch.testing.assert_close(result["loss"], of_depths(outputs, target), rtol=0, atol=1e-12)
    torch.testing.assert_close(result["output"], outputs[0], rtol=0, atol=1e-12)
    assert torch.is_tensor(task.get_eval_model().eval()(images))


@warned
@supervised
@pytest.mark.parametrize("kind", ["LogitDistillationTask", "FeatureDistillationTask"])
def test_distillation_trains_the_full_depth(name, kind):
    """As of the model without the option; that is told, see above."""
    losses = []
    for options in ({}, dict(mixed_depth=False, **({} if name.startswith("sret") else dict(pass_loss=0.0)))):
        model = small(name, **options)
        teacher = vision.small("plain_vit", img_size=model.config.img_size)
        criterion = DepthLoss(nn.CrossEntropyLoss())
        task = getattr(tasks, kind)(model, teacher, criterion, dtype=torch.float64)
        torch.manual_seed(0)
        if (projection := getattr(task.trainable_module, "projection", None)) is not None:
            projection.reset_parameters()
        losses.append(task.train()(vision.images(model), torch.tensor([0, 3]))["loss"])
    torch.testing.assert_close(*losses, rtol=0, atol=1e-12)
