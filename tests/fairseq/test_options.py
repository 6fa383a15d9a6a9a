"""Every option of every family does something, and whatever cannot apply is refused by its name."""

import itertools
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fairseq import options as host_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf
from torch import nn

from tests.support import models

# One architecture of each family; of the one that assigns layers, one with a single layer and one with several.
FAMILIES = [
    *("ringformer_base", "universal", "one_wide_ffn_base", "vanilla_base", "sequence", "universal_small"),
    "recursive_iwslt_de_en",
]
EMBEDDING, PROFILE = "EMBEDDING", "PROFILE"  # stand for files that the test writes


class Knob(NamedTuple):
    """How an option is exercised.

    flags: the flags that set it.
    changes: all in which the model differs from the one without them. "parameters": their number or shapes; where those
        are the same, "values": how they start; "output": what the same values compute; "training": only in training;
        "memory": only what is kept for the backward pass. "either" is parameters or output.
    base: flags that both models get.
    refused: the error in those families in which the option cannot apply.
    """

    flags: str
    changes: str
    base: str = ""
    refused: dict[str, str] = {}


STATIC = {"universal": "--{}-learned-pos: does not go with level signals"}
LRC = {"recursive_iwslt_de_en": "--init=admin: needs --no-lrc"}


def side_knobs(side: str) -> dict[str, Knob]:
    one_ffn = {"one_wide_ffn_base": "--decoder-ffn-embed-dim=32: .* for the one FFN is the encoder's"}
    return {
        f"{side}_embed_dim": Knob(f"--{side}-embed-dim 24", "parameters"),
        f"{side}_ffn_embed_dim": Knob(
            f"--{side}-ffn-embed-dim 32", "parameters", refused=one_ffn if side == "decoder" else {}
        ),
        f"{side}_layers": Knob(f"--{side}-layers 6", "either"),
        f"{side}_attention_heads": Knob(f"--{side}-attention-heads 4", "output"),
        f"{side}_normalize_before": Knob(f"--{side}-normalize-before", "parameters"),
        f"{side}_learned_pos": Knob(
            f"--{side}-learned-pos", "parameters", refused={name: text.format(side) for name, text in STATIC.items()}
        ),
        f"{side}_embed_path": Knob(f"--{side}-embed-path {EMBEDDING}", "values"),
        f"{side}_unique_layers": Knob(f"--{side}-unique-layers 4", "parameters"),
    }


KNOBS = {
    **side_knobs("encoder"),
    **side_knobs("decoder"),
    "dropout": Knob("--dropout 0.5", "training"),
    "attention_dropout": Knob("--attention-dropout 0.5", "training"),
    "activation_dropout": Knob("--activation-dropout 0.5", "training"),
    "activation_fn": Knob("--activation-fn tanh", "output"),
    "share_decoder_input_output_embed": Knob("--share-decoder-input-output-embed", "parameters"),
    "share_all_embeddings": Knob("--share-all-embeddings", "parameters"),
    "no_token_positional_embeddings": Knob(
        "--no-token-positional-embeddings",
        "output",
        refused={"universal": "--no-token-positional-embeddings: the static level signals are the positions"},
    ),
    "layernorm_embedding": Knob("--layernorm-embedding", "parameters"),
    # Where the papers do not scale, only an embedding that is the output matrix too is scaled.
    "no_scale_embedding": Knob("--no-scale-embedding", "values output", base="--share-all-embeddings"),
    "checkpoint_activations": Knob("--checkpoint-activations", "memory"),
    "compile": Knob("--compile eager", "training", base="--dropout 0.2"),  # another stream of random numbers
    "init": Knob("--init admin", "parameters", refused=LRC),
    "admin_profile": Knob(f"--admin-profile {PROFILE}", "values", base="--init admin", refused=LRC),
    "level_signal": Knob("--level-signal full", "parameters", base="--signal-rank-divisor NONE"),
    "signal_rank_divisor": Knob("--signal-rank-divisor 2", "parameters"),
    "attention_signal": Knob("--attention-signal before", "output"),
    "cross_attention_signal": Knob("--cross-attention-signal after", "parameters"),
    "ffn_signal": Knob("--ffn-signal none", "parameters"),
    "signal_init": Knob("--signal-init random", "values"),
    "share_layer_num": Knob(
        "--share-layer-num 2", "either", base="--encoder-unique-layers NONE --encoder-layers 6 --decoder-layers 6"
    ),
    "residual_rank": Knob("--residual-rank 2", "parameters"),
    "block_loops": Knob("--block-loops 4", "parameters"),
    "no_lrc": Knob("--no-lrc", "parameters"),
    "nll": Knob("--nll", "parameters"),
}
CASES = [(arch, name) for arch in FAMILIES for name in sorted(models.option_names(arch))]


