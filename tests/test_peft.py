"""LoRA by peft on models of both toolkits: it acts, trains, and merges into the stored blocks."""

import pytest
import torch
from torch import nn

peft = pytest.importorskip("peft")

from tests.support import cases  # noqa: E402

NAMES = ["ringformer_vit", "uit", "owf_vit", "recursive_mixer_s16", "sret_t"]
NAMES += ["ringformer_base", "universal", "cycle", "one_wide_ffn_base", "recursive_wmt_en_de"]
CASES = [*map(cases.case, [*NAMES, "ilr_small", "recurrent_lm", "cycle_lm"]), cases.case("cycle_lm", "one matrix")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_lora_acts_on_every_layer_trains_and_merges(case):
    model = case.build()
    inputs = case.inputs(model)
    stored = len(list(model.parameters()))
    before = case.output(model, *inputs).detach()
    layers = {key for key, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=sorted(layers))).base_model
    torch.testing.assert_close(case.output(adapted.model, *inputs), before)
    factors = {key: factor for key, factor in adapted.named_parameters() if ".lora_" in key}
    assert len(factors) == 2 * len(layers)
    for factor in factors.values():
        nn.init.normal_(factor, std=0.3)
    after = case.output(adapted.model, *inputs)
    assert not torch.allclose(after, before)
    after.square().sum().backward()
    assert not [key for key, factor in factors.items() if factor.grad is None or not factor.grad.any()]
    merged = adapted.merge_and_unload()
    assert len(list(merged.parameters())) == stored
    torch.testing.assert_close(case.output(merged, *inputs), after.detach())
