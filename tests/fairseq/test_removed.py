"""Options of earlier versions: whoever gives one is told what to use instead; checkpoints that name them load."""

import re
from argparse import Namespace

import pytest
import torch
from fairseq import models as fairseq_models
from fairseq import options as fairseq_options
from omegaconf import OmegaConf

from fairseq_plugin.build import build_architecture, numbered_dictionary
from fairseq_plugin.models.ringformer import RingFormer
from fairseq_plugin.options import GAVE_WEIGHTS, MOVED, REMOVED
from tests.support import models
from tests.support.flags import parser

ARCH = "vanilla_base"  # without elastic depth
# What checkpoints may say.
STEERED = (
    dict(depth_range="1-4", depth_apart=True, depth_warmup_updates=9, mixed_depth=True, exit_threshold=0.3),
    dict(loop_after_updates=500, draft_passes=2, draft_tokens=4, eight_bits=True),
    dict(pass_loss=0.5),
)
every_option = pytest.mark.parametrize("name", sorted(REMOVED | MOVED))


def said(name: str) -> str:
    return re.escape(f"{name}=4: was removed: {(REMOVED | MOVED)[name]}")


def tiny_options(arch: str = ARCH) -> dict:
    """The options of a tiny model, as a checkpoint stores them."""
    return vars(models.options(arch, *models.tiny_flags(arch)))


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_on_a_command_line(name, capsys):
    flag = f"--{name.replace('_', '-')}"
    words = ["data", "--task", "translation", "--arch", ARCH, flag, "4"]
    with pytest.raises(SystemExit, match="^2$"):
        fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), words)
    assert re.fullmatch(rf"\S+: error: {flag}=4: was removed: {re.escape(REMOVED[name])}\n", capsys.readouterr().err)
    assert flag not in parser(ARCH).format_help()


def configured(arch: str = ARCH, from_checkpoint: bool = False, **values) -> torch.nn.Module:
    """A model of these options, as fairseq-hydra-train builds it, or a command that reads its checkpoint."""
    cfg = OmegaConf.create({**tiny_options(arch), **values})
    return fairseq_models.build_model(cfg, models.task(), from_checkpoint)


@every_option
def test_in_the_configuration_of_a_new_model(name):
    with pytest.raises(ValueError, match=f"^{said(name)}$"):
        configured(**{name: 4})
    configured(**{name: None})


@pytest.mark.parametrize("steered", STEERED)
def test_a_checkpoint_may_name_options_that_steered_its_training_or_decoding(steered):
    args = Namespace(**{**tiny_options("universal"), **steered})
    for model in (configured("universal", True, **steered), models.task().build_model(args)):
        assert models.shapes(model) == models.shapes(models.tiny("universal"))


def test_every_option_that_steered_is_tried():
    assert {name for steered in STEERED for name in steered} == (REMOVED | MOVED).keys() - GAVE_WEIGHTS


@pytest.mark.parametrize("name", GAVE_WEIGHTS)
def test_a_checkpoint_of_weights_that_are_no_more_is_rejected(name):
    with pytest.raises(ValueError, match=f"^{said(name)}$"):
        configured(from_checkpoint=True, **{name: 4})
    with pytest.raises(ValueError, match=f"^{said(name)}$"):
        models.task().build_model(Namespace(**tiny_options(), **{name: 4}))


@every_option
def test_in_python(name):
    words = numbered_dictionary(9)
    with pytest.raises(ValueError, match=f"^{said(name)}$"):
        build_architecture(ARCH, words, words, **{name: 4})


@pytest.mark.parametrize("name", sorted(REMOVED.keys() - RingFormer.options.known()))
def test_among_the_arguments_of_from_pretrained(name):
    """Even if the checkpoint names it, as the one in the package does."""
    with pytest.raises(ValueError, match=f"^{name}: was removed: {re.escape(REMOVED[name])}$"):
        RingFormer.from_pretrained("ringformer_small.pronounce", **{name: 4})
