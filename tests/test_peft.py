"""LoRA by peft on models of both toolkits: it acts, trains, and merges into the stored blocks."""

import pytest
import torch
from torch import nn

peft = pytest.importorskip("peft")

from tests.support import language, models, vision  # noqa: E402

IMAGES = ["ringformer_vit", "uit", "owf_vit", "recursive_mixer_s16", "sret_t"]
TRANSLATION = ["ringformer_base", "universal", "cycle", "one_wide_ffn_base", "recursive_wmt_en_de"]
LANGUAGE = ["ilr_small", "recurrent_lm", "cycle_lm"]


def small(name):
    """A float64 model in eval mode, and its arguments."""
    if name in IMAGES:
        model = vision.small(name)
        return model, (vision.images(model),)
    if name in LANGUAGE:
        flags = ["--adaptive-input-cutoff", "none"] if name == "cycle_lm" else []
        return models.tiny(name, *flags), (language.texts(),)
    return models.tiny(name), models.inputs(name)


def output(model, inputs):
    y = model(*inputs)
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("name", [*IMAGES, *TRANSLATION, *LANGUAGE])
def test_lora_acts_on_every_layer_trains_and_merges(name):
    model, inputs = small(name)
    stored = len(list(model.parameters()))
    before = output(model, inputs).detach()
    layers = {key for key, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=sorted(layers))).base_model
    torch.testing.assert_close(output(adapted.model, inputs), before)
    factors = {key: factor for key, factor in adapted.named_parameters() if ".lora_" in key}
    assert len(factors) == 2 * len(layers)
    for factor in factors.values():
        nn.init.normal_(factor, std=0.3)
    after = output(adapted.model, inputs)
    assert not torch.allclose(after, before)
    after.square().sum().backward()
    assert not [key for key, factor in factors.items() if factor.grad is None or not factor.grad.any()]
    merged = adapted.merge_and_unload()
    assert len(list(merged.parameters())) == stored
    torch.testing.assert_close(output(merged, inputs), after.detach())
