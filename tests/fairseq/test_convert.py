"""Unsharing to fairseq's own models: equal outputs without the plugin, or a rejection that states the reason."""

import json
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq import models as fairseq_models

from fairseq_plugin import convert
from fairseq_plugin.export import upstream
from fairseq_plugin.export.unshare import unshared
from fairseq_plugin.models.ringformer import WEIGHTS
from fairseq_repairs.checkpoints import load_safely
from tests.support import cli, language, models, speech
from tests.support.conversion import CLOSE, as_fairseq, logits, single_utterance

# What fairseq has no place for, by architecture; every other one converts.
TABLE = "positions and depths added before every pass"
LLAMA = "LlamaBlock is not a block of attention and FFN with LayerNorms"
NLL = "the non-linear projection behind a pass"
NO_FFN = "layers without an FFN"
REJECTED = {
    **dict.fromkeys(["universal_tiny", "universal", "universal_large"], TABLE),
    **dict.fromkeys(["ilr_small", "ilr_large"], LLAMA),
    **dict.fromkeys(["one_wide_ffn_tiny", "one_wide_ffn_base", "one_wide_ffn_large"], NO_FFN),  # in the decoder
    "recurrent_lm": "a recurrence along the sequence",
    "recursive_wmt_en_de": NLL,  # whose preset converts; the tests build it with --nll
}
PRE_NORM = {
    **dict.fromkeys(["ringformer_tiny", "ringformer_base", "ringformer_large"], "level signals of a pre-norm stack"),
    "recursive_iwslt_de_en": "residual coefficients",
}
JOINT = ["--share-all-embeddings"]
SIGNALS = {
    "before": ["--attention-signal", "before"],
    "inside": ["--ffn-signal", "inside"],
    "full": ["--level-signal", "full"],
    "none": ["--level-signal", "none"],
    "no attention": ["--attention-signal", "none"],
    "cross-attention": ["--cross-attention-signal", "after"],
    "before cross-attention": ["--cross-attention-signal", "before"],
}


def check(arch: str, *flags: str) -> None:
    joint = JOINT[0] in flags
    symbols = (models.TARGET_SYMBOLS if joint else models.SOURCE_SYMBOLS, models.TARGET_SYMBOLS)
    model = models.tiny(arch, *flags, on=models.task(*symbols))
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    converted = as_fairseq(model, models.saved_options(arch, *flags))
    for left_pad in (False, True):
        torch.testing.assert_close(logits(converted, symbols, left_pad), logits(model, symbols, left_pad), **CLOSE)
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


@models.every_translation_model
@pytest.mark.parametrize("flags", [[], [*JOINT, "--decoder-learned-pos"]], ids=["as published", "one matrix"])
def test_fairseqs_own_model_gives_the_same_logits(arch, flags):
    if arch not in REJECTED:
        return check(arch, *flags)
    with pytest.raises(ValueError, match=f"--arch {arch}: cannot become fairseq's own: {REJECTED[arch]}"):
        unshared(models.tiny(arch), models.saved_options(arch))


@models.every_translation_model
def test_pre_norm_models_convert_or_are_rejected(arch):
    flags = [*models.VARIANTS["pre-norm"], *models.VARIANTS["unequal sides"], "--layernorm-embedding"]
    reason = {**PRE_NORM, **REJECTED}.get(arch)
    if reason is None:
        return check(arch, *flags)
    with pytest.raises(ValueError, match=rf"--arch {arch}: .*({reason}|residual coefficients)"):
        unshared(models.tiny(arch, *flags), models.saved_options(arch, *flags))


SPEECH_FLAGS = {
    **speech.VARIANTS,
    "one matrix": ["--share-decoder-input-output-embed", "--layernorm-embedding", "--no-scale-embedding"],
    "gelu": ["--activation-fn", "gelu"],
}


@torch.no_grad()
@pytest.mark.parametrize("arch", speech.ARCHS)
@pytest.mark.parametrize("flags", SPEECH_FLAGS.values(), ids=SPEECH_FLAGS)
def test_models_of_speech_give_fairseqs_logits(arch, flags):
    model = models.tiny(arch, *flags)
    converted = as_fairseq(model, models.saved_options(arch, *flags))
    for source, lengths, target in map(single_utterance, range(3)):
        torch.testing.assert_close(converted(source, lengths, target)[0], model(source, lengths, target)[0], **CLOSE)


