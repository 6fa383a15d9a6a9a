"""The benchmarks: what they time, count and print."""

import os
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import common, language, scan, speech, translation, vision
from recurrence import linear
from tests.support import cli


def test_times_are_taken_in_turn_and_compared_within_a_round(monkeypatch):
    now, calls = [0.0], []
    lasts = {"upstream": iter([9, 1, 2, 10]), "ours": iter([9, 3, 1, 10])}  # the first round warms up
    monkeypatch.setattr(common.time, "perf_counter", lambda: now[0])

    def run(name):
        calls.append(name)
        now[0] += next(lasts[name])

    rows = common.ratios({name: lambda name=name: run(name) for name in lasts}, rounds=3, base="upstream")
    assert calls == ["upstream", "ours"] * 4
    assert rows == {"upstream": (2, 1), "ours": (3, 1)}  # 3 / 1, 1 / 2, 10 / 10


def test_shares_are_of_all_products_in_the_time_that_was_measured(monkeypatch):
    """Whichever library and kernel computes them."""
    monkeypatch.setattr(common, "machine_rate", lambda: 1e6)
    layer, x = nn.Linear(512, 1024), torch.randn(4, 512)
    q = torch.randn(1, 2, 8, 16)
    work = {"linear": lambda: linear.apply(layer, x), "attention": lambda: F.scaled_dot_product_attention(q, q, q)}
    shares = common.shares(work, dict.fromkeys(work, (2.0, 1.0)))
    assert shares == {"linear": 4 * 512 * 1024 / 1e6, "attention": 2 * 2 * 8 * 8 * 16 / 1e6}


def test_a_machine_has_a_rate():
    assert common.machine_rate(repeats=1) > 1e8


@pytest.mark.slow
def test_speech_is_compared_with_fairseqs_model(monkeypatch, capsys):
    small = {"embed_dim": 8, "ffn_embed_dim": 8, "attention_heads": 2, "layers": 2}
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in small.items()}
    unique = dict(encoder_unique_layers=1, decoder_unique_layers=1)
    monkeypatch.setattr(speech, "SIZES", {**sizes, **unique, "conv_channels": 8})
    monkeypatch.setattr(speech, "FRAMES", 20)
    monkeypatch.setattr(translation, "peak_memory", lambda *_: {})
    monkeypatch.setattr(translation, "set_up", lambda *_: "")  # which would set the threads of every later test
    options = common.parser("", rounds=1).parse_args([])
    translation.compare("benchmarks.speech", options, speech.ARCHS, speech.build, speech.batch, trained_on=2)
    output = capsys.readouterr().out
    assert "Training step, 2 x 20 -> 20" in output
    assert all(output.count(f"\n{arch}") == 2 for arch in speech.ARCHS)


def test_cached_generation_of_the_benchmark_gives_the_same_logits_each_time(monkeypatch):
    monkeypatch.setattr(language, "LENGTH", 12)
    monkeypatch.setattr(language, "ENDS", range(12 - language.TOKENS, 12))
    model = language.build(language.LOOPED, "rotary")
    cached, recomputed = language.generation(model, True), language.generation(model, False)
    first, expected = cached(), recomputed()
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(cached(), first)


@pytest.mark.slow
def test_peak_memory_holds_parameters_gradients_and_adam():
    output = cli.run(
        sys.executable, "-m", "benchmarks.vision", "--threads", "1", "--peak-memory", "sret_ext", fresh=True
    )
    assert int(output.split()[-1]) > 4 * 4 * 4.0e6


def test_counts_of_ringformer(monkeypatch, capsys):
    monkeypatch.setattr(vision, "LARGE", ("sret_ext",))
    monkeypatch.setattr(vision, "SMALL", ("sret_ext",))
    vision.show_counts()
    output = capsys.readouterr().out
    assert "By RingFormer's rule: 18.3401 GFLOPs, 0.6972 of them for 48 level signals of rank 48" in output
    assert "The paper counts 19.0302" in output


@pytest.mark.parametrize(
    ("benchmark", "arguments", "message"),
    [
        (scan, ["--tokens", "500"], "--tokens 500: must be 0, or at least 3,000"),
        (scan, ["--tokens", "2500"], "--tokens 2500: must be 0, or at least 3,000"),
        (scan, ["--rounds", "0"], "argument --rounds: 0: must be >= 1"),
        (vision, ["--threads", "0"], "argument --threads: 0: must be >= 1"),
        (translation, ["--arch", "ilr_small"], "argument --arch: invalid choice: 'ilr_small'"),
    ],
)
def test_options_that_do_not_fit_are_named_before_any_work(benchmark, arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "set_up", None)
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()
    assert message in capsys.readouterr().err


def gpu_stages(tmp_path, fails: bool = False, **settings: str) -> dict[str, str]:
    """How each stage of tests/gpu.sh ended; `fails` says whether its exit status must tell of a failure."""
    script = cli.REPOSITORY / "tests" / "gpu.sh"
    env = {"PATH": f"{cli.SCRIPTS}:{os.environ['PATH']}", "OUT": str(tmp_path), **settings}
    cli.run("bash", script, fails=fails, env=env)
    lines = (tmp_path / "summary.txt").read_text().splitlines()
    return {line[:34].strip(): line[34:].strip() for line in lines}


def test_the_gpu_script_reports_how_each_stage_ended(tmp_path):
    stages = gpu_stages(tmp_path, BUDGET="0")
    assert set(stages.values()) == {"not reached"}
    assert {"tests", "train-fp16", "decode-fp16", "image-compile", "bench-translation"} <= set(stages)
    assert gpu_stages(tmp_path, STAGES="environment")["environment"].endswith("passed")
    assert "failed (1)" in gpu_stages(tmp_path, fails=True, STAGES="environment", PYTHON="false")["environment"]
