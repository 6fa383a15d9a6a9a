"""Weights in eight bits, by torch's dynamic quantisation and by torchao: small, close, each stored block once."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.ao.nn.quantized.dynamic import Linear as QuantizedLinear
from torch.ao.quantization import quantize_dynamic

from tests.support import models, vision

IMAGES = ["ringformer_vit", "uit", "recursive_mixer_s16", "sret_t"]
TRANSLATION = ["ringformer_base", "cycle", "one_wide_ffn_base", "recursive_iwslt_de_en"]
every_model = pytest.mark.parametrize("name", [*IMAGES, *TRANSLATION])


def build(name):
    """A float32 model in eval mode whose matrices are most of it, and its arguments."""
    torch.manual_seed(0)
    if name in IMAGES:
        sizes = dict(embed_dim=64 if name == "sret_t" else 128)
        model = models.randomise(vision.fresh(name, **sizes), 0, noise=0.02).eval()
        return model, (vision.images(model),)
    sizes = {"embed-dim": 128, "ffn-embed-dim": 256}
    flags = [part for side in models.SIDES for key, size in sizes.items() for part in (f"--{side}-{key}", str(size))]
    if name.startswith("one_wide_ffn"):  # without an FFN in the decoder
        del flags[flags.index("--decoder-ffn-embed-dim") :][:2]
    model = models.build(name, *models.tiny_flags(name), *flags)
    return models.randomise(model, 0, noise=0.02).eval(), models.inputs(name)


def output(model, inputs):
    with torch.no_grad():
        y = model(*inputs)
    return y[0] if isinstance(y, tuple) else y


def size(model):
    """Bytes of the checkpoint."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return len(file.getvalue())


def check(model, quantized, inputs):
    """Close to the model, and every matrix of a linear layer in a quarter of its bytes."""
    expected, found = output(model, inputs), output(quantized, inputs)
    assert not found.equal(expected)
    assert (found - expected).norm() < 0.1 * expected.norm()
    matrices = sum(4 * layer.weight.numel() for layer in model.modules() if type(layer) is nn.Linear)
    assert size(quantized) < size(model) - 0.6 * matrices


@every_model
def test_dynamic_quantisation_converts_every_linear_layer(name):
    model, inputs = build(name)
    layers = [key for key, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    quantized = quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    assert [key for key, layer in quantized.named_modules() if isinstance(layer, QuantizedLinear)] == layers
    check(model, quantized, inputs)


def test_a_language_model_s_tied_bands_are_those_of_its_checkpoint():
    """Its softmax reads the projections of its embedding, which quantisation replaces."""
    inputs = models.inputs("cycle_lm")
    one, other = (quantize_dynamic(models.tiny("cycle_lm", seed=seed).float(), {nn.Linear}) for seed in (1, 2))
    other.load_state_dict(one.state_dict())
    with torch.no_grad():
        assert models.log_probabilities(other, *inputs).equal(models.log_probabilities(one, *inputs))


@every_model
@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_torchao(name, kind):
    quantization = pytest.importorskip("torchao.quantization")
    model, inputs = build(name)
    quantized = copy.deepcopy(model)
    quantization.quantize_(quantized, getattr(quantization, kind)())
    check(model, quantized, inputs)
