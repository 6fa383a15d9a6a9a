"""Looped models as the host's own and back: equal outputs, without the plugin, or refused for a stated reason."""

import argparse
import json

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor, nn

from fairseq_plugin import convert
from fairseq_plugin.catalogue import architectures
from fairseq_plugin.conversion import host
from fairseq_plugin.conversion.share import shared
from fairseq_plugin.conversion.unshare import unshared
from fairseq_plugin.modules.build import build_architecture
from tests import cli, language, models, speech

# What the host has no place for, by architecture; every other one converts.
TABLE = "positions and depths added before every pass"
LLAMA = "LlamaBlock: not a block of attention and FFN"
NLL = "the non-linear projection behind a pass"
REFUSED = {
    **dict.fromkeys(["universal_tiny", "universal", "universal_large"], TABLE),
    **dict.fromkeys(["ilr_small", "ilr_large"], LLAMA),
    **dict.fromkeys(speech.ARCHS, "its convolutions read speech"),
    "recurrent_lm": "a recurrence along the sequence",
    "recursive_wmt_en_de": NLL,  # whose preset converts; the tests build it with --nll
}
PRE_NORM = {
    **dict.fromkeys(["ringformer_tiny", "ringformer_base", "ringformer_large"], "level signals of a pre-norm stack"),
    "recursive_iwslt_de_en": "residual coefficients",
}
CLOSE = dict(rtol=0, atol=1e-5)
JOINT = ["--share-all-embeddings"]
SIGNALS = {
    "before": ["--attention-signal", "before"],
    "inside": ["--ffn-signal", "inside"],
    "full": ["--level-signal", "full"],
    "none": ["--level-signal", "none"],
    "no attention": ["--attention-signal", "none"],
}


def options(arch: str, *flags: str) -> argparse.Namespace:
    """As a checkpoint of a tiny model has them."""
    args = models.options(arch, *models.tiny_flags(arch), *flags)
    args.arch = arch
    return args


def logits(model: nn.Module, symbols: tuple[int, int], left_pad: bool = False) -> Tensor:
    """Of the target's tokens alone."""
    batch = models.batch(left_pad=left_pad, symbols=symbols)
    return model(*batch)[0][batch[2].ne(models.dictionary(symbols[1]).pad())]


def as_host(model: nn.Module, args: argparse.Namespace) -> nn.Module:
    """The host's own model, in double precision."""
    values, weights = unshared(model, args)
    converted = host.build(values, weights)
    assert type(converted).__module__.startswith("fairseq.models.transformer")
    converted.double().load_state_dict(weights)
    return converted


def check(arch: str, *flags: str) -> None:
    joint = JOINT[0] in flags
    symbols = (models.TARGET_SYMBOLS if joint else models.SOURCE_SYMBOLS, models.TARGET_SYMBOLS)
    model = models.tiny(arch, *flags, on=models.task(*symbols))
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    converted = as_host(model, options(arch, *flags))
    for left_pad in (False, True):
        torch.testing.assert_close(logits(converted, symbols, left_pad), logits(model, symbols, left_pad), **CLOSE)
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


# Unsharing


def test_every_architecture_converts_or_is_refused():
    tried = set(models.EVERY) | set(language.ARCHS)
    assert tried == set(architectures())
    assert {*REFUSED, *PRE_NORM} <= tried


@models.every_arch
@pytest.mark.parametrize("flags", [[], [*JOINT, "--decoder-learned-pos"]], ids=["as published", "one matrix"])
def test_the_hosts_own_model_gives_the_same_logits(arch, flags):
    if arch not in REFUSED:
        return check(arch, *flags)
    with pytest.raises(ValueError, match=f"--arch {arch}: does not become the host's own: {REFUSED[arch]}"):
        unshared(models.tiny(arch), options(arch))


@models.every_arch
def test_pre_norm_models_convert_or_are_refused(arch):
    flags = [*models.VARIANTS["pre-norm"], *models.VARIANTS["unequal sides"], "--layernorm-embedding"]
    reason = {**PRE_NORM, **REFUSED}.get(arch)
    if reason is None:
        return check(arch, *flags)
    with pytest.raises(ValueError, match=rf"--arch {arch}: .*({reason}|residual coefficients)"):
        unshared(models.tiny(arch, *flags), options(arch, *flags))


@pytest.mark.parametrize("arch", speech.ARCHS)
def test_models_of_speech_are_refused(arch):
    with pytest.raises(ValueError, match=f"--arch {arch}: does not become the host's own: {REFUSED[arch]}"):
        unshared(models.tiny(arch), options(arch))


