"""`recurrent_lm`: short texts, initial values and windows; recorded results are in tests/test_published.py."""

import re

import pytest
import torch

from tests.support import language, models
from tests.support.golden import golden
from tests.support.recorded import load


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


def test_projections_into_the_residual_stream_start_smaller():
    torch.manual_seed(0)
    model = models.build("recurrent_lm", "--decoder-layers", "2", "--position", "learned", on=language.task(65))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert parameter.eq(1).all()
        else:
            joins = re.search(r"\.(out|down)\.", name)
            assert parameter.std().item() == pytest.approx(0.01 if joins else 0.02, rel=0.05), name


@pytest.mark.parametrize("lengths", [(9, 9), (9, 7)], ids=["without padding", "padding left"])
@pytest.mark.parametrize("more", [[], ["--accumulate"]], ids=["forgetting", "accumulating"])
@torch.no_grad()
def test_each_batch_of_training_draws_its_window(more, lengths):
    tokens = language.texts(lengths, left_pad=True)
    keep = models.is_token(tokens)
    model = models.tiny("recurrent_lm", "--window", "3", "--window-range", "2,4", *more)
    fixed = {w: models.tiny("recurrent_lm", "--window", str(w), *more)(tokens)[0][keep] for w in (2, 3, 4)}
    assert torch.equal(model(tokens)[0][keep], fixed[3])  # evaluation reads --window
    model.train()
    drawn = []
    for seed in range(30):
        torch.manual_seed(seed)
        logits = model(tokens)[0][keep]
        drawn.append([w for w in fixed if torch.equal(logits, fixed[w])])
    assert all(len(each) == 1 for each in drawn)
    assert {each[0] for each in drawn} == {2, 3, 4}


def test_a_window_may_be_as_long_as_the_learned_positions():
    model = models.build("recurrent_lm", *language.TINY["KausikRecurrence"], "--window", "64", "--position", "learned")
    assert model(language.texts((64,)))[0].isfinite().all()
