"""Every option of every family does something, and whatever cannot apply is refused by its name."""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from fairseq import options as host_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor, nn

from tests.support import language, models

# One architecture of each family; of the one that assigns layers, one with a single layer and one with several.
FAMILIES = [
    *("ringformer_base", "universal", "one_wide_ffn_base", "vanilla_base", "sequence", "universal_small"),
    *("recursive_iwslt_de_en", "s2t_cycle", "ilr_small", "cycle_rev_lm", "recurrent_lm"),
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
    off: values of the other model, around the command line, where the option is on by itself.
    """

    flags: str
    changes: str
    base: str = ""
    refused: dict[str, str] = {}
    off: dict[str, Any] = {}


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


UNTIED = {"tie_adaptive_proj": False, "tie_adaptive_weights": False}  # which the presets tie
BANDS_OUT = "--adaptive-input-cutoff none --adaptive-softmax-cutoff 8"
ONE_MATRIX = "--adaptive-input-cutoff none --adaptive-softmax-cutoff none"
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
    "conv_channels": Knob("--conv-channels 16", "parameters"),
    "conv_kernel_sizes": Knob("--conv-kernel-sizes 3,5,1", "parameters"),
    "reuse_map": Knob("--reuse-map 1,3,1", "output"),
    "inject_embedding": Knob("--inject-embedding", "output"),
    "position": Knob("--position alibi", "output"),
    "decoder_final_norm": Knob("--decoder-final-norm", "parameters"),
    "adaptive_input_cutoff": Knob("--adaptive-input-cutoff 6,9", "parameters"),
    "adaptive_input_factor": Knob("--adaptive-input-factor 2 --adaptive-softmax-factor 2", "parameters"),
    "adaptive_softmax_cutoff": Knob("--adaptive-softmax-cutoff 9", "parameters", base="--adaptive-input-cutoff none"),
    "adaptive_softmax_factor": Knob("--adaptive-softmax-factor 2", "parameters", base=BANDS_OUT),
    "adaptive_softmax_dropout": Knob("--adaptive-softmax-dropout 0.5", "training", base="--adaptive-softmax-dropout 0"),
    "tie_adaptive_weights": Knob("--tie-adaptive-weights", "parameters", off=UNTIED),
    "tie_adaptive_proj": Knob("--tie-adaptive-proj", "parameters", off={"tie_adaptive_proj": False}),
    "window": Knob("--window 2", "output"),
    "window_range": Knob("--window-range 2,3", "training"),
    "accumulate": Knob("--accumulate", "output"),
    "regular": Knob("--regular --position none", "output"),
}
# Where an option means something else in a family.
OF_FAMILY = {
    ("s2t_cycle", "no_scale_embedding"): Knob("--no-scale-embedding", "values output"),
    ("s2t_cycle", "share_layer_num"): Knob(
        "--share-layer-num 2", "parameters", base="--encoder-unique-layers NONE --encoder-layers 8 --decoder-layers 8"
    ),
    ("ilr_small", "decoder_layers"): Knob("--decoder-layers 5 --reuse-map 1,1,1,1,1", "parameters"),
    ("ilr_small", "block_loops"): Knob("--block-loops 3", "output", base="--reuse-map NONE"),
    ("cycle_rev_lm", "decoder_layers"): Knob("--decoder-layers 8 --decoder-unique-layers 4", "parameters"),
    ("cycle_rev_lm", "no_scale_embedding"): Knob("--no-scale-embedding", "output"),
    ("cycle_rev_lm", "share_layer_num"): Knob(
        "--share-layer-num 4", "parameters", base="--decoder-unique-layers NONE --decoder-layers 12"
    ),
    ("cycle_rev_lm", "share_decoder_input_output_embed"): Knob(
        "--share-decoder-input-output-embed", "parameters", base=ONE_MATRIX
    ),
    ("recurrent_lm", "decoder_layers"): Knob("--decoder-layers 3", "parameters"),
    ("recurrent_lm", "position"): Knob("--position learned", "parameters"),
    ("recurrent_lm", "share_decoder_input_output_embed"): Knob("--no-share-decoder-input-output-embed", "parameters"),
}
CASES = [(arch, name) for arch in FAMILIES for name in sorted(models.option_names(arch))]


def test_no_family_and_no_option_is_left_out():
    assert {ARCH_MODEL_REGISTRY[arch] for arch in FAMILIES} == {ARCH_MODEL_REGISTRY[arch] for arch in models.EVERY}
    assert {name for _, name in CASES} == set(KNOBS)
    assert set(OF_FAMILY) <= set(CASES)


def without(flags: list[str], base: str) -> list[str]:
    """Flags and base; a base that begins with `--option NONE` takes all options of that kind out first."""
    words = base.split()
    if "NONE" not in words:
        return flags + words
    kind = words[0].split("-", 3)[-1]
    pairs = zip(flags[::2], flags[1::2])
    return [word for option, value in pairs if not option.endswith(kind) for word in (option, value)] + words[2:]


def build(arch: str, flags: list[str], off: dict[str, Any] | None = None) -> nn.Module:
    """A float64 model, for translation of joined words; values go around the command line, as a yaml file's do."""
    args = models.options(arch, *flags)
    vars(args).update(off or {})
    on = models.task(models.TARGET_SYMBOLS, models.TARGET_SYMBOLS) if arch in models.ARCHS else models.task_of(arch)
    torch.manual_seed(0)
    return on.build_model(args).double()


def joint_inputs(arch: str) -> tuple[Tensor, ...]:
    return models.inputs(arch, target_lengths=(6, 3, 8), symbols=(models.TARGET_SYMBOLS,) * 2)


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


def changed(plain: nn.Module, other: nn.Module, inputs: tuple[Tensor, ...]) -> set[str]:
    """In what two models of one seed differ, see :class:`Knob`."""
    if shapes(plain) != shapes(other):
        return {"parameters"}
    start = plain.state_dict()
    values = {"values"} if any(not torch.equal(start[key], now) for key, now in other.state_dict().items()) else set()
    models.randomise(plain, seed=0)
    other.load_state_dict(plain.state_dict())
    if not torch.allclose(*(models.log_probabilities(model.eval(), *inputs) for model in (plain, other))):
        return values | {"output"}
    if not torch.equal(*(models.loss_and_gradients(model.train(), inputs)[0] for model in (plain, other))):
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


@pytest.mark.parametrize(
    ("arch", "name"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case[1] == "compile" else []) for case in CASES],
)
def test_every_option_matters_or_is_refused(arch, name, embedding_file, tmp_path):
    knob, files = OF_FAMILY.get((arch, name), KNOBS[name]), {EMBEDDING: str(embedding_file)}
    files[PROFILE] = str(tmp_path / "profile")
    Path(files[PROFILE]).write_text("1.5\n" * (16 if arch.startswith("one_wide_ffn") else 20))
    flags = [files.get(flag, flag) for flag in knob.flags.split()]
    base = without(models.tiny_flags(arch), knob.base)
    if arch in knob.refused:
        with pytest.raises(ValueError, match=knob.refused[arch]):
            build(arch, base + flags)
        return
    plain, other = build(arch, base, knob.off), build(arch, base + flags)
    allowed = [{"parameters"}, {"output"}] if knob.changes == "either" else [set(knob.changes.split())]
    assert changed(plain, other, joint_inputs(arch)) in allowed