def test_another_epsilon_than_fairseqs_is_rejected_for_speech():
    changed = models.saved_options("s2t_cycle")
    changed.norm_eps = 1e-6
    model = models.task_of("s2t_cycle").build_model(changed)
    with pytest.raises(ValueError, match="--arch s2t_cycle: cannot become fairseq's own: norm_eps=1e-06: must be"):
        unshared(model, changed)


ORDERS = ("--encoder-order", "0,1,1,2,0", "--decoder-order", "1,0,1")


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ("cycle", ["--init", "admin"]),
        ("ringformer_tiny", ["--init", "admin"]),
        ("cycle", ORDERS),
        ("cycle", [*ORDERS, "--init", "admin"]),
    ],
)
def test_admins_vectors_and_any_order_become_layers(arch, flags):
    check(arch, *flags)


def test_a_coefficient_of_0_on_the_stream_is_rejected():
    model, args = models.tiny("recursive_iwslt_de_en"), models.saved_options("recursive_iwslt_de_en")
    torch.nn.init.zeros_(model.encoder.loop.blocks[0].residuals[1].identity)
    with pytest.raises(ValueError, match="residual coefficients: one of the stream itself is 0"):
        unshared(model, args)


@pytest.mark.parametrize("flags", SIGNALS.values(), ids=SIGNALS)
def test_every_kind_of_level_signal_is_folded(flags):
    rank = models.tiny_flags("ringformer_tiny").index("--signal-rank-divisor")
    size = models.tiny_flags("ringformer_tiny")[:rank]
    args = models.options("ringformer_tiny", *size, *flags)
    args.arch = "ringformer_tiny"
    model = models.randomise(models.build("ringformer_tiny", *size, *flags).double(), 0).eval()
    torch.testing.assert_close(logits(as_fairseq(model, args)), logits(model), **CLOSE)


def test_language_models_with_another_epsilon_are_rejected():
    model, args = models.tiny("cycle_lm"), models.saved_options("cycle_lm")
    for norm in model.modules():
        norm.eps = 1e-6
    with pytest.raises(ValueError, match="norm_eps=.*: must be 1e-05, as fairseq has it"):
        unshared(model, args)


@models.every_language_case
@pytest.mark.parametrize("left_pad", [False, True], ids=["padding right", "padding left"])
def test_language_models_give_fairseqs_probabilities_or_are_rejected(arch, flags, left_pad):
    """Takase & Kiyono's are Baevski's: pre-norm, without a norm at the end, a layer for every depth."""
    model = models.tiny(arch, *flags)
    args = models.saved_options(arch, *flags)
    reason = None if "--regular" in flags else REJECTED.get(arch)
    if args.position in ("relative", "rotary", "alibi"):
        reason = reason or f"--position={args.position}: acts in attention"
    if reason is not None:
        with pytest.raises(ValueError, match=rf"--arch {arch}: cannot become fairseq's own: {reason}"):
            unshared(model, args)
        return
    tokens = language.texts(left_pad=left_pad)
    keep, converted = models.is_token(tokens), as_fairseq(model, args)
    if language.FAMILY[arch] == "SharedLanguageModel":
        assert converted.decoder.layer_norm is None
        assert all(layer.normalize_before for layer in converted.decoder.layers)
    expected, got = (one.get_normalized_probs(one(tokens), log_probs=True)[keep] for one in (converted, model))
    torch.testing.assert_close(got, expected, **CLOSE)
    torch.testing.assert_close(got.double(), models.log_probabilities(model, tokens)[keep], **CLOSE)


def test_a_language_model_is_built_from_options_that_need_no_plugin():
    """As CTranslate2's converter does it, which hands fairseq what the file holds."""
    flags = ["--adaptive-input-cutoff", "none"]
    model = models.tiny("cycle_lm", *flags)
    values, weights = unshared(model, models.saved_options("cycle_lm", *flags))
    built = fairseq_models.build_model(upstream.readable(values), language.task()).double().eval()
    built.load_state_dict(weights)
    tokens = language.texts()
    keep = models.is_token(tokens)
    torch.testing.assert_close(built(tokens)[0][keep], model(tokens)[0][keep], **CLOSE)


def test_limits_of_the_task_are_kept():
    """fairseq-hydra-train stores them with the task; the model has None, or its number of learned positions."""
    model, options = models.tiny("ringformer_tiny"), models.saved_options("ringformer_tiny")
    cfg = dict(model=dict(vars(options), max_source_positions=50, max_target_positions=None))
    cfg["task"] = dict(_name="translation", max_source_positions=77, max_target_positions=66)
    args = convert.unshare_checkpoint(dict(cfg=cfg, model=model.state_dict()))["args"]
    assert (args.max_source_positions, args.max_target_positions) == (50, 66)


