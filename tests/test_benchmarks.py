"""The benchmarks: what they time, count and print."""

import os
from functools import partial

import pytest
import timm
import torch

from benchmarks import common, language, scan, translation
from tests.support import cli, vision


def test_times_are_taken_in_turn_and_compared_within_a_round(monkeypatch):
    now, calls = [0.0], []
    lasts = {"upstream": iter([9, 1, 2, 10]), "ours": iter([9, 3, 1, 10])}  # the first round warms up
    monkeypatch.setattr(common.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(common, "DEVICE", "cpu")  # a GPU warms up for longer

    def run(name):
        calls.append(name)
        now[0] += next(lasts[name])

    rows = common.ratios({name: lambda name=name: run(name) for name in lasts}, rounds=3, base="upstream")
    assert calls == ["upstream", "ours"] * 4
    assert rows == {"upstream": (2, 1), "ours": (3, 1)}  # 3 / 1, 1 / 2, 10 / 10


@pytest.mark.slow
def test_translation_is_compared_with_fairseqs_model(monkeypatch, capsys):
    small = {"embed_dim": 16, "ffn_embed_dim": 16, "attention_heads": 2, "layers": 2}
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in small.items()}
    monkeypatch.setattr(translation, "RATES", sizes)
    monkeypatch.setattr(translation, "peak_memory", lambda *_: {})
    monkeypatch.setattr(translation, "set_up", lambda *_: "")  # which would set the threads of every later test
    options = common.parser("", rounds=1).parse_args([])
    archs = ("transformer", "ringformer_base")
    translation.compare(options, archs, trained_on=2)
    output = capsys.readouterr().out
    assert "Training step, 2 x 28 tokens" in output
    assert all(output.count(f"\n{arch}") == 2 for arch in archs)


def test_cached_generation_of_the_benchmark_gives_the_same_logits_each_time(monkeypatch):
    monkeypatch.setattr(language, "LENGTH", 12)
    monkeypatch.setattr(language, "ENDS", range(12 - language.TOKENS, 12))
    model = language.build(language.LOOPED, "rotary")
    cached, recomputed = language.generation(model, True), language.generation(model, False)
    first, expected = cached(), recomputed()
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(cached(), first)


def test_the_published_recurrence_of_the_benchmark_gives_the_same_logits(monkeypatch):
    monkeypatch.setattr(scan, "LENGTH", 12)
    tokens = torch.randint(4, scan.SYMBOLS, (2, 12))
    found = [scan.build(name)(tokens)[0] for name in ("as published", "recurrent_lm")]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_fewer_images_than_are_timed_are_timed_again(monkeypatch, capsys):
    for package in ("ctranslate2", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    from benchmarks import serving

    small, timed = partial(timm.create_model, **{**vision.STACK, "depth": 1}), []
    monkeypatch.setattr(timm, "create_model", small)
    monkeypatch.setattr(serving, "milliseconds", lambda run: timed.append([run(index) for index in range(3)]) or 1.0)
    serving.of_images("ringformer_vit", 2)
    assert "of 2 classes equal" in capsys.readouterr().out
    by_torch, *by_onnx = timed
    assert len(by_onnx) == 2
    assert torch.equal(by_torch[0], by_torch[2])
    assert all(len(logits) == 1 for run in by_onnx for (logits,) in run)


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ({"BUDGET": "0"}, "not reached"),
        ({"STAGES": "environment"}, "passed"),
        ({"STAGES": "environment", "PYTHON": "false"}, "failed (1)"),
    ],
)
def test_the_gpu_script_reports_how_each_stage_ended(settings, verdict, tmp_path):
    env = {"PATH": f"{cli.SCRIPTS}:{os.environ['PATH']}", "PYTHON": "python3", "OUT": str(tmp_path), **settings}
    cli.run("bash", cli.REPOSITORY / "tests" / "gpu.sh", fails="failed" in verdict, env=env)
    stages = (tmp_path / "summary.txt").read_text().splitlines()
    assert len(stages) == 1 if "STAGES" in settings else len(stages) > 20
    assert all(verdict in stage for stage in stages)
