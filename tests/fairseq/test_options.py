"""Every option of every family changes what its help says it changes, or is rejected by name."""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor, nn

from fairseq_plugin.embedding import TokenInput
from tests.support import models, stacks

# One architecture of each family; of the one that assigns layers, one with a single layer and one with several.
FAMILIES = [
    *("ringformer_base", "universal", "one_wide_ffn_base", "vanilla_base", "sequence", "universal_small"),
    *("recursive_iwslt_de_en", "s2t_cycle", "ilr_small", "cycle_rev_lm", "recurrent_lm"),
]
EMBEDDING, PROFILE, CHECKPOINT = "EMBEDDING", "PROFILE", "CHECKPOINT"  # stand for files that the test writes


class Knob(NamedTuple):
    """How an option is exercised.

    flags: the flags that set it.
    changes: all in which the model differs from the one without them. "parameters": their number or shapes; where those
        are the same, "values": how they start; "output": what the same values compute; "training": only in training;
        "memory": only what is kept for the backward pass. "either" is parameters or output.
    base: flags that both models get.
    rejected: the error in those families in which the option cannot apply.
    off: values of the other model, around the command line, where the option is on by itself.
    """

    flags: str
    changes: str
    base: str = ""
    rejected: dict[str, str] = {}
    off: dict[str, Any] = {}


STATIC = {"universal": "--{}-learned-pos: conflicts with static level signals"}
LRC = {"recursive_iwslt_de_en": "--init=admin: needs --no-lrc"}


def stored_by_preset(layers: int) -> str:
    """A base with this many layers, of which the preset stores its own number."""
    return f"--encoder-unique-layers NONE --encoder-layers {layers} --decoder-layers {layers}"


def side_knobs(side: str) -> dict[str, Knob]:
    one_ffn = {"one_wide_ffn_base": "--decoder-ffn-embed-dim=32: must equal .* because the only FFN is the encoder's"}
    return {
        f"{side}_embed_dim": Knob(f"--{side}-embed-dim 24", "parameters"),
        f"{side}_ffn_embed_dim": Knob(
            f"--{side}-ffn-embed-dim 32", "parameters", rejected=one_ffn if side == "decoder" else {}
        ),
        f"{side}_layers": Knob(f"--{side}-layers 6", "either"),
        f"{side}_attention_heads": Knob(f"--{side}-attention-heads 4", "output"),
        f"{side}_normalize_before": Knob(f"--{side}-normalize-before", "parameters"),
        f"{side}_learned_pos": Knob(
            f"--{side}-learned-pos", "parameters", rejected={name: text.format(side) for name, text in STATIC.items()}
        ),
        f"{side}_embed_path": Knob(f"--{side}-embed-path {EMBEDDING}", "values"),
        f"{side}_unique_layers": Knob(f"--{side}-unique-layers 4", "parameters"),
        f"{side}_order": Knob(f"--{side}-order 0,0,1,2,1,2", "parameters", base=stored_by_preset(6)),
    }


