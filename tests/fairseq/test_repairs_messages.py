"""The messages of commands: errors, warnings and help."""

import logging
import re
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.data import Dictionary
from omegaconf import OmegaConf

from fairseq_plugin import convert
from fairseq_plugin.models.ringformer import WEIGHTS, RingFormer
from fairseq_plugin.repairs.checkpoints import CheckpointError, load_safely
from fairseq_plugin.repairs.foreign import literal
from fairseq_plugin.repairs.interactive import warn_of_unknown_words
from fairseq_plugin.repairs.messages import one_line
from tests.support import cli

RANK = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "wrap.py", line 1, in _wrap
    fn(i, *args)
fairseq.SomeError: no
ValueError: --lr 0: must be > 0
"""
NO_FIT = Exception("no fit.")
NO_FIT.__context__ = RuntimeError("sizes:\n\t2, 3")
NO_FIT_OF_MANY = Exception("no fit.")
NO_FIT_OF_MANY.__context__ = RuntimeError('Error(s) in loading state_dict for X:\n\tMissing key(s): "a", "b", "c". ')
SHORT = ("--batch-size", "16", "--max-update", "9")
LINES = {
    "loops=0: must be >= 1": ValueError("loops=0: must be >= 1"),
    "[Errno 2] No such file or directory: 'x'": FileNotFoundError(2, "No such file or directory", "x"),
    "KeyError: 'x'": KeyError("x"),
    "x.pt: empty": CheckpointError("x.pt: empty"),
    "AssertionError": AssertionError(),
    "RuntimeError: two lines": RuntimeError("two\n\tlines"),
    "Exception: no fit. (sizes: 2, 3)": NO_FIT,
    'Exception: no fit. (Missing key(s): "a" and 2 more.)': NO_FIT_OF_MANY,
    "--lr 0: must be > 0": torch.multiprocessing.ProcessRaisedException(RANK, 1, 1),
    "x" * 600 + " ...": ValueError("x" * 10_000),
}


@pytest.mark.parametrize(("text", "error"), LINES.items(), ids=[text[:30] for text in LINES])
def test_an_error_is_one_line(text, error):
    assert one_line(error) == text


def test_weights_that_do_not_fit_are_named_with_their_file(tmp_path, rejected):
    """torch lists every key, and names no file."""
    shipped = WEIGHTS / "ringformer_tiny.numbers"
    state = load_safely(shipped / "model.pt")
    renamed = [key for key in state["model"] if key.startswith("decoder.loop.own")]
    for key in renamed:
        state["model"][f"{key}s"] = state["model"].pop(key)
    state["model"]["decoder.output_projection.bias"] = torch.zeros(9)
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="does not fit") as raised:
        RingFormer.from_pretrained(str(tmp_path), data_name_or_path=str(shipped))
    more, old = f"and {len(renamed) - 1} more.", renamed[0]
    assert str(raised.value).startswith(
        f"{tmp_path / 'model.pt'}: does not fit its model: "
        f'Missing key(s) in state_dict: "{old}" {more} Unexpected key(s) in state_dict: "{old}s" {more} '
        "size mismatch for decoder.output_projection.bias: "
    )
    assert one_line(raised.value) == str(raised.value)
    said = rejected(convert.main, "unshare", tmp_path / "model.pt", tmp_path / "out.pt")
    assert f"error: IN={tmp_path / 'model.pt'}: --arch ringformer_tiny: does not fit the weights: Missing key" in said
    assert said.count(".norms.") == 2  # a missing key and an unexpected one


def override(overrides: str, *flags: str, arch: str = "cycle", as_namespace: bool = False) -> dict:
    """The options of a model after a command with these overrides."""
    words = ["data", "--path", "x.pt", "--model-overrides", overrides, *flags]
    args = options.parse_args_and_arch(options.get_generation_parser(), words)
    model = dict(_name=arch, encoder_layers=2)
    saved = {"model": Namespace(arch=arch, encoder_layers=2) if as_namespace else model, "task": {"data": "x"}}
    cfg = OmegaConf.create({}, **({"flags": {"allow_objects": True}} if as_namespace else {}))
    cfg.update(saved)
    checkpoint_utils.overwrite_args_by_name(cfg, {"data": "y", **literal(args.model_overrides)})
    return cfg


@pytest.mark.parametrize("as_namespace", [False] if cli.is_official() else [False, True])  # omegaconf 2.0 holds none
def test_an_override_of_no_option_is_rejected(as_namespace):
    """fairseq ignores it."""
    known = override("{'encoder_layers': 3, 'data': 'z'}", as_namespace=as_namespace)
    assert known.model.encoder_layers == 3
    assert known.task.data == "z"
    for name in ("encoder_layer", "encoder_layers_to_keep", "signal_rank_divisor"):
        with pytest.raises(ValueError, match=f"^--model-overrides: {name}: not an option of cycle$"):
            override(f"{{'{name}': 3, 'encoder_layers': 3}}", as_namespace=as_namespace)
    with pytest.raises(ValueError, match="^--model-overrides: draft_passes: was removed: run fewer passes, as with "):
        override("{'draft_passes': 3}", as_namespace=as_namespace)
    override("{'encoder_layers_to_keep': '0,1'}", arch="transformer", as_namespace=as_namespace)
    override("{'signal_rank_divisor': 3}", "--lm-path", "lm.pt", as_namespace=as_namespace)


@pytest.mark.parametrize(("line", "warns"), [("one two three", False), ("one x", False), ("one x y", True)])
def test_text_that_is_not_segmented_is_warned_of(line, warns, caplog):
    words = Dictionary()
    for word in ("one", "two", "three"):
        words.add_symbol(word)
    with caplog.at_level(logging.WARNING):
        warn_of_unknown_words(line, words.encode_line(line, add_if_not_exist=False), words)
        warn_of_unknown_words("speech.wav", torch.zeros(7, 80), None)
    assert ["of 3 symbols are unknown: segment" in said for said in caplog.messages] == [True] * warns


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "option", "default"),
    [("ringformer_base", "--signal-rank-divisor", 16), ("transformer_iwslt_de_en", "--encoder-ffn-embed-dim", 1024)],
)
def test_help_lists_the_options_of_the_architecture_with_its_defaults(arch, option, default):
    log = cli.run("fairseq-train", *cli.HOST, "--task", "translation", "--arch", arch, "--help")
    assert "--eval-bleu-args" in log
    assert re.search(rf"^  {option} .*(\n {{9,}}.*)*\(default: {default}\)$", log, re.MULTILINE)


@pytest.mark.slow
def test_another_depth_resumes_without_the_optimizers_state(trained, corpus, tmp_path):
    last = trained.folder / "checkpoint_last.pt"
    flags = ("--restore-file", str(last), "--encoder-layers", "3", "--batch-size", "16", "--disable-validation")
    log = cli.train(corpus.data, tmp_path, *flags, fails=True)
    assert f"error: {last}: its optimizer state belongs to other parameters" in log.splitlines()[-1]
    cli.train(corpus.data, tmp_path, *flags, "--reset-optimizer", "--reset-dataloader", "--max-epoch", "1")
