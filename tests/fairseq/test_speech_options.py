"""Models for speech: fairseq's own model computed, every option of use, and what cannot apply refused by its name."""

import pytest
import torch
from fairseq import options as host_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.speech_to_text import S2TTransformerModel
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fairseq.test_options import Knob, changed, shapes, side_knobs, without
from tests.support import models, speech

# fairseq's model


def host_model(model_flags: list[str]) -> nn.Module:
    """fairseq's own s2t_transformer of these flags, in float64, no parameter at its initial value."""
    args = models.options("s2t_vanilla", *model_flags)
    for side in models.SIDES:
        setattr(args, f"{side}_normalize_before", True)
    args.conv_version, args.encoder_freezing_updates = "s2t_transformer", 0
    args.input_feat_per_channel, args.input_channels = speech.FEATURES, 1
    args.max_source_positions, args.max_target_positions = 6000, 1024
    torch.manual_seed(0)
    host = S2TTransformerModel.build_model(args, models.task_of("s2t_vanilla")).double()
    return models.randomise(host, seed=0).eval()


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
def test_vanilla_is_the_hosts_model_where_nothing_is_padding():
    flags = [*models.tiny_flags("s2t_vanilla"), "--encoder-unique-layers", "4", "--decoder-unique-layers", "4"]
    host, model = host_model(flags), models.build("s2t_vanilla", *flags).double().eval()
    model.load_state_dict(converted(host.state_dict()), strict=True)
    source, lengths, target = models.inputs("s2t_vanilla", source_lengths=(7, 7, 7))
    source, lengths = source[:, : lengths.min()], lengths.clamp(max=int(lengths.min()))
    expected, _ = host(source, lengths, target)
    # fairseq's sinusoids have float32's digits.
    torch.testing.assert_close(model(source, lengths, target)[0], expected, rtol=0, atol=2e-6)


# Options

KNOBS = {
    **side_knobs("encoder"),
    **side_knobs("decoder"),
    "dropout": Knob("--dropout 0.5", "training"),
    "attention_dropout": Knob("--attention-dropout 0.5", "training"),
    "activation_dropout": Knob("--activation-dropout 0.5", "training"),
    "activation_fn": Knob("--activation-fn tanh", "output"),
    "share_decoder_input_output_embed": Knob("--share-decoder-input-output-embed", "parameters"),
    "layernorm_embedding": Knob("--layernorm-embedding", "parameters"),
    "no_scale_embedding": Knob("--no-scale-embedding", "values output"),
    "checkpoint_activations": Knob("--checkpoint-activations", "memory"),
    "compile": Knob("--compile eager", "training", base="--dropout 0.2"),
    "residual_rank": Knob("--residual-rank 2", "parameters"),
    "share_layer_num": Knob(
        "--share-layer-num 2", "parameters", base="--encoder-unique-layers NONE --encoder-layers 8 --decoder-layers 8"
    ),
    "conv_channels": Knob("--conv-channels 16", "parameters"),
    "conv_kernel_sizes": Knob("--conv-kernel-sizes 3,5,1", "parameters"),
}
OPTIONS = sorted(models.option_names(speech.ARCHS[0]))


def test_no_option_is_left_out():
    assert {name for name in OPTIONS if name not in KNOBS} == set()


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_matters(name):
    knob = KNOBS[name]
    base = without(models.tiny_flags("s2t_cycle"), knob.base)
    built = []
    for flags in (base, base + knob.flags.split()):
        torch.manual_seed(0)
        built.append(models.build("s2t_cycle", *flags).double())
    allowed = [{"parameters"}, {"output"}] if knob.changes == "either" else [set(knob.changes.split())]
    assert changed(*built, inputs=models.inputs("s2t_cycle")) in allowed


UNIQUE = "must be >= 1 and <= --encoder-layers=16"
BAD = {
    "--conv-kernel-sizes 4,5": "--conv-kernel-sizes=4,5: must be odd whole numbers, separated by commas",
    "--conv-kernel-sizes 5,": "--conv-kernel-sizes=5,: must be odd whole numbers",
    "--conv-kernel-sizes five": "--conv-kernel-sizes=five: must be odd whole numbers",
    "--conv-channels 0": "--conv-channels=0: must be even and >= 2, because gates halve it",
    "--conv-channels 33": "--conv-channels=33: must be even and >= 2",
    "--encoder-attention-heads 7": "--encoder-attention-heads=7: must divide --encoder-embed-dim=512",
    "--decoder-layers 0": "--decoder-layers=0: must be >= 1",
    "--encoder-unique-layers 17": f"--encoder-unique-layers=17: {UNIQUE}",
    "--share-layer-num 17": f"--share-layer-num=17: {UNIQUE}",
    "--share-layer-num 2 --encoder-unique-layers 8": "--encoder-unique-layers=8: --share-layer-num=2 sets it",
    "--dropout 1.5": r"--dropout=1.5: must be a rate within \[0, 1\]",
}


@pytest.mark.parametrize("flags", BAD)
def test_bad_values_are_refused_by_name(flags):
    with pytest.raises(ValueError, match=f"^{BAD[flags]}"):
        models.on_meta("s2t_cycle", *flags.split())


@pytest.mark.parametrize("arch", speech.ARCHS)
def test_the_hosts_parser_and_configuration_build_the_preset(arch):
    command = ["data", "--task", "speech_to_text", "--arch", arch]
    args = host_options.parse_args_and_arch(host_options.get_training_parser(), input_args=command)
    with torch.device("meta"):
        model = models.task_of(arch).build_model(convert_namespace_to_omegaconf(args).model)
    assert shapes(model) == shapes(models.on_meta(arch))


def from_config(arch: str, **values) -> nn.Module:
    """What fairseq-hydra-train builds."""
    with torch.device("meta"):
        return models.task_of(arch).build_model(OmegaConf.create({"_name": arch, **values}))


@pytest.mark.parametrize("arch", speech.ARCHS)
def test_configuration_without_a_command_line(arch):
    assert shapes(from_config(arch, conv_channels=64)) == shapes(models.on_meta(arch, "--conv-channels", "64"))
    with pytest.raises(ValueError, match=f"^encoder_layer: not an option of {arch}"):
        from_config(arch, encoder_layer=3)


@pytest.mark.parametrize("option", ["--share-all-embeddings", "--encoder-normalize-before", "--encoder-learned-pos"])
def test_options_for_words_are_refused_by_the_hosts_parser(option, capsys):
    command = ["data", "--task", "speech_to_text", "--arch", "s2t_cycle", option]
    with pytest.raises(SystemExit):
        host_options.parse_args_and_arch(host_options.get_training_parser(), input_args=command)
    assert f"unrecognized arguments: {option}" in capsys.readouterr().err


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
