"""Every option of every family of language models does something, and whatever cannot apply is refused by its name."""

import itertools

import pytest
import torch
from fairseq import options as host_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from torch import nn

from tests.fairseq.test_options import Knob, kept_for_backward, retain_dropout, shapes  # noqa: F401  (a fixture)
from tests.support import language, models

# One architecture of each family.
FAMILIES = ["ilr_small", "cycle_rev_lm", "recurrent_lm"]
BANDS_OUT = "--adaptive-input-cutoff none --adaptive-softmax-cutoff 8"
ONE_MATRIX = "--adaptive-input-cutoff none --adaptive-softmax-cutoff none"
KNOBS = {
    "decoder_embed_dim": Knob("--decoder-embed-dim 24", "parameters"),
    "decoder_ffn_embed_dim": Knob("--decoder-ffn-embed-dim 32", "parameters"),
    "decoder_layers": Knob("--decoder-layers 5 --reuse-map 1,1,1,1,1", "parameters"),
    "decoder_attention_heads": Knob("--decoder-attention-heads 4", "output"),
    "dropout": Knob("--dropout 0.5", "training", base="--dropout 0"),
    "attention_dropout": Knob("--attention-dropout 0.5", "training"),
    "activation_dropout": Knob("--activation-dropout 0.5", "training"),
    "checkpoint_activations": Knob("--checkpoint-activations", "memory"),
    "compile": Knob("--compile eager", "training", base="--dropout 0.2"),
    "reuse_map": Knob("--reuse-map 1,3,1", "output"),
    "block_loops": Knob("--block-loops 3", "output"),
    "inject_embedding": Knob("--inject-embedding", "output"),
    "position": Knob("--position alibi", "output"),
    "decoder_unique_layers": Knob("--decoder-unique-layers 4", "parameters"),
    "share_layer_num": Knob("--share-layer-num 4", "parameters"),
    "residual_rank": Knob("--residual-rank 2", "parameters"),
    "activation_fn": Knob("--activation-fn tanh", "output"),
    "decoder_final_norm": Knob("--decoder-final-norm", "parameters"),
    "no_scale_embedding": Knob("--no-scale-embedding", "output"),
    "adaptive_input_cutoff": Knob("--adaptive-input-cutoff 6,9", "parameters"),
    "adaptive_input_factor": Knob("--adaptive-input-factor 2 --adaptive-softmax-factor 2", "parameters"),
    "adaptive_softmax_cutoff": Knob("--adaptive-softmax-cutoff 9", "parameters", base="--adaptive-input-cutoff none"),
    "adaptive_softmax_factor": Knob("--adaptive-softmax-factor 2", "parameters", base=BANDS_OUT),
    "adaptive_softmax_dropout": Knob("--adaptive-softmax-dropout 0.5", "training", base="--adaptive-softmax-dropout 0"),
    "tie_adaptive_weights": Knob("--tie-adaptive-weights", "parameters"),
    "tie_adaptive_proj": Knob("--tie-adaptive-proj", "parameters"),
    "share_decoder_input_output_embed": Knob("--share-decoder-input-output-embed", "parameters", base=ONE_MATRIX),
    "window": Knob("--window 2", "output"),
    "window_range": Knob("--window-range 2,3", "training"),
    "accumulate": Knob("--accumulate", "output"),
    "regular": Knob("--regular --position none", "output"),
}
# Where an option means something else in a family.
OF_FAMILY = {
    ("cycle_rev_lm", "decoder_layers"): Knob("--decoder-layers 8 --decoder-unique-layers 4", "parameters"),
    ("recurrent_lm", "decoder_layers"): Knob("--decoder-layers 3", "parameters"),
    ("recurrent_lm", "position"): Knob("--position learned", "parameters"),
    ("recurrent_lm", "share_decoder_input_output_embed"): Knob("--no-share-decoder-input-output-embed", "parameters"),
}
# Presets that are on, so that the option is seen only in what is built without it.
PRESET_ON = {"tie_adaptive_weights", "tie_adaptive_proj"}
CASES = [(arch, name) for arch in FAMILIES for name in sorted(models.option_names(arch))]


def test_no_family_and_no_option_is_left_out():
    assert {language.FAMILY[arch] for arch in FAMILIES} == set(language.FAMILY.values())
    assert {name for _, name in CASES} == set(KNOBS)


def build(arch: str, flags: list[str], **values) -> nn.Module:
    """A float64 model; values go around the command line, as a yaml file's do."""
    args = language.options(arch, *flags)
    vars(args).update(values)
    torch.manual_seed(0)
    return language.task().build_model(args).double()