@pytest.mark.parametrize(("one", "dropout"), [("ringformer_base", "0.1"), ("ilr_small", "0")])
def test_an_option_at_its_preset_changes_nothing(one, dropout):
    """So that the differences above are the options' own."""
    base = models.tiny_flags(one)
    assert changed(build(one, base), build(one, [*base, "--dropout", dropout]), joint_inputs(one)) == set()


@pytest.mark.parametrize("side", models.SIDES)
def test_pretrained_embedding_is_loaded(side, embedding_file):
    model = build("vanilla_base", [*models.tiny_flags("vanilla_base"), f"--{side}-embed-path", str(embedding_file)])
    embedding, words = getattr(model, side).embed_tokens.weight, models.dictionary(models.TARGET_SYMBOLS)
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
        outputs.append(model(*joint_inputs("ringformer_base"))[0])
    assert len(outputs) == 18
    assert not [pair for pair in itertools.combinations(outputs, 2) if torch.allclose(*pair)]


def test_every_encoding_and_every_recurrence_is_another_model():
    outputs = []
    for position in ("none", "rope", "learned", "alibi"):
        for reuse in ("--reuse-map 1,1,1", "--reuse-map 1,1,2", "--reuse-map 1,1,2 --inject-embedding",
                      "--block-loops 2", "--block-loops 2 --inject-embedding"):  # fmt: skip
            model = models.tiny("ilr_small", "--position", position, *reuse.split())
            outputs.append(model(language.texts())[0])
    assert len(outputs) == 20
    assert not [pair for pair in itertools.combinations(outputs, 2) if torch.allclose(*pair)]


