"""Elastic depth trains as it did as an option of models: losses and weights of 8 updates, from the same start.

Each update reads the whole corpus, so that the order of batches, which differs between versions of fairseq, does not
matter.
"""

import json
from pathlib import Path

import pytest
import torch

from tests.support import cli, public
from tests.support.stored import REFERENCE

EXPECTED = json.loads((REFERENCE / "elastic_losses.json").read_text(encoding="utf-8"))
COMMON = EXPECTED.pop("common").split()


def train(folder: Path, training: str, save_dir: Path, *more: object) -> list[float]:
    """The loss of each update."""
    flags = (*COMMON, *EXPECTED[training]["flags"].split(), "--save-dir", save_dir, *more)
    log = cli.run("fairseq-train", folder / "data", "--user-dir", cli.PLUGIN, *flags)
    return [line["loss"] for line in cli.logged(log)]


def restarted(folder: Path, training: str) -> tuple:
    """Flags that begin a training with the weights of a checkpoint."""
    parts = ("optimizer", "lr-scheduler", "dataloader", "meters")
    return "--restore-file", folder / f"{EXPECTED[training]['start']}.pt", *(f"--reset-{part}" for part in parts)


def summary(save_dir: Path) -> float:
    """One number for all trained weights."""
    model = torch.load(save_dir / "checkpoint_last.pt", weights_only=False)["model"]
    return sum(float((tensor.double() * public.weights(tensor.shape, key)).sum()) for key, tensor in model.items())


@pytest.mark.parametrize("training", EXPECTED)
def test_losses_and_weights_are_those_of_before(earlier, training, tmp_path):
    losses = train(earlier, training, tmp_path, *restarted(earlier, training))
    assert losses == pytest.approx(EXPECTED[training]["losses"], abs=0.0011)
    assert summary(tmp_path) == pytest.approx(EXPECTED[training]["weights"], rel=1e-3)