UNTIED = {"tie_adaptive_proj": False, "tie_adaptive_weights": False}  # which the presets tie
BANDS_OUT = "--adaptive-input-cutoff none --adaptive-softmax-cutoff 8"
TWELVE = "--decoder-unique-layers NONE --decoder-layers 12"
ONE_MATRIX = "--adaptive-input-cutoff none --adaptive-softmax-cutoff none"
KNOBS = {
    **side_knobs("encoder"),
    **side_knobs("decoder"),
    "dropout": Knob("--dropout 0.5", "training"),
    "embedding_dropout": Knob("--embedding-dropout 0.5", "training"),
    "attention_dropout": Knob("--attention-dropout 0.5", "training"),
    "activation_dropout": Knob("--activation-dropout 0.5", "training"),
    "activation_fn": Knob("--activation-fn tanh", "output"),
    "share_decoder_input_output_embed": Knob("--share-decoder-input-output-embed", "parameters"),
    "share_all_embeddings": Knob("--share-all-embeddings", "parameters"),
    "no_token_positional_embeddings": Knob(
        "--no-token-positional-embeddings",
        "output",
        rejected={"universal": "--no-token-positional-embeddings: conflicts with static level signals"},
    ),
    "layernorm_embedding": Knob("--layernorm-embedding", "parameters"),
    # Where the papers do not scale, only an embedding that is the output matrix too is scaled.
    "no_scale_embedding": Knob("--no-scale-embedding", "output", base="--share-all-embeddings"),
    "checkpoint_activations": Knob("--checkpoint-activations", "memory"),
    "compile": Knob("--compile eager", "training", base="--dropout 0.2"),  # another stream of random numbers
    "init": Knob("--init admin", "parameters", rejected=LRC),
    "admin_profile": Knob(f"--admin-profile {PROFILE}", "values", base="--init admin", rejected=LRC),
    "level_signal": Knob("--level-signal full", "parameters", base="--signal-rank-divisor NONE"),
    "signal_rank_divisor": Knob("--signal-rank-divisor 2", "parameters"),
    "attention_signal": Knob("--attention-signal before", "output"),
    "cross_attention_signal": Knob("--cross-attention-signal after", "parameters"),
    "ffn_signal": Knob("--ffn-signal none", "parameters"),
    "signal_init": Knob("--signal-init random", "values"),
    "share_layer_num": Knob("--share-layer-num 2", "either", base=stored_by_preset(6)),
    "block_loops": Knob("--block-loops 4", "parameters"),
    "no_lrc": Knob("--no-lrc", "parameters"),
    "nll": Knob("--nll", "parameters"),
    "load_pretrained_encoder_from": Knob(f"--load-pretrained-encoder-from {CHECKPOINT}", "values"),
    "conv_channels": Knob("--conv-channels 16", "parameters"),
    "conv_kernel_sizes": Knob("--conv-kernel-sizes 3,5,1", "parameters"),
    "reuse_map": Knob("--reuse-map 1,3,1", "output"),
    "post_norm": Knob("--post-norm", "values output"),
    "inject_embedding": Knob("--inject-embedding", "output"),
    "inject_adapter": Knob("--inject-adapter", "parameters", base="--inject-embedding"),
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
    ("s2t_cycle", "no_scale_embedding"): Knob("--no-scale-embedding", "output"),
    ("s2t_cycle", "share_layer_num"): Knob("--share-layer-num 2", "parameters", base=stored_by_preset(8)),
    **{
        ("s2t_cycle", f"{side}_order"): Knob(f"--{side}-order 0,0,0,1,2,1,2,0", "parameters", base=stored_by_preset(8))
        for side in models.SIDES
    },
    ("ilr_small", "decoder_layers"): Knob("--decoder-layers 5 --reuse-map 1,1,1,1,1", "parameters"),
    ("ilr_small", "block_loops"): Knob("--block-loops 3", "output", base="--reuse-map NONE"),
    ("cycle_rev_lm", "decoder_layers"): Knob("--decoder-layers 8 --decoder-unique-layers 4", "parameters"),
    ("cycle_rev_lm", "no_scale_embedding"): Knob("--no-scale-embedding", "output"),
    ("cycle_rev_lm", "share_layer_num"): Knob("--share-layer-num 4", "parameters", base=TWELVE),
    ("cycle_rev_lm", "decoder_order"): Knob("--decoder-order 0,1,1,1,2,2,3,3,3,3,3,0", "parameters", base=TWELVE),
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


def changed(plain: nn.Module, other: nn.Module, inputs: tuple[Tensor, ...]) -> set[str]:
    """In what two models of one seed differ, see :class:`Knob`."""
    if models.shapes(plain) != models.shapes(other):
        return {"parameters"}
    start = plain.state_dict()
    values = {"values"} if any(not torch.equal(start[key], now) for key, now in other.state_dict().items()) else set()
    models.randomise(plain, seed=0)
    other.load_state_dict(plain.state_dict())
    if not torch.allclose(*(models.log_probabilities(model.eval(), *inputs) for model in (plain, other))):
        return values | {"output"}
    if not torch.equal(*(models.loss_and_gradients(model.train(), inputs)[0] for model in (plain, other))):
        return values | {"training"}
    kept = [stacks.kept_for_backward(model, model, *inputs) for model in (plain, other)]
    return values | ({"memory"} if kept[1] < kept[0] / 2 else set())


@pytest.fixture
def embedding_file(tmp_path: Path) -> Path:
    """A pretrained embedding of some of the words."""
    rows = [f"{word} " + " ".join(["0.25"] * 16) for word in ("3", "5")]
    path = tmp_path / "embedding.txt"
    path.write_text(f"{len(rows)} 16\n" + "".join(row + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("arch", "name"), [pytest.param(*case, marks=[pytest.mark.slow] if case[1] == "compile" else []) for case in CASES]
)
def test_every_option_has_an_effect_or_is_rejected(arch, name, embedding_file, tmp_path):
    knob, files = OF_FAMILY.get((arch, name), KNOBS[name]), {EMBEDDING: str(embedding_file)}
    files[PROFILE] = str(tmp_path / "profile")
    Path(files[PROFILE]).write_text("1.5\n" * (16 if arch.startswith("one_wide_ffn") else 20))
    files[CHECKPOINT] = str(tmp_path / "checkpoint.pt")
    flags = [files.get(flag, flag) for flag in knob.flags.split()]
    base = without(models.tiny_flags(arch), knob.base)
    if arch in knob.rejected:
        with pytest.raises(ValueError, match=knob.rejected[arch]):
            build(arch, base + flags)
        return
    plain = build(arch, base, knob.off)
    if files[CHECKPOINT] in flags:
        weights = {key: value + 1 for key, value in plain.state_dict().items()}
        history = [{"criterion_name": "", "best_loss": 0}]
        torch.save({"model": weights, "optimizer_history": history, "extra_state": {}}, files[CHECKPOINT])
    other = build(arch, base + flags)
    allowed = [{"parameters"}, {"output"}] if knob.changes == "either" else [set(knob.changes.split())]
    assert changed(plain, other, joint_inputs(arch)) in allowed


@pytest.mark.parametrize("side", models.SIDES)
def test_pretrained_embedding_is_loaded(side, embedding_file):
    flags = [f"--{side}-embed-path", str(embedding_file)]
    model = build("vanilla_base", [*models.tiny_flags("vanilla_base"), *flags])
    embedding, words = getattr(model, side).embed_tokens.weight, models.dictionary(models.TARGET_SYMBOLS)
    loaded = [words.index(word) for word in ("3", "5")]
    assert (embedding[loaded] == 0.25).all()
    assert not (embedding == 0.25).all(1)[[row for row in range(len(words)) if row not in loaded]].any()
    with pytest.raises(ValueError, match="must be an embedding: .*, with the 32 numbers of the model's width"):
        build("vanilla_base", models.tiny_flags("vanilla_base", f"--{side}-embed-dim", "32", *flags))


def test_an_embedding_is_a_file():
    with pytest.raises(ValueError, match="^/dev/zero: must be an embedding: "):
        build("vanilla_base", models.tiny_flags("vanilla_base", "--encoder-embed-path", "/dev/zero"))


@pytest.mark.parametrize("make", [lambda args: args, lambda args: OmegaConf.create(vars(args))])
def test_a_checkpoint_needs_no_file_with_embeddings(make, embedding_file):
    """Its weights hold them."""
    flags = [f"--{side}-embed-path={embedding_file}" for side in models.SIDES]
    args = make(models.options("vanilla_base", *models.tiny_flags("vanilla_base", "--share-all-embeddings", *flags)))
    on = models.task(models.TARGET_SYMBOLS, models.TARGET_SYMBOLS)
    trained = on.build_model(args)
    embedding_file.unlink()
    on.build_model(args).load_state_dict(trained.state_dict())


@pytest.mark.parametrize(
    ("arch", "flags", "deviation", "output"),
    [
        ("cycle", "", 16**-0.5, 16**-0.5),
        ("cycle", "--no-scale-embedding", 16**-0.5, 16**-0.5),
        ("ringformer_base", "", 1, 16**-0.5 / 3**0.5),
        ("ringformer_base", "--share-decoder-input-output-embed --no-scale-embedding", 16**-0.5, None),
    ],
)
def test_embeddings_start_as_in_fairseq_or_as_published(arch, flags, deviation, output):
    flags = models.tiny_flags(arch, "--position", "learned", *flags.split())
    model = models.build(arch, *flags, on=models.task(2000, 2000))
    for side in (model.encoder, model.decoder):
        assert side.inputs.embed_positions.weight.std().item() == pytest.approx(deviation, rel=0.1)
        embedding, padding = side.embed_tokens.weight, side.dictionary.pad()
        assert embedding.std().item() == pytest.approx(deviation, rel=0.05)
        assert not embedding[padding].any()
    if output is not None:
        assert model.decoder.output_projection.weight.std().item() == pytest.approx(output, rel=0.05)


@pytest.mark.parametrize("arch", [arch for arch in FAMILIES if arch not in ("ilr_small", "recurrent_lm")])
def test_layers_start_as_in_fairseq_or_as_published(arch):
    """Xavier uniform, Q, K and V as one matrix; RingFormer and its baselines as PyTorch's, with 0.02 in the FFN."""
    of_ringformer = arch in ("ringformer_base", "universal", "one_wide_ffn_base", "vanilla_base")
    for loop in models.loops(build(arch, models.tiny_flags(arch))):
        for block in loop.blocks:
            if block.ffn is not None:
                layer = block.ffn.up
                expected = 0.02 if of_ringformer else (2 / (layer.in_features + layer.out_features)) ** 0.5
                assert layer.weight.std().item() == pytest.approx(expected, rel=0.1)
            if block.self_attn is not None:
                layer = block.self_attn.qkv
                expected = ((1 / 3 if of_ringformer else 1 / 2) / layer.in_features) ** 0.5
                assert layer.weight.std().item() == pytest.approx(expected, rel=0.1)


def test_embeddings_are_dropped_after_their_norm():
    inputs = TokenInput(16, 1.0, None, 0, 1.0, dropout=1.0, layernorm=True).train()
    nn.init.ones_(inputs.layernorm.bias)
    assert not inputs(torch.randn(2, 3, 16), None).any()


def test_every_choice_of_the_signals_is_another_model():
    base, outputs = without(models.tiny_flags("ringformer_base"), "--signal-rank-divisor NONE"), []
    *places, _ = itertools.product(("after", "before", "none"), ("before", "inside", "none"))  # no signal anywhere
    kinds = ["--level-signal=low-rank --signal-rank-divisor=4", "--level-signal=full"]
    choices = [f"{kind} --attention-signal={at} --ffn-signal={ffn}" for kind in kinds for at, ffn in places]
    for flags in [*choices, "--level-signal=static", "--level-signal=none"]:
        model = models.randomise(build("ringformer_base", base + flags.split()), seed=0).eval()
        outputs.append(model(*joint_inputs("ringformer_base"))[0])
    assert len(outputs) == 18
    assert not [pair for pair in itertools.combinations(outputs, 2) if torch.allclose(*pair)]


@pytest.mark.parametrize("arch", FAMILIES)
def test_embeddings_have_the_rate_of_dropout_unless_they_have_their_own(arch):
    for more, rate in (([], 0.25), (["--embedding-dropout", "0.5"], 0.5)):
        model = build(arch, [*models.tiny_flags(arch), "--dropout", "0.25", *more])
        coders = (getattr(model, side) for side in models.SIDES if hasattr(model, side))
        assert {coder.inputs.dropout.p for coder in coders} == {rate}


@pytest.mark.parametrize(("flags", "deviation"), [([], 0.02), (["--post-norm"], 64**-0.5)])
def test_ilrs_layers_start_at_the_deviation_of_the_embedding(flags, deviation):
    model = build("ilr_small", ["--decoder-embed-dim", "64", *flags])
    for parameter in model.parameters():
        assert parameter.dim() == 1 or parameter.std().item() == pytest.approx(deviation, rel=0.1)