# Refusals

DIVISOR = "must be >= 1 and <= --encoder-embed-dim=128"
UNIQUE = "must be >= 1 and <= --encoder-layers=12"
STATIC_SIGNAL = "--level-signal static"
MAP = "must be whole numbers >= 1, with commas between them"
ENTRIES = "needs at least one entry, and each must be >= 1"
RISE = "must be 'none' or whole numbers that rise, each > 0 and < 23, the number of symbols"
SPEECH_UNIQUE = "must be >= 1 and <= --encoder-layers=16"
# architecture: flags: the error
BAD = {
    "ringformer_tiny": {
        "--encoder-attention-heads 7": "--encoder-attention-heads=7: must divide --encoder-embed-dim=128",
        "--encoder-layers 0": "--encoder-layers=0: must be >= 1",
        "--signal-rank-divisor 0": f"--signal-rank-divisor=0: {DIVISOR}",
        "--signal-rank-divisor 129": f"--signal-rank-divisor=129: {DIVISOR}",
        "--level-signal full --signal-rank-divisor 8": "--signal-rank-divisor=8: does not go with --level-signal=full",
        "--level-signal none --ffn-signal inside": "--ffn-signal=inside: does not go with --level-signal=none",
        "--level-signal none --signal-init random": "--signal-init=random: does not go with --level-signal=none",
        f"{STATIC_SIGNAL} --attention-signal after": "--attention-signal=after: does not go with --level-signal=stat",
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
        "--share-layer-num 3 --encoder-unique-layers 4": "--encoder-unique-layers=4: does not go with --share-layer",
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
    "s2t_cycle": {
        "--conv-kernel-sizes 4,5": "--conv-kernel-sizes=4,5: must be odd whole numbers, separated by commas",
        "--conv-kernel-sizes 5,": "--conv-kernel-sizes=5,: must be odd whole numbers",
        "--conv-kernel-sizes five": "--conv-kernel-sizes=five: must be odd whole numbers",
        "--conv-channels 0": "--conv-channels=0: must be even and >= 2, because gates halve it",
        "--conv-channels 33": "--conv-channels=33: must be even and >= 2",
        "--encoder-attention-heads 7": "--encoder-attention-heads=7: must divide --encoder-embed-dim=512",
        "--decoder-layers 0": "--decoder-layers=0: must be >= 1",
        "--encoder-unique-layers 17": f"--encoder-unique-layers=17: {SPEECH_UNIQUE}",
        "--share-layer-num 17": f"--share-layer-num=17: {SPEECH_UNIQUE}",
        "--share-layer-num 2 --encoder-unique-layers 8": "--encoder-unique-layers=8: does not go with --share-layer",
        "--dropout 1.5": r"--dropout=1.5: must be a rate within \[0, 1\]",
    },
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
        "--activation-dropout -1": r"--activation-dropout=-1.0: must be a rate within \[0, 1\]",
    },
}
BAD_VALUES = [(arch, flags, message) for arch, cases in BAD.items() for flags, message in cases.items()]