def changed(plain: nn.Module, other: nn.Module) -> set[str]:
    """In what two models of one seed differ, see :class:`tests.fairseq.test_options.Knob`."""
    tokens = language.texts()
    if shapes(plain) != shapes(other):
        return {"parameters"}
    models.randomise(plain, seed=0)
    other.load_state_dict(plain.state_dict())
    if not torch.allclose(*(language.log_probabilities(model.eval(), tokens) for model in (plain, other))):
        return {"output"}
    if not torch.equal(*(language.loss_and_gradients(model.train(), tokens)[0] for model in (plain, other))):
        return {"training"}
    return {"memory"} if kept_for_backward(other, (tokens,)) < kept_for_backward(plain, (tokens,)) / 2 else set()


@pytest.mark.parametrize(("family", "name"), CASES)
def test_every_option_matters(family, name):
    knob = OF_FAMILY.get((family, name), KNOBS[name])
    flags = knob.flags.split()
    base = language.tiny_flags(family, *knob.base.split(), *(flags if name == "block_loops" else ()))
    if name == "block_loops":
        base = base[: -len(flags)]
    if name == "share_layer_num":
        at = base.index("--decoder-unique-layers")
        plain, base = build(family, base), base[:at] + base[at + 2 :]
    elif name in PRESET_ON:
        off = {"tie_adaptive_proj": False, "tie_adaptive_weights": name != "tie_adaptive_weights"}
        plain = build(family, base, **off)
    else:
        plain = build(family, base)
    assert changed(plain, build(family, base + flags)) == {knob.changes}


def test_an_option_at_its_preset_changes_nothing():
    """So that the differences above are the options' own."""
    flags = language.tiny_flags("ilr_small")
    assert changed(build("ilr_small", flags), build("ilr_small", [*flags, "--dropout", "0"])) == set()


def test_every_encoding_and_every_recurrence_is_another_model():
    outputs = []
    for position in ("none", "rope", "learned", "alibi"):
        for reuse in ("--reuse-map 1,1,1", "--reuse-map 1,1,2", "--reuse-map 1,1,2 --inject-embedding",
                      "--block-loops 2", "--block-loops 2 --inject-embedding"):  # fmt: skip
            model = language.tiny("ilr_small", "--position", position, *reuse.split())
            outputs.append(model(language.texts())[0])
    assert len(outputs) == 20
    assert not [pair for pair in itertools.combinations(outputs, 2) if torch.allclose(*pair)]


# Refusals

MAP = "must be whole numbers >= 1, with commas between them"
ENTRIES = "needs at least one entry, and each must be >= 1"
RISE = "must be 'none' or whole numbers that rise, each > 0 and < 23, the number of symbols"
# architecture: flags: the error
BAD = {
    "ilr_small": {
        "--reuse-map 4,2,1": r"--reuse-map=4,2,1: has 3 entries, needs one for each of --decoder-layers=4",
        "--reuse-map 1,0,1,1": rf"--reuse-map=\(1, 0, 1, 1\): {ENTRIES}",
        "--reuse-map 1,-2,1,1": rf"--reuse-map=\(1, -2, 1, 1\): {ENTRIES}",
        "--reuse-map 1,1.5,1,1": f"--reuse-map=1,1.5,1,1: {MAP}",
        "--reuse-map 1,,1,1": f"--reuse-map=1,,1,1: {MAP}",
        "--reuse-map 2111": "--reuse-map=2111: has 1 entries",
        "--block-loops 0": "--block-loops=0: must be >= 1",
        "--block-loops -1": "--block-loops=-1: must be >= 1",
        "--block-loops 2 --reuse-map 1,2,1,1": "--block-loops=2: goes in place of --reuse-map=1,2,1,1, not with it",
        "--inject-embedding --reuse-map 1,1,1,1": "--inject-embedding: needs a pass that runs again",
        "--position rope --decoder-embed-dim 36": "--position=rope: needs an even head width, but .* is 9",
        "--decoder-attention-heads 3": "--decoder-attention-heads=3: must divide --decoder-embed-dim=128",
        "--decoder-attention-heads 0": "--decoder-attention-heads=0: must be >= 1",
        "--decoder-layers 0": "--decoder-layers=0: must be >= 1",
        "--dropout 1.5": r"--dropout=1.5: must be a rate within \[0, 1\]",
    },
    "sequence_lm": {
        "--decoder-unique-layers 5": "--decoder-unique-layers=5: must divide --decoder-layers=12",
        "--decoder-unique-layers 13": "--decoder-unique-layers=13: must be >= 1 and <= --decoder-layers=12",
        "--share-layer-num 0": "--share-layer-num=0: must be >= 1 and <= --decoder-layers=12",
        "--adaptive-input-cutoff 8,23": f"--adaptive-input-cutoff=8,23: {RISE}",
        "--adaptive-input-cutoff 14,8": f"--adaptive-input-cutoff=14,8: {RISE}",
        "--adaptive-input-cutoff 0,8": f"--adaptive-input-cutoff=0,8: {RISE}",
        "--adaptive-input-cutoff eight": f"--adaptive-input-cutoff=eight: {RISE}",
        "--adaptive-input-cutoff 1": "--adaptive-input-cutoff=1: the first band must hold symbols 0 to 1",
        f"{ONE_MATRIX} --adaptive-input-factor 2": "--adaptive-input-factor=2.0: needs bands",
        "--adaptive-input-factor 40": "--adaptive-input-factor=40.0: must be >= 1 and leave the last of the 3 bands",
        "--decoder-embed-dim 0": "--adaptive-input-factor=4.0: must be .* of --decoder-embed-dim=0 a width",
        f"{ONE_MATRIX} --decoder-embed-dim 0": "--decoder-embed-dim=0: must be >= 1",
        "--adaptive-softmax-dropout 2": r"--adaptive-softmax-dropout=2.0: must be a rate within \[0, 1\]",
        "--adaptive-softmax-cutoff 9 --tie-adaptive-weights": "--tie-adaptive-weights: --adaptive-input-cutoff=8,14",
        "--adaptive-softmax-factor 2": "--tie-adaptive-weights: --adaptive-input-factor=4.0 and",
        f"{ONE_MATRIX} --tie-adaptive-proj": "--tie-adaptive-proj: needs --tie-adaptive-weights",
        f"{ONE_MATRIX} --tie-adaptive-weights": "--tie-adaptive-weights: --adaptive-input-cutoff=none and",
        "--share-decoder-input-output-embed": "--share-decoder-input-output-embed: shares a single matrix",
        "--activation-fn loud": r"--activation-fn=loud: must be one of \[",
        "--activation-dropout -1": r"--activation-dropout=-1.0: must be a rate within \[0, 1\]",
    },
}
BAD_VALUES = [(arch, flags, message) for arch, cases in BAD.items() for flags, message in cases.items()]


