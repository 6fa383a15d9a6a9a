"""Comparison of the states in checkpoints."""

import re
from pathlib import Path

import torch

from fairseq_repairs.checkpoints import load_safely
from tests.support import cli

# Stored but not trained by fairseq 0.12.2's own transformer: copies of weights for torch's fast path, and an
# uninitialised placeholder.
UNTRAINED = re.compile(r"layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)$|\._float_tensor$")


def trained_tensors(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a state dict that training changes."""
    return {key: tensor for key, tensor in model.items() if not (cli.is_official() and UNTRAINED.search(key))}


def same_state(one: object, other: object) -> bool:
    """Whether two nested states are equal, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_state, one, other))
    return one == other


def same_runs(one: Path, other: Path) -> bool:
    """Whether two trainings of fairseq have ended with the same weights and the same state of the optimizer."""
    states = [load_safely(folder / "checkpoint_last.pt") for folder in (one, other)]
    parts = [(trained_tensors(state["model"]), state["last_optimizer_state"]) for state in states]
    assert len(parts[0][0]) > 10
    return same_state(*parts)