@pytest.mark.parametrize(("one", "flags", "message"), BAD_VALUES, ids=[" ".join(case[:2]) for case in BAD_VALUES])
def test_bad_values_are_refused_by_name(one, flags, message):
    small = ["--adaptive-input-cutoff", "8,14"] if one == "sequence_lm" else []
    with pytest.raises(ValueError, match=f"^{message}"):
        models.on_meta(one, *small, *flags.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--decoder-embed-dim 24", "--encoder-embed-dim=16 must equal --decoder-embed-dim=24"),
        ("--decoder-embed-path other.txt", "--decoder-embed-path must equal --encoder-embed-path"),
    ],
)
@models.every_translation_model
def test_one_matrix_for_all_needs_sides_that_agree(arch, flags, message):
    with pytest.raises(ValueError, match=f"^--share-all-embeddings: {message}"):
        build(arch, [*models.tiny_flags(arch), "--share-all-embeddings", *flags.split()])


@pytest.mark.parametrize("limit", [0, -3])
def test_a_table_of_no_positions_is_refused(limit):
    with pytest.raises(ValueError, match="must be >= 1"):
        models.tiny("ilr_small", "--position", "learned", on=language.task(tokens_per_sample=limit))


@models.every_language_model
def test_a_smaller_output_dictionary_needs_a_matrix_of_its_own(arch):
    task = language.task()
    task.output_dictionary = models.dictionary(20)
    with pytest.raises(ValueError, match="^--output-dictionary-size=20: must equal the 23 symbols of the input"):
        models.tiny(arch, on=task)


# fairseq's own ways in


def parse(arch: str, *arguments: str):
    """What fairseq-train makes of a command line."""
    command = ["data", "--task", models.of(arch).TASK, "--arch", arch, *arguments]
    return host_options.parse_args_and_arch(host_options.get_training_parser(), input_args=command)


def from_config(arch: str, **values) -> nn.Module:
    """What fairseq-hydra-train builds, with more symbols than the bands of the presets have in front."""
    with torch.device("meta"):
        return models.task_of(arch, 70_000).build_model(OmegaConf.create({"_name": arch, **values}))


@models.every_model
def test_the_hosts_parser_and_configuration_build_the_preset(arch):
    on = models.task_of(arch, 70_000)
    with torch.device("meta"):
        model = on.build_model(convert_namespace_to_omegaconf(parse(arch)).model)
    assert shapes(model) == shapes(models.on_meta(arch, on=on)) == shapes(from_config(arch))


@models.every_model
def test_configuration_without_a_command_line(arch):
    values = dict(decoder_embed_dim=96, decoder_attention_heads=2)
    flags = ["--decoder-embed-dim", "96", "--decoder-attention-heads", "2"]
    if arch in models.ARCHS:
        values, flags = {**values, "encoder_normalize_before": True}, [*flags, "--encoder-normalize-before"]
    assert shapes(from_config(arch, **values)) == shapes(models.on_meta(arch, *flags, on=models.task_of(arch, 70_000)))
    with pytest.raises(ValueError, match=f"^decoder_layer: not an option of {arch}"):
        from_config(arch, decoder_layer=3)


