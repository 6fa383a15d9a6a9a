"""Early exit in fairseq: thresholds at which no, every or some pass ends the loop."""

import re
from argparse import Namespace

import pytest
import torch
from torch import nn

from fairseq_plugin.modules.budget import set_budget
from tests.support import cli, models
from tests.support.exit_reference import ExitReference, some_exits
from tests.support.searching import (
    OVER_DEPTH,
    continue_prompts,
    expect_equal,
    generator,
    looped,
    prompts,
    search,
    sources,
    translate,
    varied_model,
)


def leaving(model: nn.Module, threshold: float) -> nn.Module:
    """The model with early exit."""
    set_budget(model, Namespace(exit_threshold=threshold))
    return model


def shallow(model: nn.Module) -> nn.Module:
    """The model, which from now on runs only the first pass of each loop."""
    for loop in models.loops(model):
        loop.run = (0,)
    return model


def averages(model: nn.Module) -> list[float]:
    """The average numbers of passes of encoder and decoder."""
    return [side.early_exit.tally.average for side in (model.encoder, model.decoder)]


@models.every_model_with_encoder
def test_translation_with_no_exit_and_after_the_first_pass(arch):
    _, source = sources(arch)
    expected = translate(generator(varied_model(arch)), source)
    model = leaving(varied_model(arch), 1e-12)
    expect_equal(translate(generator(model), source), expected)
    assert averages(model) == [loop.passes for loop in models.loops(model)]
    model = leaving(varied_model(arch), 1e12)
    expect_equal(translate(generator(model), source), translate(generator(shallow(varied_model(arch))), source))
    assert averages(model) == [1, 1]


@pytest.mark.parametrize(("arch", "flags"), OVER_DEPTH)
def test_continuation_with_no_exit_and_after_the_first_pass(arch, flags):
    def found(model: nn.Module) -> list:
        return continue_prompts(search(model, beam_size=3, max_len_b=14), prompts())

    expect_equal(found(leaving(looped(arch, *flags), 1e-12)), found(looped(arch, *flags)))
    expect_equal(found(leaving(looped(arch, *flags), 1e12)), found(shallow(looped(arch, *flags))))


@models.every_model_with_encoder
@torch.no_grad()
def test_later_words_see_the_states_with_which_earlier_ones_left(arch):
    model = models.tiny(arch)
    source, lengths, target = models.inputs(arch, (5, 3, 6), target_lengths=(30, 30, 30))
    decoder, out = model.decoder, model.encoder(source, lengths)
    first = decoder.inputs(target, None)

    def whole_texts(x: torch.Tensor) -> dict:
        return decoder._arguments(None, out, None, None)(x, 0)

    threshold = 1.3 * some_exits(ExitReference(decoder.loop, whole_texts, 0), first)
    reference, state = ExitReference(decoder.loop, whole_texts, threshold), {}
    leaving(model, threshold)
    for t in range(30):
        found, _ = decoder(target[:, : t + 1], out, state)
        expected = decoder.output_layer(decoder.finish(reference.read(first[:, t : t + 1])))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert decoder.early_exit.tally.total == reference.ran


@models.every_model_with_encoder
def test_the_threshold_0_changes_nothing(arch):
    model, batch = models.tiny(arch), models.inputs(arch)
    expected = model(*batch)[0]
    assert torch.equal(leaving(model, 0.0)(*batch)[0], expected)
    assert model.encoder.early_exit is model.decoder.early_exit is None


def test_training_runs_all_passes():
    model = leaving(models.tiny("universal_tiny", "--dropout", "0", "--activation-dropout", "0"), 1e12).train()
    batch = models.inputs("universal_tiny")
    found = model(*batch)[0]
    words = batch[2] != model.decoder.dictionary.pad()  # training computes what stands at the others without their mask
    torch.testing.assert_close(found[words], models.tiny("universal_tiny")(*batch)[0][words])
    assert not model.encoder.early_exit.tally.entries


@pytest.mark.slow
def test_the_command_reports_how_many_passes_ran(trained, corpus):
    def generated(threshold: float) -> str:
        overrides = "--model-overrides", f"{{'exit_threshold': {threshold}}}"
        path, flags = trained.folder / "checkpoint_last.pt", ("--beam", "2", "--max-len-b", "15")
        return cli.generate(corpus.data, path, *flags, "--gen-subset", "valid", *overrides)

    log = generated(1e9)
    for side in models.SIDES:
        assert re.search(rf"early exit, {side}: 1\.00 of 2 passes ran on average", log)
    assert "early exit" not in generated(0)
