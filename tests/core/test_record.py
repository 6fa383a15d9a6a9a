"""Recorded states and attention weights, against what the model computes."""

import pytest
import torch
from torch import nn

from recurrence.analysis import record
from tests.support import models, vision


def test_states_are_those_after_each_pass():
    model = models.tiny("ringformer_tiny")
    source, lengths, target = models.batch()
    with record.recorded_states(model) as states:
        encoded = model.encoder(source, lengths, return_all_hiddens=True)
        _, extra = model.decoder(target, encoded, return_all_hiddens=True)
    assert list(states) == ["encoder.loop", "decoder.loop"]
    for name, expected in zip(states, (encoded["encoder_states"], extra["inner_states"])):
        torch.testing.assert_close(torch.stack(states[name]), torch.stack(expected).transpose(1, 2), atol=0, rtol=0)
    before = states["encoder.loop"]
    model(source, lengths, target)
    assert states["encoder.loop"] is before, "a closed recorder listens no more"


@pytest.mark.parametrize("name", ["ringformer_vit", "uit", "owf_vit", "recursive_deit_tiny"])
def test_recorded_weights_are_those_that_the_model_applies(name):
    """Each sublayer's output is made of them; and the recorder changes nothing."""
    model = vision.small(name)
    x, seen = vision.images(model), []

    def check(attention, inputs, output):
        seen.append((attention, *inputs, output))

    attentions = [module for module in model.modules() if type(module).__name__ == "SelfAttention"]
    handles = [module.register_forward_hook(check) for module in attentions]
    expected = model(x)
    calls, seen[:] = list(seen), []
    with record.recorded_attention(model) as weights:
        found = model(x)
    assert torch.equal(found, expected)
    assert [len(kept) for kept in weights.values()] == [len(calls)]
    for recorded, (attention, n, *projected, output) in zip(weights["loop"], calls):
        qkv = projected[0] if projected and projected[0] is not None else attention.qkv(n)
        q, k, v = qkv.unflatten(-1, (3, attention.heads, -1)).permute(2, 0, 3, 1, 4)
        by_hand = torch.einsum("bhtc,bhsc->bhts", q, k).div(q.size(-1) ** 0.5).exp()
        by_hand = by_hand / by_hand.sum(-1, keepdim=True)
        torch.testing.assert_close(recorded, by_hand)
        torch.testing.assert_close(attention.out((by_hand @ v).transpose(1, 2).flatten(2)), output)
    for handle in handles:
        handle.remove()
    assert not any("attend" in vars(module) for module in model.modules())


def test_recorders_of_a_model_do_not_disturb_each_other():
    model = vision.small("uit")
    with record.recorded_attention(model) as outer:
        with record.recorded_attention(model, keep=torch.Tensor.sum) as inner:
            model(vision.images(model))
        assert torch.equal(torch.stack(inner["loop"]), torch.stack([each.sum() for each in outer["loop"]]))
        outer.clear()
        model(vision.images(model))
        assert len(outer["loop"]) == 3
    assert not any("attend" in vars(module) for module in model.modules())


def test_recorded_weights_keep_masks_and_positions():
    """Of a decoder and of a language model with ALiBi: nothing looks ahead, or at padding."""
    model = models.tiny("vanilla_tiny")
    source, lengths, target = models.batch()
    with record.recorded_attention(model) as weights:
        model(source, lengths, target)
    encoder, decoder = (weights[f"{side}.loop"] for side in models.SIDES)
    padding = source.eq(1)[:, None, None].expand_as(encoder[0])
    assert padding.any()
    assert all(not recorded[padding].any() for recorded in encoder)
    assert all(not recorded.triu(1).any() for recorded in decoder)
    text = models.tiny("ilr_small", "--position", "alibi")
    tokens = torch.arange(5, 14)[None]
    with record.recorded_attention(text) as weights:
        text(tokens)
    (recorded,) = weights.values()
    assert all(not part.triu(1).any() and torch.allclose(part.sum(-1), torch.ones(1).double()) for part in recorded)


@pytest.mark.parametrize(
    ("recorder", "build", "message"),
    [
        (record.recorded_states, lambda: nn.Linear(2, 2), "Linear: has no loop"),
        (record.recorded_attention, lambda: vision.fresh("sret_t"), "stages.0.loop: pass 1 attends within slices"),
        (record.recorded_attention, lambda: vision.fresh("recursive_mixer_s16"), "has no attention"),
        (record.recorded_attention, lambda: models.tiny("recurrent_lm"), "reads the sequence with a state"),
    ],
)
def test_recorders_reject_by_name(recorder, build, message):
    with pytest.raises(ValueError, match=message), recorder(build()):
        pass