@pytest.mark.parametrize(
    ("one", "option"),
    [
        ("vanilla_base", "--signal-rank-divisor 2"),
        ("universal", "--level-signal 2"),
        ("ringformer_base", "--encoder-unique-layers 2"),
        ("one_wide_ffn_base", "--share-layer-num 2"),
        ("cycle_rev", "--ffn-signal 2"),
        ("sequence", "--encoder-layerdrop 2"),
        ("s2t_cycle", "--share-all-embeddings"),
        ("s2t_cycle", "--encoder-normalize-before"),
        ("s2t_cycle", "--encoder-learned-pos"),
    ],
)
def test_options_of_others_are_refused_by_the_hosts_parser(one, option, capsys):
    with pytest.raises(SystemExit) as refused:
        parse(one, *option.split())
    assert refused.value.code == 2
    assert f"unrecognized arguments: {option}" in capsys.readouterr().err


CHOICES = [("ringformer_base", f"{place}_signal") for place in ("level", "attention", "cross_attention", "ffn")]
CHOICES += [("ringformer_base", "signal_init"), ("ringformer_base", "activation_fn"), ("ilr_small", "position")]
CHOICES += [("ringformer_base", "compile"), ("sequence_lm", "activation_fn"), ("sequence_lm", "depth_distribution")]


@pytest.mark.parametrize(("one", "name"), CHOICES)
def test_choices_are_refused_by_the_hosts_parser_and_in_a_configuration(one, name, capsys):
    option = "--" + name.replace("_", "-")
    with pytest.raises(SystemExit):
        parse(one, option, "loud")
    assert f"argument {option}: invalid choice: 'loud'" in capsys.readouterr().err
    with pytest.raises(ValueError, match=f"^{option}='?loud'?: must be one of"):
        from_config(one, **{name: "loud"})


@pytest.mark.parametrize(
    ("one", "name", "value", "rule"),
    [
        ("ringformer_base", "encoder_layers", "six", "--encoder-layers=six: must be a whole number"),
        ("ringformer_base", "encoder_layers", 6.0, "--encoder-layers=6.0: must be a whole number"),
        ("ringformer_base", "dropout", "0.1", "--dropout=0.1: must be a number"),
        ("ringformer_base", "share_all_embeddings", "yes", "--share-all-embeddings=yes: must be true or false"),
        ("ringformer_base", "depth_range", 3, "--depth-range=3: must be a text"),
        ("ringformer_base", "position_table", "sines", "position_table=sines: must be one of"),
        ("s2t_cycle", "share_all_embeddings", True, "share_all_embeddings=True: not an option of s2t_cycle, for which"),
        ("ilr_small", "adaptive_input_cutoff", "8,14", "adaptive_input_cutoff=8,14: not an option of ilr_small, for"),
        ("recurrent_lm", "no_scale_embedding", False, "no_scale_embedding=False: not an option of recurrent_lm, for"),
    ],
)
def test_values_of_a_configuration_that_no_command_line_takes_are_refused(one, name, value, rule):
    with pytest.raises(ValueError, match=f"^{rule}"):
        from_config(one, **{name: value})


def test_learned_positions_are_remembered_with_the_options():
    """For the commands that read the checkpoint have another --tokens-per-sample."""
    args = models.options("ilr_small", *language.tiny_flags("ilr_small", "--position", "learned"))
    config = OmegaConf.create(vars(args))
    for given in (args, config):
        language.task(tokens_per_sample=12).build_model(given)
        model = language.task(tokens_per_sample=99).build_model(given)
        assert given.max_target_positions == model.max_positions() == 12
    limited = language.task(tokens_per_sample=12, max_target_positions=20)
    assert models.tiny("ilr_small", "--position", "learned", on=limited).max_positions() == 20


@pytest.fixture(scope="module")
def retain_dropout():
    """The configuration of `fairseq-generate --retain-dropout`."""
    parser = host_options.get_generation_parser()
    arguments = ["data", "--task", "translation", "--path", "model.pt", "--retain-dropout"]
    return convert_namespace_to_omegaconf(host_options.parse_args_and_arch(parser, input_args=arguments))


@models.every_model
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
