"""Today's models have the state dicts and compute the values in tests/reference, so every checkpoint still loads."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.support import public, snapshot
from tests.support.stored import REFERENCE

STATE_DICTS = json.loads((REFERENCE / snapshot.KEYS).read_text(encoding="utf-8"))
VALUES = load_file(REFERENCE / snapshot.VALUES)


@pytest.mark.parametrize("model", [name for name in STATE_DICTS if not name.startswith("case ")])
def test_a_registered_model_has_the_keys_and_shapes_of_its_checkpoints(model):
    assert public.described(public.full_size(model)) == STATE_DICTS[model]


@pytest.mark.parametrize("label", snapshot.CASES)
def test_a_variant_has_the_keys_and_shapes_of_its_checkpoints(label):
    assert public.described(snapshot.CASES[label].build()) == STATE_DICTS[f"case {label}"]


@pytest.mark.parametrize("label", snapshot.CASES)
def test_a_variant_computes_what_it_did(label):
    found = {f"{label} | {quantity}": value for quantity, value in snapshot.CASES[label].measure()}
    expected = {name: value for name, value in VALUES.items() if name.startswith(f"{label} | ")}
    assert found.keys() == expected.keys()
    for name, value in found.items():
        close = dict(rtol=1e-10, atol=1e-10 * float(expected[name].abs().max()))
        torch.testing.assert_close(value, expected[name], **close, msg=lambda text, name=name: f"{name}: {text}")


def test_no_case_is_gone():
    assert {name for name in STATE_DICTS if name.startswith("case ")} == {f"case {label}" for label in snapshot.CASES}
    assert {name.partition(" | ")[0] for name in VALUES} == set(snapshot.CASES)
