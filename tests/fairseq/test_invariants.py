"""What holds for every registered architecture, whatever it computes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.support import models, speech

EXACT = dict(rtol=0, atol=1e-10)
# What may share a matrix, and how many are left; the input of speech has none.
SHARING = {
    "untied": ([], 3),
    "output tied": (["--share-decoder-input-output-embed"], 2),
    "all tied": (["--share-all-embeddings"], 1),
}
SHARED = {(arch, name): case for arch in models.ARCHS for name, case in SHARING.items()}
SHARED |= {
    (arch, name): (flags, matrices - 1)
    for arch in speech.ARCHS
    for name, (flags, matrices) in SHARING.items()
    if matrices > 1
}
every_sharing = pytest.mark.parametrize(
    ("arch", "flags"), [(arch, flags) for (arch, _), (flags, _) in SHARED.items()], ids=map("-".join, SHARED)
)


def joint(arch: str, *flags: str, **options) -> nn.Module:
    """A tiny model on a joined dictionary, if it reads words."""
    joined = None if arch in speech.ARCHS else models.task(models.TARGET_SYMBOLS, models.TARGET_SYMBOLS)
    return models.tiny(arch, *flags, on=joined, **options)


def as_type(inputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Inputs for a model of another type: speech is numbers, words are not."""
    return tuple(part.to(dtype) if part.is_floating_point() else part for part in inputs)


# Numerics


@models.every_case
def test_finite_when_fresh_memory_is_not(arch, flags):
    with models.poisoned_memory():
        assert torch.empty(3).isnan().all()
        model = models.tiny(arch, *flags).train()
        for left_pad in (False, True):
            loss, gradients = models.loss_and_gradients(model, models.inputs(arch, left_pad=left_pad))
            assert loss.isfinite()
            assert all(gradient.isfinite().all() for gradient in gradients.values())


@models.every_model
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 1.0)], ids=str)
def test_lower_precision_is_close(arch, dtype, tolerance):
    model, inputs = models.tiny(arch), models.inputs(arch)
    expected = model(*inputs)[0]
    logits = model.to(dtype)(*as_type(inputs, dtype))[0]
    assert logits.dtype == dtype
    assert (logits.double() - expected).abs().mean() < tolerance * expected.std()


@models.every_model
def test_float32_at_width_equals_float64(arch):
    """Wide enough for all kernels that are chosen by type and size, in a training step and in decoding."""
    wide = [f"--{side}-{name}" for side in models.SIDES for name in ("embed-dim=256", "ffn-embed-dim=512")]
    wide = [flag for flag in wide if not (arch.startswith("one_wide_ffn") and "decoder-ffn" in flag)]
    depth = 4 if arch == "sandwich" else 2  # which has a first, a middle and a last
    layers = [f"--encoder-layers={depth}", f"--decoder-layers={depth}"]
    on = models.task_of(arch, target=300)
    model = models.tiny(arch, *wide, *layers, noise=0.02, on=on)
    inputs = models.inputs(arch, (9, 7, 8, 9), (9, 9, 9, 9), symbols=(models.SOURCE_SYMBOLS, 300))
    loss, gradients = models.loss_and_gradients(model, inputs)
    inputs = as_type(inputs, torch.float32)
    loss32, gradients32 = models.loss_and_gradients(model.float(), inputs)
    assert loss32.item() == pytest.approx(loss.item(), rel=1e-3)
    for name, gradient in gradients.items():
        assert (gradients32[name] - gradient).norm() < 1e-4 * gradient.norm(), name
    with torch.no_grad():
        logits, encoder_out, state = model(*inputs)[0], model.encoder(*inputs[:2]), {}
        steps = [model.decoder(inputs[2][:, : t + 1], encoder_out, state)[0] for t in range(9)]
    torch.testing.assert_close(torch.cat(steps, dim=1), logits, rtol=0, atol=1e-4 * logits.std().item())


