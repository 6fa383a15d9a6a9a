"""SReT's recursion in translation: its coefficients, from the model to fairseq's logs."""

import json

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.logging import metrics

from tests.support import cli, models

SMALL = ["--arch", "recursive_iwslt_de_en", "--encoder-layers", "4", "--decoder-layers", "2", "--nll"]


def names(model) -> set[str]:
    return {f"{name}.{kind}" for name in model.coefficients() for kind in ("identity", "branch")}


def test_coefficients_have_names():
    expected = {f"encoder.block{block}.{name}" for block in (0, 1) for name in ("self_attn", "ffn")}
    expected |= {f"decoder.block{block}.{name}" for block in (0, 1) for name in ("self_attn", "cross_attn", "ffn")}
    assert set(models.tiny("recursive_iwslt_de_en").coefficients()) == expected
    expected |= {f"{side}.pass{index}.nll" for side in models.SIDES for index in range(4)}
    with_projections = models.tiny("recursive_wmt_en_de")
    assert set(with_projections.coefficients()) == expected
    scalars = [parameter for parameter in with_projections.parameters() if parameter.shape == (1,)]
    assert len(scalars) == 2 * len(expected)
    for option in ([], ["--nll"]):
        assert not models.tiny("recursive_iwslt_de_en", "--no-lrc", *option).coefficients()


def test_training_logs_the_coefficients_of_the_last_update():
    model, inputs = models.tiny("recursive_wmt_en_de").train(), models.batch()
    values = dict(model.coefficients())
    with metrics.aggregate() as logged:
        model(*inputs)
        with torch.no_grad():
            for coefficients in values.values():
                coefficients.branch.fill_(0.125)
        model(*inputs)
    smoothed = logged.get_smoothed_values()
    assert names(model) <= set(smoothed)
    assert all(smoothed[f"{name}.branch"] == 0.125 for name in values)
    identity = values["encoder.block0.ffn"].identity.item()
    assert smoothed["encoder.block0.ffn.identity"] == pytest.approx(identity, abs=1e-4)


def test_evaluation_logs_no_coefficient():
    with metrics.aggregate() as logged:
        models.tiny("recursive_wmt_en_de").eval()(*models.batch())
    assert not logged.get_smoothed_values()


@pytest.mark.slow
def test_json_log_and_tensorboard_have_the_curves(corpus, tmp_path):
    flags = (*SMALL, "--max-epoch", "2", "--batch-size", "16", "--no-epoch-checkpoints")
    log = cli.train(corpus.data, tmp_path / "run", *flags, "--tensorboard-logdir", tmp_path / "board")
    lines = cli.logged(log)
    keys = {key for key in lines[0] if key.endswith((".identity", ".branch"))}
    assert len(keys) == 2 * (2 * 2 + 1 * 3 + 4 + 2)
    for key in keys:
        assert lines[0][key] == pytest.approx(1, abs=0.01)
        assert len({line[key] for line in lines}) > 4, key
    saved = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "run" / "checkpoint_last.pt"))["model"]
    (event,) = (tmp_path / "board" / "train_inner").glob("events*")
    assert b"decoder.block0.cross_attn.branch" in event.read_bytes()
    # The log has the values with which the last update was computed, the checkpoint those that it left.
    last, stored = lines[-1]["encoder.block0.ffn.branch"], saved["encoder.loop.blocks.0.residuals.1.branch"].item()
    assert abs(last - stored) <= 0.0021
    assert json.dumps(lines[-1])
    search = ("--gen-subset", "valid", "--beam", "2")
    generated = cli.generate(corpus.data, tmp_path / "run" / "checkpoint_last.pt", *search)
    assert len(cli.hypotheses(generated)) == corpus.sentences["valid"]
