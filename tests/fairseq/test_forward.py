"""What holds for every architecture of fairseq beside the invariants of all models: padding, precision, one matrix."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, func, nn

from recurrence.analysis.record import recorded_states
from tests.support import cli, language, models, stacks

EXACT = dict(rtol=0, atol=1e-10)


def joint(arch: str, *flags: str, **options) -> nn.Module:
    """A tiny model, for translation on a joined dictionary."""
    joined = models.task(models.TARGET_SYMBOLS, models.TARGET_SYMBOLS) if arch in models.ARCHS else None
    return models.tiny(arch, *flags, on=joined, **options)


@models.every_case
def test_lower_precision_is_close(arch, flags):
    model, inputs = models.tiny(arch, *flags), models.inputs(arch)
    keep = models.is_token(inputs[-1])
    expected = model(*inputs)[0][keep]
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 0.05)):
        found = model.to(dtype)(*stacks.as_type(inputs, dtype))[0][keep]
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
    inputs = stacks.as_type(inputs, torch.float32)
    loss32, gradients32 = models.loss_and_gradients(model.float(), inputs)
    assert loss32.item() == pytest.approx(loss.item(), rel=1e-3)
    for name, gradient in gradients.items():
        close = 1e-4 if arch in models.WITH_ENCODER else 1e-3
        # The gradient of a single coefficient is a sum over all tokens that may nearly cancel.
        least = 1e-3 if gradient.numel() == 1 else 0.0
        assert (gradients32[name] - gradient).norm() < close * max(gradient.norm().item(), least), name
    found, expected = models.read_in_steps(model, inputs), model(*inputs)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * expected.std().item())


@models.every_case
def test_a_row_ignores_its_batch_and_all_padding(arch, flags):
    """Padded on either side, and by more than the longest needs."""
    model, kind = models.tiny(arch, *flags), models.modality_of(arch)
    rows = kind.rows((5, 2, 7, 7), (5, 2, 1, 7))
    alone = [model(*kind.collate([row]), return_all_hiddens=True) for row in rows]
    for left in kind.PADDINGS:
        for extra in (0, 3):
            inputs = kind.collate(rows, *left, extra)
            with recorded_states(model) as states:
                found, _ = model(*inputs)
            assert found.isfinite().all()
            for row, (keep, (expected, single)) in enumerate(zip(models.is_token(inputs[-1]), alone)):
                torch.testing.assert_close(found[row, keep], expected[0], **EXACT)
                for state, of_single in zip([*states.values()][-1], single["inner_states"], strict=True):
                    torch.testing.assert_close(state[row, keep], of_single[:, 0], **EXACT)


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


@models.every_translation_model
def test_gradient_of_one_matrix_for_all_is_the_sum_of_three(arch):
    keys = ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")
    tied = joint(arch, "--share-all-embeddings", "--no-scale-embedding")
    apart = joint(arch, "--no-scale-embedding")
    matrix = tied.encoder.embed_tokens.weight
    assert tied.decoder.output_projection.weight is matrix  # where fairseq's online_backtranslation looks for it
    apart.load_state_dict({**tied.state_dict(), **{f"{key}.weight": matrix for key in keys}})
    inputs = models.inputs(arch, symbols=(models.TARGET_SYMBOLS,) * 2)
    (_, gradients), (_, three) = (models.loss_and_gradients(model, inputs) for model in (tied, apart))
    three[f"{keys[0]}.weight"] += three.pop(f"{keys[1]}.weight") + three.pop(f"{keys[2]}.weight")
    torch.testing.assert_close(gradients, three, **EXACT)


class Probabilities(nn.Module):
    """A model's log-probabilities, of which an adaptive softmax is a part."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        return models.log_probabilities(self.model, *inputs)[models.is_token(inputs[-1])]


@models.every_model
def test_torch_func_gives_what_autograd_gives(arch):
    """Also where a matrix has two places."""
    shared = ["--share-all-embeddings"] if arch in models.ARCHS else []
    model, inputs = Probabilities(joint(arch, *shared)), models.inputs(arch, symbols=(models.TARGET_SYMBOLS,) * 2)
    parameters = dict(model.named_parameters())

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return func.functional_call(model, parameters, inputs).square().mean()

    found = func.grad(loss)({name: parameter.detach() for name, parameter in parameters.items()})
    expected = torch.autograd.grad(model(*inputs).square().mean(), list(parameters.values()))
    torch.testing.assert_close(found, dict(zip(parameters, expected)), **EXACT)


@pytest.mark.parametrize("target_left", [False, True], ids=["target right", "target left"])
def test_right_padded_targets_are_trained_without_a_mask(target_left):
    """Where causality is enough; what a token gives is the same, whatever hides the padding."""
    model = models.tiny("ringformer_base", *cli.WITHOUT_DROPOUT)
    kind = models.modality_of("ringformer_base")
    inputs = kind.collate(kind.rows((5, 3, 6), (5, 2, 7)), target_left=target_left)
    keep, expected = models.is_token(inputs[-1]), model(*inputs)[0]
    with mock.patch.object(F, "scaled_dot_product_attention", wraps=F.scaled_dot_product_attention) as attend:
        found = model.train()(*inputs)[0]
    torch.testing.assert_close(found[keep], expected[keep], rtol=0, atol=1e-12)
    unmasked = [call.kwargs["attn_mask"] is None and call.kwargs["is_causal"] for call in attend.call_args_list]
    assert sum(unmasked) == (0 if target_left else model.decoder.loop.passes)


def test_features_of_another_width_are_rejected_by_name():
    source, lengths, target = models.inputs("s2t_cycle")
    wide = torch.cat([source, source], dim=2)
    with pytest.raises(
        ValueError, match="^12 features per frame: must be 6, which is input_feat_per_channel x input_ch"
    ):
        models.tiny("s2t_cycle")(wide, lengths, target)


def test_features_are_read_in_the_type_of_the_model():
    """fairseq-generate --fp16 only casts the model."""
    model, (frames, lengths, target) = models.tiny("s2t_cycle").half(), models.inputs("s2t_cycle")
    assert torch.equal(model(frames.float(), lengths, target)[0], model(frames.half(), lengths, target)[0])
