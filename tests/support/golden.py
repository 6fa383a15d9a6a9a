"""Reference outputs of the published code, see `tests/reference/README.md`."""

import json
from functools import cache
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tests.support.stored import REFERENCE

EVERY = 7  # of the entries of a gradient that are kept
WHOLE = 256  # gradients of up to this many entries are complete


def golden(name: str) -> dict[str, Any]:
    """One published model, in tensors of its own.

    Returns:
        `meta`, `state_dict` under the published names, `inputs`, `outputs` and, where recorded, `loss` and `grads` with
        the entries of :func:`thinned`.
    """
    group = next(path.stem for path in REFERENCE.glob("*.json") if name.startswith(path.stem))
    return _restore(_files(group)[name], _tensors(group))


def thinned(gradient: Tensor) -> Tensor:
    """The recorded entries of a gradient of any shape: (entries,)."""
    entries = gradient.flatten()
    return entries if len(entries) <= WHOLE else entries[::EVERY]


@cache
def _files(group: str) -> dict[str, Any]:
    return json.loads((REFERENCE / f"{group}.json").read_text(encoding="utf-8"))


@cache
def _tensors(group: str) -> dict[str, Tensor]:
    return load_file(REFERENCE / f"{group}.safetensors")


def _restore(stored: Any, tensors: dict[str, Tensor]) -> Any:
    """Replaces `{"tensor": key}` by the tensor, at any depth."""
    if isinstance(stored, dict):
        if stored.keys() == {"tensor"}:
            return tensors[stored["tensor"]].clone()
        return {key: _restore(value, tensors) for key, value in stored.items()}
    return [_restore(value, tensors) for value in stored] if isinstance(stored, list) else stored
