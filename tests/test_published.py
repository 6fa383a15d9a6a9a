"""Published checkpoints of texts and images: recorded results, and their weights there and back."""

import re

import pytest
import torch

import fairseq_plugin.published
import timm_plugin.published
from tests.support.golden import thinned
from tests.support.recorded import IMAGES, SYSTEM_OF, TOLERANCE, is_fixed, load, logits, loss, published, recorded
from tests.support.stacks import as_type

every_recorded_model = pytest.mark.parametrize("name", SYSTEM_OF)


def test_every_system_is_recorded():
    assert set(SYSTEM_OF.values()) == {*fairseq_plugin.published.SYSTEMS, *timm_plugin.published.SYSTEMS}


@pytest.mark.parametrize("package", [fairseq_plugin.published, timm_plugin.published])
def test_an_unknown_system_is_rejected(package):
    with pytest.raises(ValueError, match="system='transformer': must be one of"):
        package.from_published("transformer", {}, {})


@every_recorded_model
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_recorded_logits(name, dtype):
    file, inputs, keep = recorded(name)
    model, expected = load(name, file), file["outputs"]["logits"]
    assert not model.training
    assert next(model.parameters()).dtype == expected.dtype
    found, tolerance = logits(model.to(dtype), as_type(inputs, dtype)), max(TOLERANCE[dtype], TOLERANCE[expected.dtype])
    torch.testing.assert_close(found[keep].to(expected), expected[keep], rtol=0, atol=tolerance)


@every_recorded_model
def test_recorded_gradients(name):
    file, inputs, _ = recorded(name)
    model = load(name, file)
    found = loss(name, file, logits(model, inputs))
    found.backward()
    tolerance = min(TOLERANCE[found.dtype], 1e-5)
    assert found.item() == pytest.approx(file["loss"], abs=tolerance)
    for parameter in model.parameters():
        parameter.data = parameter.grad
    gradients = published(name, model, file)
    assert set(file["grads"]) <= set(gradients)
    assert name not in IMAGES or len(file["grads"]) >= len(list(model.parameters()))
    for key, expected in file["grads"].items():
        torch.testing.assert_close(thinned(gradients[key]), expected.flatten(), rtol=0, atol=tolerance, msg=key)


@every_recorded_model
def test_inverse_gives_the_published_weights_back(name):
    file, _, _ = recorded(name)
    back = published(name, load(name, file), file)
    expected = {key: tensor for key, tensor in file["state_dict"].items() if not is_fixed(key)}
    assert back.keys() == expected.keys()
    assert all(torch.equal(back[key].view_as(tensor), tensor) for key, tensor in expected.items())


@every_recorded_model
def test_no_key_is_dropped_or_made_up(name):
    file, _, _ = recorded(name)
    with pytest.raises(ValueError, match="surplus.weight: published key that nothing is mapped to"):
        load(name, file, **{"surplus.weight": torch.zeros(1)})
    for key in [key for key in file["state_dict"] if key in file["grads"]][::30]:
        less = {other: tensor for other, tensor in file["state_dict"].items() if other != key}
        with pytest.raises(ValueError, match=f"{re.escape(key)}: published key is missing"):
            load(name, {**file, "state_dict": less})
