"""Checkpoints are read safely, and rejected by name."""

import pickle
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from torch import nn

from fairseq_repairs.checkpoints import load_safely
from tests.support import upstream


def test_a_file_that_is_not_a_checkpoint_is_named(tmp_path):
    path = tmp_path / "text.pt"
    path.write_text("not a checkpoint")
    with pytest.raises(pickle.UnpicklingError, match=f"^{path}: not a checkpoint that can be read safely"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


@pytest.mark.parametrize("state", [{"state_dict": {}}, torch.zeros(3), [1]], ids=["other keys", "tensor", "list"])
def test_another_programs_checkpoint_is_named(state, tmp_path):
    path = tmp_path / "other.pt"
    torch.save(state, path)
    for load in (checkpoint_utils.load_checkpoint_to_cpu, load_safely):
        with pytest.raises(pickle.UnpicklingError, match=f"^{path}: not a checkpoint of fairseq "):
            load(str(path))


def test_a_checkpoint_without_weights_is_named(tmp_path):
    torch.save({"args": None, "model": [1]}, tmp_path / "other.pt")
    with pytest.raises(pickle.UnpicklingError, match=f"^{tmp_path}/other.pt: not a checkpoint of fairseq .*model"):
        load_safely(tmp_path / "other.pt")


def test_types_that_others_disallow_are_allowed_again(tmp_path):
    path = tmp_path / "options.pt"
    torch.save({"args": Namespace(arch="cycle"), "model": {}}, path)
    with torch.serialization.safe_globals([Namespace]):  # as timm reads its checkpoints
        pass
    assert Namespace not in torch.serialization.get_safe_globals()
    assert load_safely(path)["args"].arch == "cycle"


def test_types_of_a_broadcast_are_not_allowed_in_files(tmp_path):
    path = tmp_path / "config.pt"
    torch.save({"cfg": convert_namespace_to_omegaconf(upstream.arguments("transformer"))}, path)
    with pytest.raises(pickle.UnpicklingError, match=r"refers to \S*DictConfig"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_a_model_without_end_is_not_built(trained_once, tmp_path):
    data, path = trained_once("transformer")
    state = load_safely(path)
    state["cfg"]["model"].encoder_layers = 10**9
    torch.save(state, tmp_path / "endless.pt")
    for load in (load_safely, lambda path: upstream.use("generate", data, path)):
        with pytest.raises(ValueError, match=f"^{tmp_path}/endless.pt: encoder_layers=1000000000: must be <= 10000$"):
            load(tmp_path / "endless.pt")


@pytest.mark.parametrize("file", ["/dev/zero", "/nowhere"])
def test_a_trained_model_reads_no_embedding(file, trained_once, tmp_path):
    data, path = trained_once("transformer")
    state = load_safely(path)
    state["cfg"]["model"].encoder_embed_path = state["cfg"]["model"].decoder_embed_path = file
    torch.save(state, tmp_path / "model.pt")
    flags = ("--max-len-b", "4", "--gen-subset", "valid")
    expected, found = (upstream.use("generate", data, each, *flags)[1] for each in (path, tmp_path / "model.pt"))
    assert upstream.translations(found) == upstream.translations(expected)


def test_a_broadcast_keeps_what_modules_note():
    weights, tensors = nn.Sequential(nn.BatchNorm1d(3)).state_dict(), []
    assert weights._metadata["0"]["version"] == 2
    sent = distributed_utils._split_tensors_from_obj({"model": weights}, tensors)
    received = distributed_utils._put_tensors_in_obj(sent, tensors)["model"]
    assert received.keys() == weights.keys()
    assert received._metadata == weights._metadata


def test_another_number_of_parameters_resumes_without_the_optimizer_s_state(data, tmp_path):
    """Of a tied output matrix, fairseq stores a copy, with which a model of two matrices starts."""
    tied = upstream.run_training("transformer", data["text"], tmp_path / "tied", "--share-decoder-input-output-embed")
    flags = ("--restore-file", tied, "--max-epoch", "2")
    with pytest.raises(ValueError, match=f"^{tied}: its optimizer state belongs to other parameters, .*--reset-opt"):
        upstream.run_training("transformer", data["text"], tmp_path / "two", *flags)
    upstream.run_training("transformer", data["text"], tmp_path / "two", *flags, "--reset-optimizer")
