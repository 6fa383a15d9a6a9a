"""Checkpoints are read safely, rejected by name, and resumed from exactly."""

import os
import pickle
import re
import zipfile
from argparse import Namespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.optim.fp16_optimizer import FP16Optimizer
from omegaconf import DictConfig
from torch import nn

from fairseq_repairs import checkpoints, half, resuming, sizes
from fairseq_repairs.checkpoints import load_safely
from fairseq_repairs.replace import copies_of
from tests.support import cli, upstream
from tests.support.states import same_runs, same_state, trained_tensors


def test_a_score_of_scipy_is_read_as_a_number(tmp_path):
    """As of sentence_prediction, with --best-checkpoint-metric pearson."""
    path = tmp_path / "model.pt"
    for score in (np.float64(66.7), np.int64(3)):
        torch.save({"args": None, "model": {}, "extra_state": {"val_loss": score}}, path)
        found = load_safely(path)["extra_state"]["val_loss"]
        assert (type(found), found) == (type(score.item()), score)
    torch.save({"args": None, "model": {}, "extra_state": {"val_loss": np.float32(1)}}, path)
    with pytest.raises(checkpoints.CheckpointError):
        load_safely(path)


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


def test_types_that_the_user_allowed_stay_allowed_after_a_broadcast():
    torch.serialization.add_safe_globals([DictConfig])
    try:
        checkpoints.allow_broadcast_types(lambda: None)
        assert DictConfig in torch.serialization.get_safe_globals()
    finally:
        torch.serialization.clear_safe_globals()
        checkpoints.allow_checkpoint_types()


def test_a_changed_byte_of_a_name_is_named(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"model": {"weight": torch.ones(2)}, "args": None}, path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"weight", b"w\xffight"))
    assert path.read_bytes() != data
    for load in (checkpoint_utils.load_checkpoint_to_cpu, load_safely):
        with pytest.raises(checkpoints.CheckpointError, match=f"^{path}: not an intact checkpoint: damaged in "):
            load(str(path))


def test_a_checkpoint_without_an_average_is_named(tmp_path):
    torch.save({"args": None, "model": {}, "extra_state": {}}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=f"^{tmp_path}/model.pt: has no average: must be of a training with --store-"):
        checkpoint_utils.load_ema_from_checkpoint(str(tmp_path / "model.pt"))


def test_each_rank_has_its_own_file_of_a_shard():
    cfg = Namespace(distributed_training=Namespace(use_sharded_state=True))
    trainer = Namespace(data_parallel_world_size=2, data_parallel_rank=1, is_fsdp=True, cfg=cfg, tpu=False)
    assert resuming._from_rank_0(trainer, lambda: "checkpoint_last-shard1.pt") == "checkpoint_last-shard1.pt"


def test_half_precision_in_one_tensor_resumes_exactly_and_only_with_the_same_weights(monkeypatch):
    """As on a GPU; None is the index of the CPU."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    args = upstream.arguments("transformer", "--fp16", "--optimizer", "adam", "--lr", "1e-3")

    def build(weights: list[nn.Parameter]) -> FP16Optimizer:
        return FP16Optimizer.build_optimizer(convert_namespace_to_omegaconf(args), weights)

    weights = [nn.Parameter(torch.ones(size).half()) for size in (3, 4)]
    first = build(weights)
    first.zero_grad()
    first.backward(sum((weight * 0.1).sum() for weight in weights))
    first.clip_grad_norm(1.0)
    first.step()
    second = build(weights)  # from the rounded ones
    second.load_state_dict(first.state_dict())
    assert torch.equal(*(next(iter(one.fp32_params.values())) for one in (first, second)))
    with pytest.raises(ValueError, match="loaded state dict contains a parameter group"):
        build([nn.Parameter(torch.ones(size).half()) for size in (3, 6)]).load_state_dict(first.state_dict())


def test_the_code_of_others_builds_no_model_without_memory(trained_once, monkeypatch):
    """It may keep what it has computed, here without numbers."""
    monkeypatch.setattr(sizes, "PACKAGES", set())
    monkeypatch.setattr(sizes, "require_held", Mock(side_effect=AssertionError))
    checkpoint_utils.load_model_ensemble([str(trained_once("transformer")[1])])
    monkeypatch.setattr(sizes, "PACKAGES", {"fairseq"})
    with pytest.raises(AssertionError):
        checkpoint_utils.load_model_ensemble([str(trained_once("transformer")[1])])


def test_a_model_without_end_is_not_built(trained_once, tmp_path):
    data, path = trained_once("transformer")
    state = load_safely(path)
    state["cfg"]["model"].encoder_layers = 10**9
    torch.save(state, tmp_path / "endless.pt")
    for load in (load_safely, lambda path: upstream.use("generate", data, path)):
        with pytest.raises(ValueError, match=f"^{tmp_path}/endless.pt: encoder_layers=1000000000: must be <= 10000$"):
            load(tmp_path / "endless.pt")


def is_rejected(path, rule) -> None:
    """By both functions that load a checkpoint, with the file's name first."""
    for load in (load_safely, lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path))):
        with pytest.raises(ValueError, match=f"^{path}: {rule}"):
            load(path)


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "model.pt")
    is_rejected(tmp_path / "model.pt", "must be a file, not a folder, a pipe or a device")