@models.every_model
def test_a_seed_repeats_a_training_step_and_eval_has_no_dropout(arch):
    model, inputs = models.tiny(arch), models.inputs(arch)
    assert torch.equal(model(*inputs)[0], model(*inputs)[0])
    first, again, other = (models.loss_and_gradients(model.train(), inputs, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def alone(model: nn.Module, arch: str, source: list[Tensor], target: list[Tensor]) -> list[Tensor]:
    """Logits of each sentence by itself, without any padding."""
    return [
        model(*models.collate_source(arch, [said]), models.collate([previous], target=True))[0][0]
        for said, previous in zip(source, target)
    ]


@models.every_case
@pytest.mark.parametrize("source_left", [False, True], ids=["source right", "source left"])
@pytest.mark.parametrize("target_left", [False, True], ids=["target right", "target left"])
def test_a_sentence_ignores_its_batch_and_all_padding(arch, flags, source_left, target_left):
    model = models.tiny(arch, *flags)
    source = models.source(arch, (5, 2, 7, 7))
    target = models.sentences((3, 6, 2, 6), models.TARGET_SYMBOLS)
    expected = alone(model, arch, source, target)
    for extra in (0, 3):
        previous = models.collate(target, target_left, target=True, length=6 + extra)
        logits, _ = model(*models.collate_source(arch, source, source_left, extra), previous)
        assert logits.isfinite().all()
        for row, keep, sentence in zip(logits, previous.ne(model.decoder.dictionary.pad()), expected):
            torch.testing.assert_close(row[keep], sentence, **EXACT)


@models.every_case
@pytest.mark.parametrize("lengths", [(6, 6), (6, 3)], ids=["no padding", "padding"])
def test_the_future_leaves_the_past_alone(arch, flags, lengths):
    model = models.tiny(arch, *flags)
    source, source_lengths, target = models.inputs(arch, source_lengths=(4, 5), target_lengths=lengths)
    before = model(source, source_lengths, target)[0][0]
    for place in range(1, 6):
        edited = target.clone()
        edited[0, place] = models.dictionary(models.TARGET_SYMBOLS).unk()
        after = model(source, source_lengths, edited)[0][0]
        torch.testing.assert_close(after[:place], before[:place], **EXACT)
        assert (after[place:] - before[place:]).abs().amax(1).min() > 1e-6


# Gradients


@models.every_case
def test_gradients_reach_every_parameter(arch, flags):
    model = models.tiny(arch, *flags)
    _, gradients = models.loss_and_gradients(model, models.inputs(arch))
    assert gradients.keys() == dict(model.named_parameters()).keys()
    assert not [name for name, gradient in gradients.items() if not gradient.abs().max() > 1e-9]


@models.every_case
def test_tied_gradient_is_the_sum_of_the_untied(arch, flags):
    tied, inputs = models.tiny(arch, *flags), models.inputs(arch)
    untied = models.untied(tied)
    loss, gradients = models.loss_and_gradients(tied, inputs)
    loss_apart, apart = models.loss_and_gradients(untied, inputs)
    torch.testing.assert_close(loss, loss_apart, **EXACT)
    expected = {}
    for key, gradient in apart.items():
        side, *middle, rest = key.split(".", 4)
        if middle[:2] == ["loop", "blocks"]:
            order = getattr(tied, side).loop.order
            key = f"{side}.loop.blocks.{order[int(middle[2])]}.{rest}"
        expected[key] = expected.get(key, 0) + gradient
    torch.testing.assert_close(gradients, expected, **EXACT)


@models.every_arch
def test_gradient_of_one_matrix_for_all_is_the_sum_of_three(arch):
    symbols, keys = (
        (models.TARGET_SYMBOLS,) * 2,
        ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"),
    )
    tied = joint(arch, "--share-all-embeddings", "--no-scale-embedding")
    apart = joint(arch, "--no-scale-embedding")
    matrix = tied.encoder.embed_tokens.weight
    apart.load_state_dict({**tied.state_dict(), **{f"{key}.weight": matrix for key in keys}})
    (_, gradients), (_, three) = (
        models.loss_and_gradients(model, models.inputs(arch, symbols=symbols)) for model in (tied, apart)
    )
    three[f"{keys[0]}.weight"] += three.pop(f"{keys[1]}.weight") + three.pop(f"{keys[2]}.weight")
    torch.testing.assert_close(gradients, three, **EXACT)


@models.every_case
def test_checkpointing_changes_nothing(arch, flags):
    """With dropout, bit for bit."""
    rates = ["--dropout", "0.2", "--attention-dropout", "0.1", "--activation-dropout", "0.1"]
    plain = models.tiny(arch, *flags, *rates).train()
    checkpointed = models.tiny(arch, *flags, *rates, "--checkpoint-activations").train()
    loss, gradients = models.loss_and_gradients(plain, models.inputs(arch))
    loss_again, again = models.loss_and_gradients(checkpointed, models.inputs(arch))
    assert torch.equal(loss, loss_again)
    assert gradients.keys() == again.keys()
    assert all(torch.equal(gradients[name], again[name]) for name in gradients)


@models.every_model
def test_a_model_that_has_translated_can_be_trained(arch):
    model, inputs = models.tiny(arch), models.inputs(arch)
    expected = models.loss_and_gradients(models.tiny(arch), inputs)
    with torch.inference_mode():
        model(*inputs)
    torch.testing.assert_close(models.loss_and_gradients(model, inputs), expected, **EXACT)


# Storing


@every_sharing
def test_each_stored_tensor_has_one_key(arch, flags):
    model = joint(arch, *flags)
    tensors = model.state_dict()
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == len(tensors)
    assert tensors.keys() == dict(model.named_parameters()).keys()
    assert not [
        key for key in tensors if "loop.blocks" in key and int(key.split(".")[3]) not in loop_of(model, key).order
    ]
    embeddings = [key for key, tensor in tensors.items() if tensor.dim() == 2 and len(tensor) == models.TARGET_SYMBOLS]
    (matrices,) = [left for (other, _), (shared, left) in SHARED.items() if (other, shared) == (arch, flags)]
    assert len(embeddings) == matrices


def loop_of(model: nn.Module, key: str) -> nn.Module:
    return getattr(model, key.split(".")[0]).loop


@every_sharing
def test_saved_and_loaded_strictly(arch, flags, tmp_path):
    model, inputs = joint(arch, *flags), models.inputs(arch, symbols=(models.TARGET_SYMBOLS,) * 2)
    stored = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    torch.save(model.state_dict(), tmp_path / "model.pt")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    overhead = 600 * len(model.state_dict()) + 2000  # name, shape and alignment of each tensor
    for file, read in (("model.pt", torch.load), ("model.safetensors", load_file)):
        assert stored <= (tmp_path / file).stat().st_size < stored + overhead
        fresh = joint(arch, *flags, seed=1)
        assert not torch.equal(fresh(*inputs)[0], model(*inputs)[0])
        fresh.load_state_dict(read(tmp_path / file), strict=True)
        assert torch.equal(fresh(*inputs)[0], model(*inputs)[0])


@every_sharing
@pytest.mark.parametrize(
    "make", [copy.deepcopy, lambda model: copy.deepcopy(model).bfloat16().double()], ids=["copied", "cast"]
)
def test_copies_and_casts_keep_what_is_tied(arch, flags, make):
    """After loading other weights the copy computes what the other model does, so it uses no tensor but its own."""
    model, inputs = joint(arch, *flags), models.inputs(arch, symbols=(models.TARGET_SYMBOLS,) * 2)
    before, other = model(*inputs)[0], joint(arch, *flags, seed=1)
    made = make(model)
    made.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(made(*inputs)[0], other(*inputs)[0])
    assert torch.equal(model(*inputs)[0], before)
    torch.testing.assert_close(
        models.loss_and_gradients(made, inputs), models.loss_and_gradients(other, inputs), **EXACT
    )


@models.every_arch
def test_pre_norm_is_another_model_with_a_final_norm(arch):
    plain, pre_norm = models.tiny(arch), models.tiny(arch, *models.VARIANTS["pre-norm"])
    assert set(pre_norm.state_dict()) - set(plain.state_dict()) == {
        f"{side}.layer_norm.{kind}" for side in models.SIDES for kind in ("weight", "bias")
    }
    pre_norm.load_state_dict(plain.state_dict(), strict=False)
    assert not torch.allclose(plain(*models.inputs(arch))[0], pre_norm(*models.inputs(arch))[0])


@pytest.mark.parametrize("target_left", [False, True], ids=["target right", "target left"])
def test_targets_padded_behind_are_trained_without_a_mask(target_left):
    """Where causality is enough; what a token gives is the same, whatever hides the padding."""
    model = models.tiny("ringformer_base", "--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0")
    source, lengths, _ = models.inputs("ringformer_base")
    sentences = models.sentences((5, 2, 7), models.TARGET_SYMBOLS)
    target = models.collate(sentences, target_left, target=True)
    expected, masks = model(source, lengths, target)[0], []

    class Masks(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is F.scaled_dot_product_attention:
                masks.append((kwargs["attn_mask"] is not None, kwargs["is_causal"]))
            return function(*args, **(kwargs or {}))

    with Masks():
        found = model.train()(source, lengths, target)[0]
    keep = target.ne(model.decoder.dictionary.pad())
    torch.testing.assert_close(found[keep], expected[keep], rtol=0, atol=1e-12)
    passes = model.decoder.loop.passes
    assert masks.count((False, True)) == (0 if target_left else passes)
