"""What holds for every registered language model, whatever it computes."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from recurrence import count
from tests.support import language, models

EXACT = dict(rtol=0, atol=1e-10)


def test_no_architecture_is_left_out():
    assert {arch for arch, _ in language.CASES} == set(language.ARCHS)
    assert set(language.VARIANTS) == set(language.TINY) == set(language.FAMILY.values())
    assert not set(language.ARCHS) & set(models.ARCHS)


# Numerics


@language.every_variant
def test_finite_when_fresh_memory_is_not(arch, flags):
    with models.poisoned_memory():
        assert torch.empty(3).isnan().all()
        model = language.tiny(arch, *flags).train()
        for left_pad in (False, True):
            loss, gradients = language.loss_and_gradients(model, language.texts(left_pad=left_pad))
            assert loss.isfinite()
            assert all(gradient.isfinite().all() for gradient in gradients.values())


@language.every_variant
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 1.0)], ids=str)
def test_lower_precision_is_close(arch, flags, dtype, tolerance):
    model, tokens = language.tiny(arch, *flags), language.texts((7, 7))
    expected = model(tokens)[0]
    got = model.to(dtype)(tokens)[0]
    assert got.dtype == dtype
    assert (got.double() - expected).abs().mean() < tolerance * expected.std()


@language.every_arch
def test_float32_at_width_equals_float64(arch):
    """Wide enough for all kernels that are chosen by type and size, in a training step and in decoding."""
    wide = ["--decoder-embed-dim=256", "--decoder-ffn-embed-dim=512"]
    model, tokens = language.tiny(arch, *wide, noise=0.02), language.texts((9, 9, 9, 9))
    loss, gradients = language.loss_and_gradients(model, tokens)
    loss32, gradients32 = language.loss_and_gradients(model.float(), tokens)
    assert loss32.item() == pytest.approx(loss.item(), rel=1e-3)
    for name, gradient in gradients.items():
        assert (gradients32[name] - gradient).norm() < 1e-3 * gradient.norm(), name
    with torch.no_grad():
        expected, state = model(tokens)[0], {}
        steps = [model.decoder(tokens[:, : t + 1], incremental_state=state)[0] for t in range(9)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=0, atol=1e-4 * expected.std().item())


@language.every_arch
def test_a_seed_repeats_a_training_step_and_eval_has_no_dropout(arch):
    model, tokens = language.tiny(arch, "--dropout", "0.1"), language.texts()
    assert torch.equal(model(tokens)[0], model(tokens)[0])
    first, again, other = (language.loss_and_gradients(model.train(), tokens, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@language.every_variant
@pytest.mark.parametrize("left_pad", [False, True], ids=["right", "left"])
def test_a_text_ignores_its_batch_and_all_padding(arch, flags, left_pad):
    model = language.tiny(arch, *flags)
    rows = models.sentences((5, 2, 1, 7), language.SYMBOLS)
    expected = [model(row[None])[0][0] for row in rows]
    for extra in (0, 3):
        tokens = models.collate(rows, left_pad, length=7 + extra)
        found = model(tokens)[0]
        assert found.isfinite().all()
        for row, keep, alone in zip(found, language.kept(tokens), expected):
            torch.testing.assert_close(row[keep], alone, **EXACT)


@language.every_variant
@pytest.mark.parametrize("lengths", [(6, 6), (6, 3)], ids=["no padding", "padding"])
def test_the_future_leaves_the_past_alone(arch, flags, lengths):
    model, tokens = language.tiny(arch, *flags), language.texts(lengths)
    before = model(tokens)[0][0]
    for place in range(1, 6):
        edited = tokens.clone()
        edited[0, place] = models.dictionary(language.SYMBOLS).unk()
        after = model(edited)[0][0]
        torch.testing.assert_close(after[:place], before[:place], **EXACT)
        assert (after[place:] - before[place:]).abs().amax(1).min() > 1e-8


@language.every_variant
def test_texts_may_be_longer_than_those_of_training(arch, flags):
    """Unless their positions were learned."""
    model = language.tiny(arch, *flags)
    longer = language.texts((language.POSITIONS + 3,))
    if model.decoder.inputs.embed_positions is None:
        assert model.max_positions() > 10**6
        assert model(longer)[0].isfinite().all()
    else:
        assert model.max_positions() == language.POSITIONS
        with pytest.raises(ValueError, match=f"67 tokens: must be <= the {language.POSITIONS} learned positions"):
            model(longer)


# Gradients


@language.every_variant
def test_gradients_reach_every_parameter(arch, flags):
    model = language.tiny(arch, *flags)
    _, gradients = language.loss_and_gradients(model, language.texts((9, 12, 30)))
    assert gradients.keys() == dict(model.named_parameters()).keys()
    assert not [name for name, gradient in gradients.items() if not gradient.abs().max() > 1e-9]


def is_looped(arch: str) -> bool:
    """Whether its recurrence is over depth, so that its passes can be given blocks of their own."""
    return bool(language.loops(language.tiny(arch)))


LOOPED = [case for case in language.CASES if is_looped(case[0]) and "--inject-embedding" not in case[1]]


@pytest.mark.parametrize(("arch", "flags"), LOOPED)
def test_tied_gradient_is_the_sum_of_the_untied(arch, flags):
    tied, tokens = language.tiny(arch, *flags), language.texts()
    untied, order = language.untied(tied), tied.decoder.stack.loop.order
    loss, gradients = language.loss_and_gradients(tied, tokens)
    loss_apart, apart = language.loss_and_gradients(untied, tokens)
    torch.testing.assert_close(loss, loss_apart, **EXACT)
    expected = {}
    for key, gradient in apart.items():
        if key.startswith("decoder.stack.loop.blocks."):
            head, which, rest = key[: len("decoder.stack.loop.blocks")], *key.split(".", 5)[4:]
            key = f"{head}.{order[int(which)]}.{rest}"
        expected[key] = expected.get(key, 0) + gradient
    torch.testing.assert_close(gradients, expected, **EXACT)
    assert count.unshared(tied) == count.stored(untied)


@language.every_variant
def test_checkpointing_changes_nothing(arch, flags):
    """With dropout, bit for bit."""
    rates = ["--dropout", "0.2"]
    plain = language.tiny(arch, *flags, *rates).train()
    checkpointed = language.tiny(arch, *flags, *rates, "--checkpoint-activations").train()
    loss, gradients = language.loss_and_gradients(plain, language.texts())
    loss_again, again = language.loss_and_gradients(checkpointed, language.texts())
    assert torch.equal(loss, loss_again)
    assert gradients.keys() == again.keys()
    assert all(torch.equal(gradients[name], again[name]) for name in gradients)


# Storing


def stored_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict without the marks of fairseq's adaptive modules, which hold nothing."""
    marks = ("_float_tensor", "adaptive_softmax.version")
    return {key: tensor for key, tensor in model.state_dict().items() if not key.endswith(marks)}