@pytest.mark.parametrize("arch", ["cycle", "one_wide_ffn_tiny", "ringformer_tiny"])
def test_admins_vectors_are_folded(arch):
    check(arch, "--init", "admin")


@pytest.mark.parametrize("flags", SIGNALS.values(), ids=SIGNALS)
def test_every_kind_of_level_signal_is_folded(flags):
    rank = models.tiny_flags("ringformer_tiny").index("--signal-rank-divisor")
    size = models.tiny_flags("ringformer_tiny")[:rank]
    args = models.options("ringformer_tiny", *size, *flags)
    args.arch = "ringformer_tiny"
    model = models.randomise(models.build("ringformer_tiny", *size, *flags).double(), 0).eval()
    symbols = (models.SOURCE_SYMBOLS, models.TARGET_SYMBOLS)
    torch.testing.assert_close(logits(as_host(model, args), symbols), logits(model, symbols), **CLOSE)


@language.every_variant
def test_language_models_convert_or_are_refused(arch, flags):
    model = language.tiny(arch, *flags)
    args = language.options(arch, *language.tiny_flags(arch, *flags))
    args.arch, args.tokens_per_sample = arch, language.POSITIONS
    if arch in REFUSED and "--regular" not in flags:
        with pytest.raises(ValueError, match=rf"--arch {arch}: does not become the host's own: {REFUSED[arch]}"):
            unshared(model, args)
        return
    tokens = language.texts()
    keep, converted = language.kept(tokens), as_host(model, args)
    expected, got = (m.get_normalized_probs(m(tokens), True, {"target": tokens})[keep] for m in (model, converted))
    torch.testing.assert_close(got, expected, **CLOSE)


def test_tensors_that_passes_share_are_written_once(tmp_path):
    model = models.tiny("cycle", *JOINT, on=models.task(23, 23))
    _, weights = unshared(model, options("cycle", *JOINT))
    assert sum("layers." in key for key in weights) == 4 * (16 + 26)
    torch.save(weights, tmp_path / "unshared.pt")
    torch.save(model.state_dict(), tmp_path / "looped.pt")
    tensors = sum(tensor.nbytes for tensor in model.state_dict().values())
    overhead = 300 * len(weights)  # a name and a shape for each key
    assert (tmp_path / "unshared.pt").stat().st_size < tensors + overhead


# Sharing


HOSTS = {
    "post-norm": {},
    "pre-norm": dict(encoder_normalize_before=True, decoder_normalize_before=True),
    "learned": dict(encoder_learned_pos=True, decoder_learned_pos=True, layernorm_embedding=True),
    "unequal sides": dict(decoder_layers=2, encoder_ffn_embed_dim=12, share_decoder_input_output_embed=True),
}


def host_model(**values) -> tuple[nn.Module, argparse.Namespace]:
    """A random model of the host's, in double precision, and its options."""
    size = {f"{side}_{name}": n for side in models.SIDES for name, n in (("layers", 4), ("attention_heads", 2))}
    values = {**size, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24, **values}
    dictionaries = models.dictionary(models.SOURCE_SYMBOLS), models.dictionary(models.TARGET_SYMBOLS)
    torch.manual_seed(0)
    model = build_architecture("transformer", *dictionaries, 64, **values).double()
    args = argparse.Namespace(arch="transformer", max_source_positions=64, max_target_positions=64, **values)
    ARCH_CONFIG_REGISTRY["transformer"](args)
    return models.randomise(model, 1).eval(), args


def looped(model: nn.Module, args: argparse.Namespace, *how) -> tuple[nn.Module, argparse.Namespace]:
    """The model of this plugin, in double precision, and its options."""
    values, weights = shared(model, args, *how)
    converted = host.build(values, weights)
    converted.double().load_state_dict(weights)
    return converted, values


SYMBOLS = (models.SOURCE_SYMBOLS, models.TARGET_SYMBOLS)


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("strategy", ["sequence", "cycle", "cycle_rev"])
@pytest.mark.parametrize("unique_layers", [1, 2])
def test_full_rank_is_exact_and_folds_back(name, strategy, unique_layers):
    model, args = host_model(**HOSTS[name])
    loop, values = looped(model, args, strategy, unique_layers, 16)
    assert type(loop).__module__ == "fairseq_plugin.models.parameter_sharing"
    assert len(loop.encoder.loop.blocks) == unique_layers
    torch.testing.assert_close(logits(loop, SYMBOLS), logits(model, SYMBOLS), **CLOSE)
    _, weights = unshared(loop, values)
    for key, tensor in model.state_dict().items():
        if not host.FIXED.fullmatch(key):
            first = 2 if key.endswith("embed_positions.weight") else 0  # no token has place 0 or 1
            used = slice(first, None)
            torch.testing.assert_close(weights[key][used], tensor[used], rtol=0, atol=1e-9, msg=key)