@pytest.mark.parametrize(("task", "kept"), [("shifted_language_modeling", "language_modeling"), ("copying", "copying")])
def test_options_of_a_run_are_those_of_fairseqs_commands(task, kept):
    """With tasks that fairseq has, where ours only differ in training."""
    groups = {"task": {"_name": task, "seed": 1}, "optimizer": {"_name": "adam", "adam_eps": 1e-6}}
    groups |= {"criterion": {"_name": "cross_entropy"}, "lr_scheduler": Namespace(_name="cosine", min_lr=0.5)}
    found = convert._run_options({"cfg": groups}, Namespace(arch="cycle_lm", seed=2))
    kinds = dict(task=kept, criterion="cross_entropy", optimizer="adam", lr_scheduler="cosine")
    assert vars(found) == {**kinds, "adam_eps": 1e-6, "min_lr": 0.5, "arch": "cycle_lm", "seed": 2}


def test_the_criterion_of_several_depths_is_the_one_that_it_is_at_one_depth():
    options = {"_name": "elastic_cross_entropy", "label_smoothing": 0.1, "depth_range": "1-4"}
    found = convert._run_options({"cfg": {"criterion": options}}, Namespace(arch="cycle_small"))
    assert (found.criterion, found.label_smoothing) == ("label_smoothed_cross_entropy", 0.1)


def test_tensors_that_passes_share_are_written_once(tmp_path):
    model = models.tiny("cycle", *JOINT, on=models.task(23, 23))
    _, weights = unshared(model, models.saved_options("cycle", *JOINT))
    assert sum("layers." in key for key in weights) == 4 * (16 + 26)
    torch.save(weights, tmp_path / "unshared.pt")
    torch.save(model.state_dict(), tmp_path / "looped.pt")
    tensors = sum(tensor.nbytes for tensor in model.state_dict().values())
    overhead = 300 * len(weights)  # a name and a shape for each key
    assert (tmp_path / "unshared.pt").stat().st_size < tensors + overhead


# Command lines

# A process with fairseq and torch's default safe loader, in which this plugin cannot be imported.
ALONE = """
import json, sys
sys.modules.update(fairseq_plugin=None, recurrence=None)
import torch
"""
LOGITS = f"""{ALONE}
from fairseq import checkpoint_utils
models, args, task = checkpoint_utils.load_model_ensemble_and_task([sys.argv[1]], dict(data=sys.argv[2]))
task.load_dataset("test")
batch = next(task.get_batch_iterator(task.dataset("test"), max_sentences=8).next_epoch_itr(shuffle=False))
with torch.no_grad():
    logits, _ = models[0].eval()(**batch["net_input"])
print(json.dumps([type(models[0]).__module__, logits[batch["target"].ne(1)].tolist()]))
"""
GENERATE = """
sys.argv = ["fairseq-generate", sys.argv[2], "--path", sys.argv[1], *sys.argv[3:]]
from fairseq_cli.generate import cli_main
cli_main()
"""
SEARCH = ("--beam", "2", "--max-len-b", "15", "--batch-size", "128")


@pytest.mark.slow
def test_without_the_plugin_fairseq_gives_the_same(trained, corpus, tmp_path):
    source, target = trained.folder / "checkpoint_last.pt", tmp_path / "unshared.pt"
    before = source.read_bytes()
    log = cli.python("-m", "fairseq_plugin.convert", "unshare", source, target)
    assert f"wrote {target} (--arch transformer)" in log
    assert source.read_bytes() == before
    with_plugin = LOGITS.replace(ALONE, "import json, sys, torch, fairseq_plugin\n")
    ours = json.loads(cli.python("-W", "ignore", "-c", with_plugin, source, corpus.data).splitlines()[-1])
    both = ("-W", "ignore", "-c", LOGITS + GENERATE, target, corpus.data, "--cpu", *SEARCH)
    alone = cli.run(cli.sys.executable, *both, fresh=True)
    theirs = json.loads(next(line for line in alone.splitlines() if line.startswith('["fairseq')))
    assert ours[0] == "fairseq_plugin.models.ringformer"
    assert theirs[0] == "fairseq.models.transformer.transformer_legacy"
    torch.testing.assert_close(torch.tensor(theirs[1]), torch.tensor(ours[1]), **CLOSE)
    expected = cli.hypotheses(cli.generate(corpus.data, source, *SEARCH))
    found = cli.hypotheses(alone)
    assert found == {number: expected[number] for number in found}
    assert len(found) > 0.95 * corpus.sentences["test"]  # without the repairs fairseq leaves out its last batch


