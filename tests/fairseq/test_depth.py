"""fairseq models at another depth than the trained one: the output, the log, and what is rejected."""

import logging
import re

import pytest
import torch
from fairseq import checkpoint_utils
from torch import nn

from fairseq_plugin import average
from fairseq_plugin.repairs.checkpoints import load_safely
from recurrence.depth import mark_safe, source_passes
from recurrence.loop import Loop
from tests.support import cli, language, models
from tests.support.depth import depth_log

UNSHARED = ("vanilla", "one_wide_ffn", "takase_vanilla", "s2t_vanilla")
DEEPER = ["--encoder-layers", "6", "--decoder-layers", "8"]


def deeper(arch: str) -> list[str]:
    return [*DEEPER[:2], "--decoder-layers", "6", "--block-loops", "3"] if arch.startswith("recursive") else DEEPER


@models.every_model_with_encoder
def test_models_of_translation_and_speech_run_deeper(arch, caplog):
    trained = models.tiny(arch)
    weights, used = trained.state_dict(), models.tiny(arch, *deeper(arch), seed=1)
    if arch.startswith(UNSHARED):
        with pytest.raises(RuntimeError, match=r"encoder.loop: the checkpoint stores \d blocks, this depth runs \d"):
            used.load_state_dict(weights)
        return
    used.load_state_dict(weights)
    assert [re.sub(r" \(.*?\)", "", line) for line in depth_log(caplog)] == [
        f"{side}.loop: runs {loop.passes} passes, trained with 4"
        for side, loop in zip(models.SIDES, models.loops(used))
    ]
    expected, batch = by_hand(trained, used), models.inputs(arch)
    torch.testing.assert_close(used(*batch)[0], expected(*batch)[0], rtol=0, atol=0)
    caplog.clear()
    models.tiny(arch, seed=1).load_state_dict(weights)
    assert not caplog.records


def by_hand(trained: nn.Module, used: nn.Module) -> nn.Module:
    """The trained model, its blocks run in another order, each run with what the rule gives it."""
    for name in models.SIDES:
        side, wanted = getattr(trained, name), getattr(used, name).loop.order
        own = [side.loop.own[source] for source in source_passes(side.loop.order, wanted)]
        side.loop = Loop(side.loop.blocks, wanted, own).eval()
    return trained


DEEPER_LANGUAGE = [arch for arch in language.ARCHS if arch.startswith(("cycle", "sequence", "uni"))]


@pytest.mark.parametrize(
    ("arch", "flags", "passes"),
    [
        ("ilr_small", ["--reuse-map", "3,1,2"], 6),
        ("ilr_large", ["--reuse-map", "1,1,1"], 3),
        *((arch, ["--decoder-layers", "6"], 6) for arch in DEEPER_LANGUAGE),
    ],
)
def test_language_models_run_deeper(arch, flags, passes, caplog):
    trained, used = models.tiny(arch), models.tiny(arch, *flags, seed=1)
    used.load_state_dict(trained.state_dict())
    (line,) = depth_log(caplog)
    assert re.match(rf"decoder.stack.loop: runs {passes} passes \(.*\), trained with \d \(", line)
    stored, loop = trained.decoder.stack, used.decoder.stack.loop
    tokens = language.texts()
    stored.loop = Loop(stored.loop.blocks, loop.order, loop.own, inject=stored.loop.inject).eval()
    torch.testing.assert_close(used(tokens)[0], trained(tokens)[0], rtol=0, atol=0)


@pytest.mark.slow
def test_model_overrides_change_the_depth_of_a_checkpoint(trained, corpus, caplog, tmp_path):
    """What `--model-overrides` does, and the averaged file too."""
    average.main(["--inputs", str(trained.folder), "--num-epoch-checkpoints", "2", "--output", str(tmp_path / "a.pt")])
    for path in (trained.folder / "checkpoint_last.pt", tmp_path / "a.pt"):
        caplog.clear()
        overrides = dict(data=str(corpus.data), encoder_layers=3, decoder_layers=1)
        with caplog.at_level(logging.WARNING, "recurrence.depth"):
            (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
        assert [loop.passes for loop in models.loops(model)] == [3, 1]
        assert depth_log(caplog) == [
            "encoder.loop: runs 3 passes (0 0 0), trained with 2 (0 0)",
            "decoder.loop: runs 1 passes (0), trained with 2 (0 0)",
        ]


@pytest.mark.slow
def test_further_training_forgets_the_safe_depths(trained, corpus, tmp_path):
    """They hold for the weights that were measured."""
    state, marked = load_safely(trained.folder / "checkpoint_last.pt"), tmp_path / "marked.pt"
    mark_safe(state["model"], {"encoder.loop": (1, 2), "decoder.loop": (1, 2)})
    torch.save(state, marked)
    cli.train(corpus.data, tmp_path, "--finetune-from-model", marked, "--batch-size", "16", "--max-update", "1")
    assert not [key for key in load_safely(tmp_path / "checkpoint_last.pt")["model"] if key.endswith(".safe")]
