"""Dropout at a rate of 1, which leaves nothing: outputs and gradients are still numbers."""

import pytest
import torch

from tests.support import models, vision

pytestmark = pytest.mark.slow

TEXT = ("--dropout", "--attention-dropout", "--activation-dropout")


@models.every_model
@pytest.mark.parametrize("flag", TEXT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_text_models_stay_finite(arch, flag, dtype):
    model = models.tiny(arch, flag, "1").train().to(dtype)
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in models.inputs(arch)]
    loss, gradients = models.loss_and_gradients(model, inputs)
    assert loss.isfinite()
    assert [name for name, gradient in gradients.items() if not gradient.isfinite().all()] == []


@vision.every_registered_structure
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_image_models_stay_finite(structure, dtype):
    for rate in vision.rates_of(structure):
        model = vision.fresh(structure, **{rate: 1.0}).to(dtype)
        loss, gradients = vision.loss_and_gradients(model, vision.images(model))
        assert loss.isfinite(), rate
        assert [name for name, gradient in gradients.items() if not gradient.isfinite().all()] == [], rate