@pytest.mark.parametrize("strategy", ["sequence", "cycle", "cycle_rev"])
def test_a_higher_rank_is_nearer_and_folds_into_the_same_model(strategy):
    model, args = host_model()
    original = {key: tensor for key, tensor in model.state_dict().items() if not host.FIXED.fullmatch(key)}
    errors = []
    for rank in (None, 1, 4, 12):
        loop, values = looped(model, args, strategy, 2, rank)
        torch.testing.assert_close(logits(as_host(loop, values), SYMBOLS), logits(loop, SYMBOLS), **CLOSE)
        _, weights = unshared(loop, values)
        matrices = [key for key, tensor in original.items() if ".layers." in key and tensor.dim() == 2]
        errors.append(sum((weights[key] - original[key]).square().sum().item() for key in matrices))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.1 * errors[0]


def test_passes_without_terms_run_the_mean_of_their_layers():
    model, args = host_model()
    _, weights = shared(model, args, "cycle", 2, None)
    theirs = model.state_dict()
    assert not [key for key in weights if ".own." in key]
    for ours, name in (("ffn.up.weight", "fc1.weight"), ("norms.1.bias", "final_layer_norm.bias")):
        mean = (theirs[f"encoder.layers.1.{name}"] + theirs[f"encoder.layers.3.{name}"]) / 2
        torch.testing.assert_close(weights[f"encoder.loop.blocks.1.{ours}"], mean)


def test_a_shared_model_decodes_step_by_step_and_trains():
    """Keys and values of cross-attention are of each pass, not of each block."""
    loop, _ = looped(*host_model(), "cycle", 2, 3)
    source, lengths, target = models.batch(target_lengths=(7, 7, 7))
    expected, _ = loop(source, lengths, target)
    with torch.no_grad():
        encoder_out, state = loop.encoder(source, lengths), {}
        steps = [loop.decoder(target[:, : t + 1], encoder_out, state)[0] for t in range(7)]
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=0, atol=1e-9)
    state["recurrence"].reorder(torch.tensor([2, 0]))
    assert all(len(context) == 2 for context in state["recurrence"].contexts)
    _, gradients = models.loss_and_gradients(loop, (source, lengths, target))
    assert gradients.keys() == dict(loop.named_parameters()).keys()


@pytest.mark.parametrize(
    ("how", "values", "message"),
    [
        (("cycle", 2, 17), {}, "--rank=17: must be >= 1 and <= the model's width, 16"),
        (("cycle", 2, 0), {}, "--rank=0: must be >= 1"),
        (("cycle", 5, 4), {}, "--unique-layers=5: must be >= 1 and <= --encoder-layers=4"),
        (("sequence", 3, 4), {}, "--unique-layers=3: must divide --encoder-layers=4 with sequence"),
        (("cycle", 2, 4), dict(no_cross_attention=True), "--no-cross-attention=True: a looped model has no such part"),
        (("cycle", 2, 4), dict(decoder_output_dim=8), "--decoder-output-dim=8: must equal --decoder-embed-dim=16"),
        (("cycle", 2, 4), dict(arch="transformer_lm"), "--arch transformer_lm: only the host's own 'transformer'"),
        (("cycle", 2, 4), dict(arch="cycle"), "--arch cycle: only the host's own 'transformer'"),
    ],
)
def test_what_cannot_be_shared_is_refused(how, values, message):
    model, args = host_model()
    vars(args).update(values)
    with pytest.raises(ValueError, match=message):
        shared(model, args, *how)


@pytest.mark.parametrize(
    ("flag", "message"), [("17", r"--residual-rank=17: must be >= 1 and <= --encoder-embed-dim=16")]
)
def test_a_rank_above_the_width_is_refused_in_training(flag, message):
    with pytest.raises(ValueError, match=message):
        models.tiny("cycle", "--residual-rank", flag)


# Command lines