@language.every_variant
def test_each_stored_tensor_has_one_key(arch, flags):
    model = language.tiny(arch, *flags)
    tensors = stored_tensors(model)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == len(tensors)
    assert tensors.keys() == dict(model.named_parameters()).keys()


@language.every_variant
def test_saved_and_loaded_strictly(arch, flags, tmp_path):
    model, tokens = language.tiny(arch, *flags), language.texts()
    stored = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    torch.save(model.state_dict(), tmp_path / "model.pt")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    overhead = 600 * len(model.state_dict()) + 2000  # name, shape and alignment of each tensor
    for file, read in (("model.pt", torch.load), ("model.safetensors", load_file)):
        assert stored <= (tmp_path / file).stat().st_size < stored + overhead
        fresh = language.tiny(arch, *flags, seed=1)
        assert not torch.equal(fresh(tokens)[0], model(tokens)[0])
        fresh.load_state_dict(read(tmp_path / file), strict=True)
        expect_equal(fresh, model, tokens)


def expect_equal(one: nn.Module, other: nn.Module, tokens: torch.Tensor) -> None:
    assert torch.equal(language.log_probabilities(one, tokens), language.log_probabilities(other, tokens))


@language.every_variant
@pytest.mark.parametrize(
    "make", [copy.deepcopy, lambda model: copy.deepcopy(model).bfloat16().double()], ids=["copied", "cast"]
)
def test_copies_and_casts_keep_what_is_tied(arch, flags, make):
    """After loading other weights the copy computes what the other model does, so it uses no tensor but its own."""
    model, tokens = language.tiny(arch, *flags), language.texts()
    before, other = language.log_probabilities(model, tokens), language.tiny(arch, *flags, seed=1)
    made = make(model)
    made.load_state_dict(other.state_dict(), strict=True)
    expect_equal(made, other, tokens)
    assert torch.equal(language.log_probabilities(model, tokens), before)
    expected = language.loss_and_gradients(other, tokens)
    torch.testing.assert_close(language.loss_and_gradients(made, tokens), expected, **EXACT)
