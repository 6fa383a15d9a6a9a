"""Elastic depth in fairseq's own commands: resuming, validation, and several ranks."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fairseq_repairs.checkpoints import load_safely
from tests.support import cli
from tests.support.states import same_state

FOUR = ("--encoder-layers", "4", "--decoder-layers", "4", "--criterion", "elastic_cross_entropy")
DRAWN = (*FOUR, "--depth-range", "1-4")
LESS = ("--pass-loss", "0.5", "--weight-decay", "0.5", "--depth-warmup-updates", "6")
SHORT = ("--batch-size", "8", "--max-update", "8", "--save-interval-updates", "4")
FLAGS = (*DRAWN, *LESS, *SHORT)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_safely(folder / "checkpoint_last.pt")["model"]


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory) -> tuple[Path, str]:
    """Folder and log of a training of 8 updates."""
    folder = tmp_path_factory.mktemp("elastic")
    return folder, cli.train(corpus.data, folder, *FLAGS)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_weights(corpus, trained, tmp_path):
    folder, log = trained
    again = cli.train(corpus.data, tmp_path, *FLAGS, "--restore-file", folder / "checkpoint_1_4.pt")
    assert [line["loss"] for line in cli.logged(again)] == [line["loss"] for line in cli.logged(log)][4:]
    assert same_state(weights(tmp_path), weights(folder))


@pytest.mark.slow
def test_validation_at_the_smallest_depth_is_that_of_a_model_of_that_depth(corpus, trained):
    folder, log = trained
    (valid,) = (line for line in cli.logged(log, "valid") if line["valid_num_updates"] == 8)
    assert valid["valid_largest_depth_loss"] == valid["valid_default_depth_loss"] == valid["valid_loss"]
    command = ("fairseq-validate", corpus.data, *cli.HOST, "--batch-size", "8")
    overrides = "{'encoder_layers': 1, 'decoder_layers': 1}"
    found = cli.run(*command, "--path", folder / "checkpoint_last.pt", "--model-overrides", overrides)
    assert re.search(rf"\| loss {valid['valid_smallest_depth_loss']:g} ", found)
    assert valid["valid_smallest_depth_loss"] != valid["valid_loss"]


@pytest.mark.slow
def test_a_warm_up_that_never_ends_is_warned_of(corpus, trained, tmp_path):
    _, log = trained
    warning = "--depth-warmup-updates=6: not reached within the 2 updates of this training"
    assert "not reached" not in log
    assert warning in cli.train(corpus.data, tmp_path, *FLAGS, "--max-update", "2", "--disable-validation")


TWO_RANKS = {
    "drawn": (*DRAWN, *LESS, "--find-unused-parameters"),
    "mixed": (*DRAWN, "--mixed-depth"),
    "nothing idle": (*DRAWN, "--arch", "universal_tiny", "--ddp-backend", "legacy_ddp"),
}


@pytest.mark.slow
@pytest.mark.parametrize("depth", TWO_RANKS.values(), ids=TWO_RANKS)
def test_two_ranks_equal_one_process(corpus, depth, tmp_path):
    """Losses and weights agree; gradients of zero would move and decay the weights of skipped passes."""
    flags = (*depth, *SHORT, *cli.WITHOUT_DROPOUT, "--disable-validation")
    one, two = tmp_path / "one", tmp_path / "two"
    alone = cli.train(corpus.data, one, *flags, "--update-freq", "2")
    together = cli.torchrun(2, *cli.train_command(corpus.data, two, *flags))
    assert [line["loss"] for line in cli.logged(together)] == pytest.approx(
        [line["loss"] for line in cli.logged(alone)], abs=0.0011
    )
    torch.testing.assert_close(weights(two), weights(one), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_several_ranks_reject_what_would_move_idle_passes(corpus, tmp_path):
    command = cli.train_command(corpus.data, tmp_path, *DRAWN, *SHORT, "--disable-validation")
    message = "error: --find-unused-parameters: must be given in several processes"
    assert message in cli.torchrun(2, *command, fails=True)