def test_no_family_and_no_option_is_left_out():
    assert {ARCH_MODEL_REGISTRY[arch] for arch in FAMILIES} == {ARCH_MODEL_REGISTRY[arch] for arch in models.ARCHS}
    assert {name for _, name in CASES} == set(KNOBS)
    assert len(CASES) == sum(len(models.option_names(arch)) for arch in FAMILIES)
    assert len({ARCH_MODEL_REGISTRY[arch] for arch in models.ARCHS}) == 6


def joint_task() -> TranslationTask:
    return models.task(models.TARGET_SYMBOLS, models.TARGET_SYMBOLS)


def without(flags: list[str], base: str) -> list[str]:
    """Flags and base; a base that begins with `--option NONE` takes all options of that kind out first."""
    words = base.split()
    if "NONE" not in words:
        return flags + words
    kind = words[0].split("-", 3)[-1]
    pairs = zip(flags[::2], flags[1::2])
    return [word for option, value in pairs if not option.endswith(kind) for word in (option, value)] + words[2:]


def build(arch: str, flags: list[str], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return models.build(arch, *flags, on=joint_task()).double()


def kept_for_backward(model: nn.Module, inputs: tuple) -> int:
    """Bytes of activations."""
    parameters, kept = {parameter.data_ptr() for parameter in model.parameters()}, []

    def keep(tensor):
        if tensor.data_ptr() not in parameters:
            kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.train()(*inputs)
    return sum(kept)


def changed(plain: nn.Module, other: nn.Module, inputs: tuple | None = None) -> set[str]:
    """In what two models of one seed differ, see :class:`Knob`."""
    inputs = inputs or models.batch(symbols=(models.TARGET_SYMBOLS,) * 2)
    if shapes(plain) != shapes(other):
        return {"parameters"}
    start = plain.state_dict()
    values = {"values"} if any(not torch.equal(start[key], now) for key, now in other.state_dict().items()) else set()
    models.randomise(plain, seed=0)
    other.load_state_dict(plain.state_dict())
    outputs = [model.eval()(*inputs)[0] for model in (plain, other)]
    if not torch.allclose(*outputs):
        return values | {"output"}
    losses = [models.loss_and_gradients(model.train(), inputs)[0] for model in (plain, other)]
    if not torch.equal(*losses):
        return values | {"training"}
    return values | ({"memory"} if kept_for_backward(other, inputs) < kept_for_backward(plain, inputs) / 2 else set())


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {key: tensor.shape for key, tensor in model.state_dict().items()}


@pytest.fixture
def embedding_file(tmp_path: Path) -> Path:
    """A pretrained embedding of some of the words."""
    rows = [f"{word} " + " ".join(["0.25"] * 16) for word in ("3", "5")]
    path = tmp_path / "embedding.txt"
    path.write_text(f"{len(rows)} 16\n" + "".join(row + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("arch", "name"), CASES)
def test_every_option_matters_or_is_refused(arch, name, embedding_file, tmp_path):
    knob, files = KNOBS[name], {EMBEDDING: str(embedding_file), PROFILE: str(tmp_path / "profile")}
    Path(files[PROFILE]).write_text("1.5\n" * (16 if arch.startswith("one_wide_ffn") else 20))
    flags = [files.get(flag, flag) for flag in knob.flags.split()]
    base = without(models.tiny_flags(arch), knob.base)
    if arch in knob.refused:
        with pytest.raises(ValueError, match=knob.refused[arch]):
            build(arch, base + flags)
        return
    plain, other = build(arch, base), build(arch, base + flags)
    allowed = [{"parameters"}, {"output"}] if knob.changes == "either" else [set(knob.changes.split())]
    assert changed(plain, other) in allowed


def test_an_option_at_its_preset_changes_nothing():
    """So that the differences above are the options' own."""
    flags = models.tiny_flags("ringformer_base")
    assert changed(build("ringformer_base", flags), build("ringformer_base", [*flags, "--dropout", "0.1"])) == set()


@pytest.mark.parametrize("side", models.SIDES)
def test_pretrained_embedding_is_loaded(side, embedding_file):
    model = build("vanilla_base", [*models.tiny_flags("vanilla_base"), f"--{side}-embed-path", str(embedding_file)])
    embedding, words = getattr(model, side).embed_tokens.weight, joint_task().source_dictionary
    loaded = [words.index(word) for word in ("3", "5")]
    assert (embedding[loaded] == 0.25).all()
    assert not (embedding == 0.25).all(1)[[row for row in range(len(words)) if row not in loaded]].any()


def signal_choices() -> list[list[str]]:
    """Flags of every kind of level signal in every place."""
    places = [
        ["--attention-signal", attention, "--ffn-signal", ffn]
        for attention, ffn in itertools.product(("after", "before", "none"), ("before", "inside", "none"))
    ]
    low_rank = [["--level-signal", "low-rank", "--signal-rank-divisor", "4", *place] for place in places[:-1]]
    full = [["--level-signal", "full", *place] for place in places[:-1]]
    return [*low_rank, *full, ["--level-signal", "static"], ["--level-signal", "none"]]


def test_every_choice_of_the_signals_is_another_model():
    base, outputs = without(models.tiny_flags("ringformer_base"), "--signal-rank-divisor NONE"), []
    for flags in signal_choices():
        model = models.randomise(build("ringformer_base", base + flags), seed=0).eval()
        outputs.append(model(*models.batch(symbols=(models.TARGET_SYMBOLS,) * 2))[0])
    assert len(outputs) == 18
    assert not [pair for pair in itertools.combinations(outputs, 2) if torch.allclose(*pair)]


# Refusals

DIVISOR = "must be >= 1 and <= --encoder-embed-dim=128"
UNIQUE = "must be >= 1 and <= --encoder-layers=12"
STATIC_SIGNAL = "--level-signal static"
# architecture: flags: the error
BAD = {
    "ringformer_tiny": {
        "--encoder-attention-heads 7": "--encoder-attention-heads=7: must divide --encoder-embed-dim=128",
        "--encoder-layers 0": "--encoder-layers=0: must be >= 1",
        "--signal-rank-divisor 0": f"--signal-rank-divisor=0: {DIVISOR}",
        "--signal-rank-divisor 129": f"--signal-rank-divisor=129: {DIVISOR}",
        "--level-signal full --signal-rank-divisor 8": "--signal-rank-divisor=8: does not apply to --level-signal=full",
        "--level-signal none --ffn-signal inside": "--ffn-signal=inside: does not apply to --level-signal=none",
        "--level-signal none --signal-init random": "--signal-init=random: does not apply to --level-signal=none",
        f"{STATIC_SIGNAL} --attention-signal after": "--attention-signal=after: does not apply to --level-signal=stat",
        "--attention-signal none --ffn-signal none": "--level-signal=low-rank: joins nowhere",
        "--attention-signal before --encoder-normalize-before": "--attention-signal='before': .* needs a post-norm",
        "--cross-attention-signal before --decoder-normalize-before": "--cross-attention-signal='before': .* needs a",
        "--dropout 1.5": r"--dropout=1.5: must be a rate within \[0, 1\]",
        "--share-all-embeddings": "--share-all-embeddings: needs a joined dictionary",
        f"{STATIC_SIGNAL} --decoder-learned-pos": "--decoder-learned-pos: does not go with level signals",
        f"{STATIC_SIGNAL} --no-token-positional-embeddings": "--no-token-positional-embeddings: the static level",
    },
    "universal": {
        "--decoder-attention-heads 0": "--decoder-attention-heads=0: must be >= 1",
        "--decoder-layers -1": "--decoder-layers=-1: must be >= 1",
        "--dropout -0.1": r"--dropout=-0.1: must be a rate within \[0, 1\]",
        "--encoder-learned-pos": "--encoder-learned-pos: does not go with level signals",
        "--no-token-positional-embeddings": "--no-token-positional-embeddings: the static level",
    },
    "one_wide_ffn_tiny": {
        "--encoder-ffn-embed-dim -4": "--encoder-ffn-embed-dim=-4: must be >= 1",
        "--decoder-ffn-embed-dim 64": "--decoder-ffn-embed-dim=64: must equal --encoder-ffn-embed-dim=512",
        "--decoder-layers 0": "--decoder-layers=0: must be >= 1",
    },
    "vanilla_tiny": {
        "--encoder-embed-dim 0": "--encoder-embed-dim=0: must be >= 1",
        "--encoder-layers 0": "--encoder-layers=0: must be >= 1",
        "--attention-dropout 2": r"--attention-dropout=2.0: must be a rate within \[0, 1\]",
        "--decoder-learned-pos --no-token-positional-embeddings": "--decoder-learned-pos: does not go with --no-token",
    },
    "sequence": {
        "--encoder-unique-layers 5": "--encoder-unique-layers=5: must divide --encoder-layers=12",
        "--share-layer-num 13": f"--share-layer-num=13: {UNIQUE}",
        "--share-layer-num 0": f"--share-layer-num=0: {UNIQUE}",
    },
    "sandwich": {
        "--decoder-unique-layers 4": "--decoder-unique-layers=4: must be 3 with sandwich",
        "--share-layer-num 2": "--share-layer-num=2: the published code has no sandwich",
    },
    "cycle": {
        "--decoder-attention-heads 3": "--decoder-attention-heads=3: must divide --decoder-embed-dim=512",
        "--encoder-unique-layers 13": f"--encoder-unique-layers=13: {UNIQUE}",
        "--share-layer-num 3 --encoder-unique-layers 4": "--encoder-unique-layers=4: --share-layer-num=3 sets it",
        "--activation-dropout -1": r"--activation-dropout=-1.0: must be a rate within \[0, 1\]",
    },
    "cycle_rev": {
        "--encoder-layers 0": "--encoder-layers=0: must be >= 1",
        "--decoder-unique-layers 0": "--decoder-unique-layers=0: must be >= 1 and <= --decoder-layers=12",
    },
    "recursive_iwslt_de_en": {
        "--block-loops 0": "--block-loops=0: must be >= 1 and divide --encoder-layers=12",
        "--decoder-layers 7": "--block-loops=2: must be >= 1 and divide --decoder-layers=7",
        "--encoder-layers 0": "--encoder-layers=0: must be >= 1",
    },
}
BAD_VALUES = [(arch, flags, message) for arch, cases in BAD.items() for flags, message in cases.items()]


@pytest.mark.parametrize(("arch", "flags", "message"), BAD_VALUES, ids=[" ".join(case[:2]) for case in BAD_VALUES])
def test_bad_values_are_refused_by_name(arch, flags, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        models.on_meta(arch, *flags.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--decoder-embed-dim 24", "--encoder-embed-dim=16 must equal --decoder-embed-dim=24"),
        ("--decoder-embed-path other.txt", "--decoder-embed-path must equal --encoder-embed-path"),
    ],
)
@models.every_arch
def test_one_matrix_for_all_needs_sides_that_agree(arch, flags, message):
    with pytest.raises(ValueError, match=f"^--share-all-embeddings: {message}"):
        build(arch, [*models.tiny_flags(arch), "--share-all-embeddings", *flags.split()])


# fairseq's own ways in


def parse(*arguments: str):
    """What fairseq-train makes of a command line."""
    parser = host_options.get_training_parser()
    return host_options.parse_args_and_arch(parser, input_args=["data", "--task", "translation", *arguments])


@models.every_arch
def test_the_hosts_parser_and_configuration_build_the_preset(arch):
    config = convert_namespace_to_omegaconf(parse("--arch", arch))
    with torch.device("meta"):
        model = models.task().build_model(config.model)
    assert shapes(model) == shapes(models.on_meta(arch))


@pytest.mark.parametrize(
    ("arch", "option"),
    [
        ("vanilla_base", "--signal-rank-divisor"),
        ("universal", "--level-signal"),
        ("ringformer_base", "--encoder-unique-layers"),
        ("one_wide_ffn_base", "--share-layer-num"),
        ("cycle_rev", "--ffn-signal"),
        ("sequence", "--encoder-layerdrop"),
    ],
)
def test_options_of_others_are_refused_by_the_hosts_parser(arch, option, capsys):
    with pytest.raises(SystemExit) as refused:
        parse("--arch", arch, option, "2")
    assert refused.value.code == 2
    assert f"unrecognized arguments: {option} 2" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["level-signal", "attention-signal", "ffn-signal", "activation-fn"])
def test_choices_are_refused_by_the_hosts_parser(option, capsys):
    with pytest.raises(SystemExit):
        parse("--arch", "ringformer_base", f"--{option}", "loud")
    assert f"argument --{option}: invalid choice: 'loud'" in capsys.readouterr().err


def from_config(arch: str, **values) -> nn.Module:
    """What fairseq-hydra-train builds."""
    with torch.device("meta"):
        return models.task().build_model(OmegaConf.create({"_name": arch, **values}))


@models.every_arch
def test_configuration_without_a_command_line(arch):
    assert shapes(from_config(arch)) == shapes(models.on_meta(arch))
    flags = ["--encoder-normalize-before", "--encoder-embed-dim", "64"]
    values = dict(encoder_normalize_before=True, encoder_embed_dim=64)
    assert shapes(from_config(arch, **values)) == shapes(models.on_meta(arch, *flags))


@models.every_arch
def test_unknown_keys_of_a_configuration_are_refused(arch):
    with pytest.raises(ValueError, match=f"^encoder_layer: not an option of {arch}"):
        from_config(arch, encoder_layer=3)


@pytest.mark.parametrize(
    "name", ["level_signal", "attention_signal", "cross_attention_signal", "ffn_signal", "signal_init"]
)
def test_unknown_choices_of_a_configuration_are_refused(name):
    option = "--" + name.replace("_", "-")
    with pytest.raises(ValueError, match=f"^{option}='?loud'?: must be one of"):
        from_config("ringformer_base", **{name: "loud"})


@pytest.fixture(scope="module")
def retain_dropout():
    """The configuration of `fairseq-generate --retain-dropout`."""
    parser = host_options.get_generation_parser()
    arguments = ["data", "--task", "translation", "--path", "model.pt", "--retain-dropout"]
    return convert_namespace_to_omegaconf(host_options.parse_args_and_arch(parser, input_args=arguments))


@models.every_arch
def test_dropout_at_generation_is_refused(arch, retain_dropout):
    with pytest.raises(ValueError, match="^--retain-dropout: not available"):
        models.tiny(arch).prepare_for_inference_(retain_dropout)


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
