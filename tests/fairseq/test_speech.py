"""Models for speech: fairseq's own model computed, and what the models read."""

import pytest
import torch
from fairseq.models.speech_to_text import S2TTransformerModel
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import models, speech

# fairseq's model


def fairseq_model(model_flags: list[str]) -> nn.Module:
    """fairseq's own s2t_transformer of these flags, in float64, no parameter at its initial value."""
    args = models.options("s2t_vanilla", *model_flags)
    for side in models.SIDES:
        setattr(args, f"{side}_normalize_before", True)
    args.conv_version, args.encoder_freezing_updates = "s2t_transformer", 0
    args.input_feat_per_channel, args.input_channels = speech.FEATURES, 1
    args.max_source_positions, args.max_target_positions = 6000, 1024
    torch.manual_seed(0)
    upstream = S2TTransformerModel.build_model(args, models.task_of("s2t_vanilla")).double()
    return models.randomise(upstream, seed=0).eval()


def stacked(theirs: dict[str, Tensor], prefix: str, parts: str, kind: str) -> Tensor:
    return torch.cat([theirs[f"{prefix}.{part}_proj.{kind}"] for part in parts])


def converted(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """fairseq's weights under our names."""
    ours = {
        key.replace("encoder.subsample", "encoder.inputs.subsample"): tensor
        for key, tensor in theirs.items()
        if not any(part in key for part in ("layers.", "_float_tensor", "version")) or "conv_layers" in key
    }
    for side, layers in (("encoder", "transformer_layers"), ("decoder", "layers")):
        norms = ["self_attn_layer_norm", "final_layer_norm"]
        if side == "decoder":
            norms.insert(1, "encoder_attn_layer_norm")
        for index in range(sum(key.endswith("fc1.bias") and key.startswith(side) for key in theirs)):
            old, new = f"{side}.{layers}.{index}", f"{side}.loop.blocks.{index}"
            for kind in ("weight", "bias"):
                ours[f"{new}.self_attn.qkv.{kind}"] = stacked(theirs, f"{old}.self_attn", "qkv", kind)
                names = {"self_attn.out_proj": "self_attn.out", "fc1": "ffn.up", "fc2": "ffn.down"}
                if side == "decoder":
                    ours[f"{new}.cross_attn.kv.{kind}"] = stacked(theirs, f"{old}.encoder_attn", "kv", kind)
                    names |= {"encoder_attn.q_proj": "cross_attn.q", "encoder_attn.out_proj": "cross_attn.out"}
                names |= {norm: f"norms.{place}" for place, norm in enumerate(norms)}
                ours |= {f"{new}.{name}.{kind}": theirs[f"{old}.{their}.{kind}"] for their, name in names.items()}
    return ours


@torch.no_grad()
def test_vanilla_is_fairseqs_model_where_nothing_is_padding():
    flags = [*models.tiny_flags("s2t_vanilla"), "--encoder-unique-layers", "4", "--decoder-unique-layers", "4"]
    upstream, model = fairseq_model(flags), models.build("s2t_vanilla", *flags).double().eval()
    model.load_state_dict(converted(upstream.state_dict()), strict=True)
    source, lengths, target = models.inputs("s2t_vanilla", source_lengths=(7, 7, 7))
    source, lengths = source[:, : lengths.min()], lengths.clamp(max=int(lengths.min()))
    expected, _ = upstream(source, lengths, target)
    # fairseq's sinusoids have float32's digits.
    torch.testing.assert_close(model(source, lengths, target)[0], expected, rtol=0, atol=2e-6)


# What they read


def test_longest_utterances_are_the_tasks():
    on = speech.task(models.dictionary(models.TARGET_SYMBOLS), max_source_positions=50, max_target_positions=9)
    assert models.tiny("s2t_cycle", on=on).max_positions() == (50, 9)


def test_features_of_another_width_are_refused_by_name():
    source, lengths, target = models.inputs("s2t_cycle")
    wide = torch.cat([source, source], dim=2)
    with pytest.raises(ValueError, match="^12 features a frame: must be 6, which is input_feat_per_channel x input_ch"):
        models.tiny("s2t_cycle")(wide, lengths, target)


def test_waveforms_are_frames_of_one_number():
    on = speech.task(models.dictionary(models.TARGET_SYMBOLS), features=1)
    model = models.tiny("s2t_cycle", "--conv-kernel-sizes", "9,5,5,5", on=on)
    source, lengths, target = models.inputs("s2t_cycle")
    logits, _ = model(source[:, :, 0], lengths, target)
    assert torch.equal(logits, model(source[:, :, :1], lengths, target)[0])


def test_lengths_are_read_once():
    """On a GPU every reading waits for all that was asked of it."""

    class Readings(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += function is torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    model, (frames, lengths, _) = models.tiny("s2t_vanilla"), models.inputs("s2t_vanilla")
    with Readings() as readings:
        _, padding, _ = model.encoder.inputs.read(frames, lengths)
    assert padding.any()
    assert readings.count == 1