def test_a_compressed_checkpoint_is_not_unpacked(tmp_path):
    torch.save({"args": None, "model": {"x": torch.zeros(10**6)}}, tmp_path / "model.pt")
    with (
        zipfile.ZipFile(tmp_path / "model.pt") as stored,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in stored.namelist():
            archive.writestr(name, stored.read(name))
    is_rejected(tmp_path / "bomb.pt", "unpacks to 4,0[0-9,]+ bytes: must be <= the size of the file")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(10**12),
        torch.zeros(10**9, device="meta"),
        torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.long), torch.zeros(0), (10**12,)),
    ],
    ids=["of one number", "of none", "sparse"],
)
def test_a_tensor_is_no_larger_than_its_file(tensor, trained_once, tmp_path):
    state = load_safely(trained_once("transformer")[1])
    torch.save({**state, "extra_state": {**state["extra_state"], "x": [tensor]}}, tmp_path / "model.pt")
    is_rejected(tmp_path / "model.pt", "has a tensor of shape .*, which a file of [0-9,]+ bytes does not hold")


@pytest.mark.parametrize("user_dir", [cli.REPAIRS, cli.PLUGIN], ids=["repairs", "plugin"])
@pytest.mark.parametrize("option", ["encoder_embed_dim", "encoder_ffn_embed_dim"])
def test_a_model_larger_than_its_file_is_not_built(option, user_dir, trained_once, tmp_path):
    """Its options describe gigabytes."""
    data, path = trained_once("transformer")
    state = load_safely(path)
    setattr(state["cfg"]["model"], option, 10**6)
    torch.save(state, path := tmp_path / "large.pt")
    rule = "its options describe a model of [0-9,]+ parameters and [0-9,]+ other numbers: must be <= "
    said = cli.run("fairseq-generate", data, "--user-dir", user_dir, "--path", path, "--cpu", fails=True)
    assert re.search(f"error: {path}: {rule}", said)


@pytest.mark.parametrize(
    ("part", "value"),
    [("model", {"x": 3}), ("model", {3: torch.zeros(1)}), ("cfg", {"model": 3}), ("args", "x"), ("extra_state", [])],
    ids=str,
)
def test_parts_of_other_types_are_named(part, value, tmp_path):
    torch.save({"args": None, "model": {}, part: value}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=f"^{tmp_path}/model.pt: not a checkpoint of fairseq .*TypeError: {part}"):
        load_safely(tmp_path / "model.pt")


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


RESUMED = {
    "fp16": ["--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", "4", "--fp16-scale-window", "4"],
    "memory-efficient-fp16": ["--memory-efficient-fp16", "--fp16-init-scale", "4", "--fp16-scale-window", "4"],
    "amp": ["--amp", "--amp-scale-window", "2"],
    "average": ["--store-ema", "--ema-decay", "0.5", "--ema-update-freq", "5"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RESUMED)
def test_a_resumed_run_ends_as_an_uninterrupted_one(kind, data, tmp_path, monkeypatch):
    """The loss scale changes after the same updates; with `--amp`, gradients overflow whenever it has grown."""

    def on_cpu(init_scale: int, growth_interval: int) -> torch.amp.GradScaler:  # fairseq has one on a GPU only
        return torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=growth_interval)

    monkeypatch.setattr(torch.cuda.amp, "GradScaler", on_cpu)
    flags = (*RESUMED[kind], "--max-tokens", "60", "--max-epoch", "9", "--disable-validation", "--no-epoch-checkpoints")
    flags += ("--update-epoch-batch-itr", "True")  # otherwise, fairseq resumes an epoch with other batches
    for folder, stops in (("straight", [13]), ("resumed", [6, 13])):
        for stop in stops:
            upstream.run_training("transformer", data["text"], tmp_path / folder, *flags, "--max-update", stop)
    assert same_runs(tmp_path / "straight", tmp_path / "resumed")
    states = [load_safely(tmp_path / folder / "checkpoint_last.pt") for folder in ("straight", "resumed")]
    assert same_state(*(trained_tensors(state["extra_state"].get("ema", {})) for state in states))


