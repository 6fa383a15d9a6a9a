"""Options from fairseq's parser and from a configuration, and fairseq's calls on the built models."""

from argparse import Namespace

import pytest
import torch
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from torch import nn

from fairseq_plugin.build import given_options
from tests.support import language, models, speech


def parse(arch: str, *arguments: str):
    """What fairseq-train makes of a command line."""
    command = ["data", "--task", models.modality_of(arch).TASK, "--arch", arch, *arguments]
    return fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), input_args=command)


def from_config(arch: str, **values) -> nn.Module:
    """What fairseq-hydra-train builds, with more symbols than the bands of the presets have in front."""
    with torch.device("meta"):
        return models.task_of(arch, 70_000).build_model(OmegaConf.create({"_name": arch, **values}))


@models.every_architecture
def test_fairseqs_parser_and_configuration_build_the_preset(arch):
    on = models.task_of(arch, 70_000)
    with torch.device("meta"):
        model = on.build_model(convert_namespace_to_omegaconf(parse(arch)).model)
    assert models.shapes(model) == models.shapes(models.on_meta(arch, on=on)) == models.shapes(from_config(arch))


@models.every_architecture
def test_configuration_without_a_command_line(arch):
    values = dict(decoder_embed_dim=96, decoder_attention_heads=2)
    flags = ["--decoder-embed-dim", "96", "--decoder-attention-heads", "2"]
    if arch in models.ARCHS:
        values, flags = {**values, "encoder_normalize_before": True}, [*flags, "--encoder-normalize-before"]
    assert models.shapes(from_config(arch, **values)) == models.shapes(
        models.on_meta(arch, *flags, on=models.task_of(arch, 70_000))
    )
    with pytest.raises(ValueError, match=f"^decoder_layer: not an option of {arch}"):
        from_config(arch, decoder_layer=3)


@models.every_model_with_encoder
def test_the_decoders_widths_follow_the_encoders(arch):
    of_encoder = ["--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "48", "--encoder-attention-heads", "2"]
    args = parse(arch, *of_encoder)
    assert (args.decoder_embed_dim, args.decoder_ffn_embed_dim) == (32, 48)
    assert parse(arch, *of_encoder, "--decoder-embed-dim", "64").decoder_embed_dim == 64


def test_the_rate_on_attention_weights_follows_the_common_one_in_nanogpt():
    assert parse("recurrent_lm", "--dropout", "0.3").attention_dropout == 0.3


CHOICES = [("ringformer_base", "ffn_signal"), ("ringformer_base", "activation_fn"), ("ilr_small", "position")]
CHOICES += [("ringformer_base", "compile"), ("sequence_lm", "position"), ("sequence", "init")]


@pytest.mark.parametrize(("one", "name"), CHOICES)
def test_wrong_choices_are_rejected_on_the_command_line_and_in_a_configuration(one, name, rejected):
    option = "--" + name.replace("_", "-")
    assert f"{option} loud: must be one of " in rejected(lambda: parse(one, option, "loud"))
    with pytest.raises(ValueError, match=f"^{option}='?loud'?: must be one of"):
        from_config(one, **{name: "loud"})


@pytest.mark.parametrize(
    ("one", "name", "value", "rule"),
    [
        ("ringformer_base", "encoder_embed_dim", "six", "--encoder-embed-dim=six: must be a whole number"),
        ("ringformer_base", "dropout", "0.1", "--dropout=0.1: must be a number"),
        ("ringformer_base", "share_all_embeddings", "yes", "--share-all-embeddings=yes: must be true or false"),
        ("ringformer_base", "encoder_embed_path", 3, "--encoder-embed-path=3: must be a text"),
        ("ringformer_base", "position_table", "sines", "position_table=sines: must be one of"),
        ("s2t_cycle", "share_all_embeddings", True, "share_all_embeddings=True: not an option of s2t_cycle, for which"),
        ("ilr_small", "adaptive_input_cutoff", "8,14", "adaptive_input_cutoff=8,14: not an option of ilr_small, for"),
        ("recurrent_lm", "no_scale_embedding", False, "no_scale_embedding=False: not an option of recurrent_lm, for"),
    ],
)
def test_a_configuration_rejects_values_of_the_wrong_type(one, name, value, rule):
    with pytest.raises(ValueError, match=f"^{rule}"):
        from_config(one, **{name: value})


def test_flags_are_those_of_the_model_and_others():
    """Those of depth are the criterion's, although the model names it where they are given without it."""
    words = ["--post-norm", "--depth-range", "1-6", "--pass-loss", "1", "--decoder-layers", "1", "--lr", "3"]
    values, others = given_options("ilr_small", words)
    assert values == dict(post_norm=True, decoder_layers=1)
    assert others == ["--depth-range", "1-6", "--pass-loss", "1", "--lr", "3"]


def test_the_number_of_learned_positions_is_stored_in_the_options():
    """For the commands that read the checkpoint have another --tokens-per-sample."""
    args = models.options("ilr_small", *language.tiny_flags("ilr_small", "--position", "learned"))
    config = OmegaConf.create(vars(args))
    for given in (args, config):
        language.task(tokens_per_sample=12).build_model(given)
        model = language.task(tokens_per_sample=99).build_model(given)
        assert given.max_target_positions == model.max_positions() == 12
    limited = language.task(tokens_per_sample=12, max_target_positions=20)
    assert models.tiny("ilr_small", "--position", "learned", on=limited).max_positions() == 20


def test_longest_utterances_are_the_tasks():
    on = speech.task(models.dictionary(models.TARGET_SYMBOLS), max_source_positions=50, max_target_positions=9)
    assert models.tiny("s2t_cycle", on=on).max_positions() == (50, 9)


def test_a_translation_models_learned_positions_are_those_of_training():
    """For the commands that read the checkpoint have other limits: 1024, unless options give them."""
    args = models.options("vanilla_base", *models.tiny_flags("vanilla_base", "--encoder-learned-pos"))
    for given in (args, OmegaConf.create(vars(args))):
        models.task(max_source_positions=12).build_model(given)
        assert models.task(max_target_positions=99).build_model(given).max_positions() == (12, 99)


@models.every_model
def test_dropout_at_generation_is_rejected(arch):
    retained = Namespace(retain_dropout=True, retain_dropout_modules=None)  # fairseq-generate --retain-dropout
    with pytest.raises(ValueError, match="^--retain-dropout: not available"):
        models.tiny(arch).prepare_for_inference_(Namespace(generation=retained))


@pytest.mark.parametrize("side", models.SIDES)
def test_longest_sentences(side):
    """The task's limits size the learned positions and show in `max_positions`."""
    name = "max_source_positions" if side == "encoder" else "max_target_positions"
    on = models.task(**{name: 8})
    model = models.tiny("vanilla_base", f"--{side}-learned-pos", on=on)
    assert model.max_positions() == ((8, 1024) if side == "encoder" else (1024, 8))
    assert model(*models.batch((8, 3), (8, 2)))[0].isfinite().all()
    too_long = models.batch((9, 3), (8, 2)) if side == "encoder" else models.batch((8, 3), (9, 2))
    with pytest.raises(ValueError, match="9 tokens: must be <= the 8 learned positions"):
        model(*too_long)