@pytest.mark.slow
def test_ctranslate2_scores_as_fairseq_does(corpus, trained, tmp_path):
    """By its own converter of fairseq's checkpoints: every word of the references, and the end of each."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    path = str(trained.folder / "checkpoint_last.pt")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path], dict(data=str(corpus.data)))
    task.load_dataset("valid")
    words, dataset = task.target_dictionary, task.dataset("valid")
    batch = dataset.collater([dataset[index] for index in range(8)])
    with torch.no_grad():
        log_probabilities = model.eval()(**batch["net_input"])[0].log_softmax(-1)
    expected = log_probabilities.gather(2, batch["target"][..., None])[..., 0]
    rows = (batch["net_input"]["src_tokens"], batch["target"])
    sources, targets = ([words.string(row[row.ne(words.pad())]).split() for row in part] for part in rows)
    unshared, exported = str(tmp_path / "unshared.pt"), str(tmp_path / "exported")
    convert.main(["unshare", path, unshared])
    ctranslate2.converters.FairseqConverter(unshared, str(corpus.data), "en", "de").convert(exported)
    translator = ctranslate2.Translator(exported, intra_threads=1)
    for result, row, target in zip(translator.score_batch(sources, targets), expected, targets):
        found = torch.tensor(result.log_probs)
        assert len(found) == len(target) + 1
        torch.testing.assert_close(found, row[: len(found)], rtol=0, atol=1e-4)


def foreign(**state) -> dict:
    """A checkpoint with other options or weights than those of its model."""
    args = Namespace(arch="ringformer_base", share_all_embeddings=True)
    return {"args": args, "model": {"encoder.embed_tokens.weight": torch.zeros(9, 512)}, **state}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (foreign(args=None), "has no model options"),
        (foreign(args=None, cfg={"model": {}}), "has no model options"),
        (foreign(args=Namespace(encoder_layers=6)), "name no architecture under arch or _name"),
        (foreign(args=Namespace(arch="nothing")), "--arch nothing: must be a looped architecture"),
        (foreign(args=Namespace(arch="transformer")), "--arch transformer: must be a looped architecture"),
        (foreign(), "--arch ringformer_base: does not fit the weights: Missing key"),
    ],
)
def test_foreign_checkpoints_are_rejected_by_name(state, message):
    with pytest.raises(ValueError, match=message):
        convert.unshare_checkpoint(state)


def test_the_folder_of_the_result_is_made(tmp_path, rejected):
    """Writing would be tried three times, and each wait for a disk that may recover."""
    shipped, out = WEIGHTS / "ringformer_small.pronounce" / "model.pt", tmp_path / "new" / "out.pt"
    convert.main(["unshare", str(shipped), str(out)])
    assert load_safely(out)["args"].arch == "transformer"
    assert "Not a directory" in rejected(convert.main, "unshare", shipped, out / "below" / "out.pt")


@pytest.mark.parametrize(
    ("module", "reason"),
    [("missing", "no such folder"), ("file.py", "No module named"), ("broken", "No module named 'nowhere'")],
)
def test_a_user_dir_that_cannot_be_imported_is_named(module, reason, tmp_path, rejected):
    (tmp_path / "file.py").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("import nowhere\n")
    shipped, user_dir = WEIGHTS / "ringformer_small.pronounce" / "model.pt", tmp_path / module
    said = rejected(convert.main, "unshare", shipped, tmp_path / "out.pt", "--user-dir", user_dir)
    assert f"--user-dir={user_dir}: {reason}" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("unshare {last} {last}", "must not be IN, which is never overwritten"),
        ("unshare {folder}/missing.pt {out}", "missing.pt: no such file"),
        ("hf {last} {out} --dictionary {folder}/no", "/no: no such file or folder"),
        ("share {last} {out} --rank 8", "convert share: error: was removed: train a looped model from scratch"),
    ],
)
def test_wrong_commands_are_rejected_and_write_nothing(trained, tmp_path, rejected, arguments, message):
    last, out = trained.folder / "checkpoint_last.pt", tmp_path / "out.pt"
    before = last.stat().st_mtime_ns
    words = arguments.format(last=last, folder=trained.folder, out=out)
    assert message in rejected(convert.main, *words.split())
    assert not out.exists()
    assert last.stat().st_mtime_ns == before
