"""What holds for every architecture of fairseq beside the invariants of all models: padding, causality, precision."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.support import cases, cli, language, models

EXACT = dict(rtol=0, atol=1e-10)


def joint(arch: str, *flags: str, **options) -> nn.Module:
    """A tiny model, for translation on a joined dictionary."""
    joined = models.task(models.TARGET_SYMBOLS, models.TARGET_SYMBOLS) if arch in models.ARCHS else None
    return models.tiny(arch, *flags, on=joined, **options)


def joint_inputs(arch: str) -> tuple[Tensor, ...]:
    return models.inputs(arch, symbols=(models.TARGET_SYMBOLS,) * 2)


def as_type(inputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Inputs for a model of another type: speech is numbers, words are not."""
    return tuple(part.to(dtype) if part.is_floating_point() else part for part in inputs)


# Numerics


@models.every_case
def test_lower_precision_is_close(arch, flags):
    model, inputs = models.tiny(arch, *flags), models.inputs(arch)
    keep = models.is_token(inputs[-1])
    expected = model(*inputs)[0][keep]
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 0.05)):
        found = model.to(dtype)(*as_type(inputs, dtype))[0][keep]
        assert found.dtype == dtype
        assert (found.double() - expected).abs().mean() < tolerance * expected.std()


@models.every_model
def test_float32_at_width_equals_float64(arch):
    """Wide enough for all kernels that are chosen by type and size, in a training step and in decoding."""
    sides = models.SIDES if arch in models.WITH_ENCODER else ("decoder",)
    flags = [f"--{side}-{name}" for side in sides for name in ("embed-dim=256", "ffn-embed-dim=512")]
    flags = [flag for flag in flags if not (arch.startswith("one_wide_ffn") and "decoder-ffn" in flag)]
    if arch in models.WITH_ENCODER:
        depth = 4 if arch == "sandwich" else 2  # which has a first, a middle and a last
        flags += [part for side in sides for part in (f"--{side}-layers", str(depth))]
    model = models.tiny(arch, *flags, noise=0.02, on=models.task_of(arch, 300))
    inputs = models.inputs(arch, (9, 7, 8, 9), (9, 9, 9, 9), symbols=(models.SOURCE_SYMBOLS, 300))
    loss, gradients = models.loss_and_gradients(model, inputs)
    inputs = as_type(inputs, torch.float32)
    loss32, gradients32 = models.loss_and_gradients(model.float(), inputs)
    assert loss32.item() == pytest.approx(loss.item(), rel=1e-3)
    for name, gradient in gradients.items():
        close = 1e-4 if arch in models.WITH_ENCODER else 1e-3
        # The gradient of a single coefficient is a sum over all tokens that may nearly cancel.
        least = 1e-3 if gradient.numel() == 1 else 0.0
        assert (gradients32[name] - gradient).norm() < close * max(gradient.norm().item(), least), name
    with torch.no_grad():
        expected, memory, state = model(*inputs)[0], models.encoded(model, inputs), {}
        steps = [model.decoder(inputs[-1][:, : t + 1], memory, state)[0] for t in range(9)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=0, atol=1e-4 * expected.std().item())


@models.every_case
def test_a_row_ignores_its_batch_and_all_padding(arch, flags):
    """Padded on either side, and by more than the longest needs."""
    model, kind = models.tiny(arch, *flags), models.modality_of(arch)
    rows = kind.rows((5, 2, 7, 7), (5, 2, 1, 7))
    alone = [model(*kind.collate([row]))[0][0] for row in rows]
    for left in kind.PADDINGS:
        for extra in (0, 3):
            inputs = kind.collate(rows, *left, extra)
            found = model(*inputs)[0]
            assert found.isfinite().all()
            for row, keep, expected in zip(found, models.is_token(inputs[-1]), alone):
                torch.testing.assert_close(row[keep], expected, **EXACT)


@models.every_case
@pytest.mark.parametrize("lengths", [(6, 6), (6, 3)], ids=["no padding", "padding"])
def test_later_tokens_do_not_change_earlier_outputs(arch, flags, lengths):
    model = models.tiny(arch, *flags)
    *source, tokens = models.inputs(arch, (4, 5), lengths)
    before = model(*source, tokens)[0][0]
    for place in range(1, 6):
        edited = tokens.clone()
        edited[0, place] = models.dictionary(models.TARGET_SYMBOLS).unk()
        after = model(*source, edited)[0][0]
        torch.testing.assert_close(after[:place], before[:place], **EXACT)
        assert (after[place:] - before[place:]).abs().amax(1).min() > 1e-8


@models.every_language_case
def test_texts_may_be_longer_than_those_of_training(arch, flags):
    """Unless their positions were learned."""
    model = models.tiny(arch, *flags)
    longer = language.texts((language.POSITIONS + 3,))
    if model.decoder.inputs.embed_positions is None:
        assert model.max_positions() > 10**6
        assert model(longer)[0].isfinite().all()
    else:
        assert model.max_positions() == language.POSITIONS
        with pytest.raises(ValueError, match=f"67 tokens: must be <= the {language.POSITIONS} learned positions"):
            model(longer)


# Gradients


@models.every_translation_model
def test_gradient_of_one_matrix_for_all_is_the_sum_of_three(arch):
    keys = ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")
    tied = joint(arch, "--share-all-embeddings", "--no-scale-embedding")
    apart = joint(arch, "--no-scale-embedding")
    matrix = tied.encoder.embed_tokens.weight
    apart.load_state_dict({**tied.state_dict(), **{f"{key}.weight": matrix for key in keys}})
    (_, gradients), (_, three) = (models.loss_and_gradients(model, joint_inputs(arch)) for model in (tied, apart))
    three[f"{keys[0]}.weight"] += three.pop(f"{keys[1]}.weight") + three.pop(f"{keys[2]}.weight")
    torch.testing.assert_close(gradients, three, **EXACT)


# Storing


@pytest.mark.parametrize(("arch", "name"), cases.SHARED)
def test_matrices_that_are_shared_are_one(arch, name):
    flags, matrices = cases.SHARED[arch, name]
    tensors = joint(arch, *flags).state_dict().values()
    assert len([tensor for tensor in tensors if tensor.dim() == 2 and len(tensor) == models.TARGET_SYMBOLS]) == matrices


@pytest.mark.parametrize("target_left", [False, True], ids=["target right", "target left"])
def test_right_padded_targets_are_trained_without_a_mask(target_left):
    """Where causality is enough; what a token gives is the same, whatever hides the padding."""
    model = models.tiny("ringformer_base", *cli.WITHOUT_DROPOUT)
    kind = models.modality_of("ringformer_base")
    inputs = kind.collate(kind.rows((5, 3, 6), (5, 2, 7)), target_left=target_left)
    expected, masks = model(*inputs)[0], []

    class Masks(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is F.scaled_dot_product_attention:
                masks.append((kwargs["attn_mask"] is not None, kwargs["is_causal"]))
            return function(*args, **(kwargs or {}))

    with Masks():
        found = model.train()(*inputs)[0]
    keep = models.is_token(inputs[-1])
    torch.testing.assert_close(found[keep], expected[keep], rtol=0, atol=1e-12)
    passes = model.decoder.loop.passes
    assert masks.count((False, True)) == (0 if target_left else passes)