@pytest.mark.parametrize("reset", [False, True])
def test_fine_tuning_begins_without_the_state_of_the_other_task(reset):
    restored: list = []
    trainer = Namespace(task=Namespace(load_state_dict=restored.append))
    resuming.restore_task_state({"task_state": "of the task"}, trainer, "checkpoint.pt", reset)
    assert restored == ([] if reset else ["of the task"])


@pytest.mark.parametrize(
    ("limits", "reached"),
    [
        ({}, None),
        (dict(max_update=9), "--max-update 9"),
        (dict(max_update=10), None),
        (dict(stop_time_hours=1.9), "--stop-time-hours 1.9"),
        (dict(stop_time_hours=2.1), None),
    ],
)
def test_a_finished_training_names_the_limit_that_it_has_reached(limits, reached):
    options = Namespace(optimization=Namespace(**{"max_update": 0, "stop_time_hours": 0, **limits}))
    options.checkpoint = Namespace(patience=0)
    trainer = Namespace(cfg=options, get_num_updates=lambda: 9, cumulative_training_time=lambda: 2 * 3600.0)
    assert resuming._limit_reached(trainer) == reached


@pytest.mark.parametrize(
    ("reset", "counts", "clock"),
    [({}, True, True), ({"reset_optimizer": True}, False, True), ({"reset_meters": True}, True, False)],
    ids=str,
)
def test_what_a_command_resets_starts_anew(reset, counts, clock, monkeypatch):
    """The counts of `--patience`, which both options reset, and of `--amp-batch-retries`, and the time of training."""
    *_, train = copies_of("fairseq_cli.train")
    monkeypatch.setattr(train.should_stop_early, "num_runs", 0, raising=False)
    trainer = Namespace(_amp_retries=0, cumulative_training_time=lambda: 5.0)
    trainer.cfg = Namespace(ema=Namespace(store_ema=False))
    meter = (1, "train_wall", "StopwatchMeter", {"sum": 5.0, "n": 2})
    extra = {"early_stop": {"num_runs": 3}, "amp_retries": 2, "metrics": {"default": [meter]}}
    metrics.reset()
    for restore in (resuming.restore_counts, resuming.keep_clocks):
        restore(extra, trainer, "checkpoint.pt", **reset)
    assert train.should_stop_early.num_runs == (3 if counts and clock else 0)
    assert trainer._amp_retries == (2 if counts else 0)
    assert ("train_wall" in metrics.get_meters("default")) == clock
    metrics.reset()


def test_the_time_of_a_fine_tuning_begins_at_0():
    trainer = Namespace(_previous_training_time=2, cfg=Namespace(checkpoint=Namespace(finetune_from_model="model.pt")))
    resuming.begin_time_anew({}, trainer, "checkpoint_last.pt")  # of the fine-tuning
    assert trainer._previous_training_time == 2
    resuming.begin_time_anew({}, trainer, "model.pt")
    assert trainer._previous_training_time == 0


def test_weights_that_were_changed_since_are_not_taken_back():
    """By a program that stores other weights in a checkpoint, and leaves the state of its optimizer as it is."""
    saved = torch.tensor([1.0001, 2.0001])
    optimizer = Namespace(fp16_params=[saved.half()], fp32_params=[saved.half().float()])
    optimizer.fp32_params[0][1] = 3.0
    half.restore_float32_weights(None, optimizer, {"float32_weights": [saved]})
    assert torch.equal(optimizer.fp32_params[0], torch.tensor([1.0001, 3.0]))


def test_a_place_at_the_end_of_an_epoch_of_other_data_is_none():
    place = {"version": 2, "epoch": 3, "iterations_in_epoch": 4}
    resuming.reject_place_after_the_epoch(range(5), place)
    for batches in (3, 4):
        with pytest.raises(ValueError, match=f"after batch 4 of epoch 3, which now has only {batches}: other data"):
            resuming.reject_place_after_the_epoch(range(batches), place)


@pytest.mark.parametrize(
    ("options", "epoch", "update"),
    [
        ({}, True, True),
        ({"reset_dataloader": True}, False, True),
        ({"finetune_from_model": "model.pt"}, False, False),  # of which another training begins
    ],
)
def test_only_what_goes_on_with_other_ranks_is_compared_with_before(options, epoch, update, said):
    extra = {"ranks": 2, "train_iterator": {"epoch": 3, "iterations_in_epoch": 4}}
    options = Namespace(**{"finetune_from_model": None, "reset_dataloader": False, **options})
    trainer = Namespace(data_parallel_world_size=1, cfg=Namespace(checkpoint=options))
    resuming.keep_place_in_epoch(extra, trainer, "model.pt")
    assert ("epoch 3 resumes after 8 batches" in said.text) == epoch
    assert ("an update has 0.5 times as many batches as before" in said.text) == update
