"""fairseq's commands with this plugin's models: overrides, errors and help."""

import re
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils, options
from omegaconf import OmegaConf

from fairseq_plugin import convert
from fairseq_plugin.compare import TextComparison
from fairseq_plugin.models.ringformer import WEIGHTS
from fairseq_repairs.checkpoints import load_safely
from fairseq_repairs.foreign import literal
from tests.support import cli, upstream


@pytest.mark.slow
def test_the_package_prints_only_its_folder():
    command = [sys.executable, "-m", "fairseq_plugin"]
    done = subprocess.run(command, cwd=cli.REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    assert done.stdout.decode() == f"{cli.PLUGIN}\n"


def override(overrides: str, *flags: str, arch: str = "cycle", as_namespace: bool = False) -> dict:
    """The options of a model after a command with these overrides."""
    words = ["data", "--path", "x.pt", "--model-overrides", overrides, *flags]
    args = options.parse_args_and_arch(options.get_generation_parser(), words)
    model = dict(_name=arch, encoder_layers=2)
    saved = {
        "generation": {"beam": 5},
        "model": Namespace(arch=arch, encoder_layers=2) if as_namespace else model,
        "task": {"data": "x"},
    }
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
    with pytest.raises(ValueError, match="^--model-overrides: beam: has no effect there: must be an option"):
        override("{'beam': 3}", as_namespace=as_namespace)
    with pytest.raises(ValueError, match="^--model-overrides: draft_passes: was removed: run fewer passes, as with "):
        override("{'draft_passes': 3}", as_namespace=as_namespace)
    override("{'encoder_layers_to_keep': '0,1'}", arch="transformer", as_namespace=as_namespace)
    override("{'signal_rank_divisor': 3}", "--lm-path", "lm.pt", as_namespace=as_namespace)


def test_weights_that_do_not_fit_are_named_with_their_file(tmp_path, rejected):
    """As by fairseq's commands, see tests/repairs."""
    state = load_safely(WEIGHTS / "ringformer_small.pronounce" / "model.pt")
    for key in [key for key in state["model"] if key.startswith("decoder.loop.own")]:
        state["model"][f"{key}s"] = state["model"].pop(key)
    torch.save(state, tmp_path / "model.pt")
    said = rejected(convert.main, "unshare", tmp_path / "model.pt", tmp_path / "out.pt")
    assert f"error: IN={tmp_path / 'model.pt'}: --arch ringformer_small: does not fit the weights: Missing key" in said
    assert said.count(".norms.") == 2  # a missing key and an unexpected one


def test_a_comparison_knows_a_training_that_has_diverged(tmp_path):
    data = upstream.write_text(tmp_path)
    with pytest.raises(FloatingPointError) as raised:
        upstream.run_training("transformer", data, tmp_path, "--lr=1e35", "--batch-size=4", "--max-epoch=9")
    assert TextComparison.diverged.search(str(raised.value))


@pytest.mark.slow
def test_help_lists_the_options_of_the_architecture_with_its_defaults():
    log = cli.run("fairseq-train", *cli.HOST, "--task", "translation", "--arch", "ringformer_base", "--help")
    assert "--eval-bleu-args" in log
    assert re.search(r"^  --signal-rank-divisor .*(\n {9,}.*)*\(default: 16\)$", log, re.MULTILINE)


@pytest.mark.slow
def test_another_depth_resumes_without_the_optimizers_state(trained, corpus, tmp_path):
    last = trained.folder / "checkpoint_last.pt"
    flags = ("--restore-file", str(last), "--encoder-layers", "3", "--batch-size", "16", "--disable-validation")
    log = cli.train(corpus.data, tmp_path, *flags, fails=True)
    assert f"error: {last}: its optimizer state belongs to other parameters" in log.splitlines()[-1]
    cli.train(corpus.data, tmp_path, *flags, "--reset-optimizer", "--reset-dataloader", "--max-epoch", "1")