@pytest.mark.parametrize(("one", "flags", "message"), BAD_VALUES, ids=[" ".join(case[:2]) for case in BAD_VALUES])
def test_bad_values_are_refused_by_name(one, flags, message):
    small = ["--adaptive-input-cutoff", "8,14"] if one == "sequence_lm" else []
    with pytest.raises(ValueError, match=f"^{message}"):
        language.on_meta(one, *small, *flags.split())


def test_a_position_that_does_not_exist_is_refused_everywhere(capsys):
    with pytest.raises(ValueError, match="^--position=sinusoidal: must be one of"):
        from_config("ilr_small", position="sinusoidal")
    with pytest.raises(SystemExit):
        parse("--arch", "ilr_small", "--position", "sinusoidal")
    assert "argument --position: invalid choice: 'sinusoidal'" in capsys.readouterr().err


@pytest.mark.parametrize("limit", [0, -3])
def test_a_table_of_no_positions_is_refused(limit):
    with pytest.raises(ValueError, match="must be >= 1"):
        language.tiny("ilr_small", "--position", "learned", on=language.task(tokens_per_sample=limit))


@language.every_arch
def test_a_smaller_output_dictionary_needs_a_matrix_of_its_own(arch):
    task = language.task()
    task.output_dictionary = models.dictionary(20)
    with pytest.raises(ValueError, match="^--output-dictionary-size=20: must equal the 23 symbols of the input"):
        language.tiny(arch, on=task)


# fairseq's own ways in


def parse(*arguments: str):
    """What fairseq-train makes of a command line."""
    parser = host_options.get_training_parser()
    return host_options.parse_args_and_arch(parser, input_args=["data", "--task", "language_modeling", *arguments])


def from_config(arch: str, **values) -> nn.Module:
    """What fairseq-hydra-train builds."""
    with torch.device("meta"):
        return language.task(70_000).build_model(OmegaConf.create({"_name": arch, **values}))


@language.every_arch
def test_the_hosts_parser_and_configuration_build_the_preset(arch):
    config = convert_namespace_to_omegaconf(parse("--arch", arch))
    on = language.task(70_000)
    with torch.device("meta"):
        model = on.build_model(config.model)
    assert shapes(model) == shapes(language.on_meta(arch, on=on)) == shapes(from_config(arch))


@language.every_arch
def test_unknown_keys_of_a_configuration_are_refused(arch):
    with pytest.raises(ValueError, match=f"^decoder_layer: not an option of {arch}"):
        from_config(arch, decoder_layer=3)


def test_learned_positions_are_remembered_with_the_options():
    """For the commands that read the checkpoint have another --tokens-per-sample."""
    args = language.options("ilr_small", *language.tiny_flags("ilr_small", "--position", "learned"))
    config = OmegaConf.create(vars(args))
    for given in (args, config):
        language.task(tokens_per_sample=12).build_model(given)
        model = language.task(tokens_per_sample=99).build_model(given)
        assert given.max_target_positions == model.max_positions() == 12
    limited = language.task(tokens_per_sample=12, max_target_positions=20)
    assert language.tiny("ilr_small", "--position", "learned", on=limited).max_positions() == 20


@language.every_arch
def test_dropout_at_generation_is_refused(arch, retain_dropout):  # noqa: F811
    with pytest.raises(ValueError, match="^--retain-dropout: not available"):
        language.tiny(arch).prepare_for_inference_(retain_dropout)
