"""`recurrent_lm`: an independent reference, and windows; recorded results are in tests/test_published.py."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support import language, models
from tests.support.golden import golden
from tests.support.recorded import load
from tests.support.scan_reference import plain_block, published

VARIANTS = language.VARIANTS["KausikRecurrence"]


@pytest.mark.parametrize("name", ["kausik_rec_1layer", "kausik_rec_2layer"])
def test_short_texts_follow_the_formula_where_the_published_code_does_not(name):
    file = golden(name)
    model = load(name, file)
    tokens, recorded = file["inputs"]["idx"], file["outputs"]
    for length in range(1, 5):
        logits = model(tokens[:, :length])[0]
        torch.testing.assert_close(logits, recorded["logits"][:, :length], rtol=0, atol=1e-9)
        theirs = recorded["short_as_published"][f"t{length}"]
        assert torch.allclose(logits, theirs, rtol=0, atol=1e-9) == (length >= 3)


def reference(model: torch.nn.Module, tokens: Tensor, regular: bool) -> Tensor:
    """Logits of one text by the formula as published, (T,) -> (1, T, vocabulary)."""
    decoder = model.decoder
    embedding = decoder.embed_tokens.weight
    x = embedding[tokens][None]
    if decoder.inputs.embed_positions is not None:
        x = x + decoder.inputs.embed_positions.weight[: len(tokens)]
    for block in decoder.stack.loop.blocks:
        x = plain_block(block, x) if regular else published(block, x)
    return F.layer_norm(x, (x.size(-1),), decoder.stack.norm.weight, None, 1e-5) @ embedding.T


# Relative positions have a reference of their own, in test_positions.py.
@pytest.mark.parametrize("name", [name for name in VARIANTS if "relative" not in name])
@pytest.mark.parametrize("left_pad", [False, True])
def test_reference_equality(name, left_pad):
    model, lengths = models.tiny("recurrent_lm", *VARIANTS[name]), (1, 9, 2, 6)
    tokens = language.texts(lengths, left_pad)
    logits = model(tokens)[0]
    for row, length in enumerate(lengths):
        real = slice(tokens.size(1) - length, None) if left_pad else slice(length)
        expected = reference(model, tokens[row, real], name == "regular")
        torch.testing.assert_close(logits[row, real], expected[0], rtol=0, atol=1e-9)


def test_projections_into_the_residual_stream_start_smaller():
    torch.manual_seed(0)
    model = models.build("recurrent_lm", "--decoder-layers", "2", on=language.task(65))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert parameter.eq(1).all()
        else:
            joins = re.search(r"\.(out|down)\.", name)
            assert parameter.std().item() == pytest.approx(0.01 if joins else 0.02, rel=0.05), name


@pytest.mark.parametrize("more", [[], ["--accumulate"]], ids=["forgetting", "accumulating"])
@torch.no_grad()
def test_each_batch_of_training_draws_its_window(more):
    tokens = language.texts((9, 9))
    model = models.tiny("recurrent_lm", "--window", "3", "--window-range", "2,4", *more)
    fixed = {w: models.tiny("recurrent_lm", "--window", str(w), *more)(tokens)[0] for w in (2, 3, 4)}
    assert torch.equal(model(tokens)[0], fixed[3])  # evaluation reads --window
    model.train()
    drawn = []
    for seed in range(30):
        torch.manual_seed(seed)
        logits = model(tokens)[0]
        drawn.append([w for w in fixed if torch.equal(logits, fixed[w])])
    assert all(len(each) == 1 for each in drawn)
    assert {each[0] for each in drawn} == {2, 3, 4}


def test_a_window_may_be_as_long_as_the_learned_positions():
    model = models.build("recurrent_lm", *language.TINY["KausikRecurrence"], "--window", "64", "--position", "learned")
    assert model(language.texts((64,)))[0].isfinite().all()