# A process that has only the host: the types of its checkpoints are named, nothing of ours can be imported.
ALONE = """
import argparse, json, sys
sys.modules.update(fairseq_plugin=None, recurrence=None)
import torch
torch.serialization.add_safe_globals([argparse.Namespace])
"""
LOGITS = (
    ALONE
    + """
from fairseq import checkpoint_utils
models, args, task = checkpoint_utils.load_model_ensemble_and_task([sys.argv[1]], dict(data=sys.argv[2]))
task.load_dataset("test")
batch = next(task.get_batch_iterator(task.dataset("test"), max_sentences=8).next_epoch_itr(shuffle=False))
with torch.no_grad():
    logits, _ = models[0].eval()(**batch["net_input"])
print(json.dumps([type(models[0]).__module__, logits[batch["target"].ne(1)].tolist()]))
"""
)
GENERATE = (
    ALONE
    + """
sys.argv[0] = "fairseq-generate"
from fairseq_cli.generate import cli_main
cli_main()
"""
)
SEARCH = ("--beam", "2", "--max-len-b", "15", "--batch-size", "128")


@pytest.mark.slow
def test_without_the_plugin_the_host_gives_the_same(trained, corpus, tmp_path):
    source, target = trained.folder / "checkpoint_last.pt", tmp_path / "unshared.pt"
    before = source.read_bytes()
    log = cli.python("-m", "fairseq_plugin.convert", "unshare", source, target)
    assert f"wrote {target} (--arch transformer)" in log
    assert source.read_bytes() == before
    with_plugin = LOGITS.replace(ALONE, "import json, sys, torch, fairseq_plugin\n")
    ours = json.loads(cli.python("-W", "ignore", "-c", with_plugin, source, corpus.data).splitlines()[-1])
    theirs = json.loads(cli.run(cli.sys.executable, "-W", "ignore", "-c", LOGITS, target, corpus.data).splitlines()[-1])
    assert ours[0] == "fairseq_plugin.models.ringformer"
    assert theirs[0] == "fairseq.models.transformer.transformer_legacy"
    torch.testing.assert_close(torch.tensor(theirs[1]), torch.tensor(ours[1]), **CLOSE)
    search = (corpus.data, "--path", target, "--cpu", *SEARCH)
    alone = cli.run(cli.sys.executable, "-W", "ignore", "-c", GENERATE, *search)
    expected = cli.hypotheses(cli.generate(corpus.data, source, *SEARCH))
    found = cli.hypotheses(alone)
    assert found == {number: expected[number] for number in found}
    assert len(found) > 0.95 * corpus.sentences["test"]  # without the repairs the host leaves out its last batch


@pytest.mark.slow
def test_share_trains_on_and_folds_back_by_command_line(trained, corpus, tmp_path):
    """RingFormer -> the host's transformer -> a cycle with low-rank terms -> two updates more -> the host's again."""

    def run(*arguments):
        convert.main([str(argument) for argument in arguments])

    run("unshare", trained.folder / "checkpoint_last.pt", tmp_path / "host.pt")
    run("share", tmp_path / "host.pt", tmp_path / "looped.pt", "--unique-layers", "1", "--rank", "32")
    state = torch.load(tmp_path / "looped.pt", weights_only=True)
    assert state["cfg"]["model"].arch == "cycle"
    tuned = ["--finetune-from-model", tmp_path / "looped.pt", "--arch", "cycle", "--residual-rank", "32"]
    tuned += ["--encoder-unique-layers", "1", "--decoder-unique-layers", "1", "--activation-fn", "gelu"]
    tuned += ["--encoder-learned-pos", "--decoder-learned-pos", "--no-scale-embedding", "--disable-validation"]
    log = cli.train(corpus.data, tmp_path / "tuned", *tuned, "--max-update", "2", "--batch-size", "16")
    assert "loading pretrained model from" in log
    run("unshare", tmp_path / "tuned" / "checkpoint_last.pt", tmp_path / "folded.pt")
    assert torch.load(tmp_path / "folded.pt", weights_only=True)["cfg"]["model"].arch == "transformer"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["unshare", "{last}", "{last}"], "is IN, which is never written over"),
        (["unshare", "{folder}/missing.pt", "{out}"], "No such file"),
        (["share", "{last}", "{out}", "--unique-layers", "1"], "--arch ringformer_tiny: only the host's own"),
        (["share", "{last}", "{out}"], "required: --unique-layers"),
        (["share", "{last}", "{out}", "--unique-layers", "1", "--strategy", "loop"], "invalid choice: 'loop'"),
    ],
)
def test_wrong_commands_are_refused_and_write_nothing(trained, tmp_path, capsys, arguments, message):
    last, out = trained.folder / "checkpoint_last.pt", tmp_path / "out.pt"
    before = last.stat().st_mtime_ns
    with pytest.raises(SystemExit):
        convert.main([word.format(last=last, folder=trained.folder, out=out) for word in arguments])
    assert message in capsys.readouterr().err
    assert not out.exists()
    assert last.stat().st_mtime_ns == before
