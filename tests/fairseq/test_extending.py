"""docs/extending.md: its example is a complete architecture, and it names the files of a forward pass."""

import re
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from unittest import mock
from unittest.mock import Mock

import pytest
import torch
from fairseq import models as registries

from fairseq_plugin import convert
from fairseq_plugin.build import build_architecture, build_language_model, numbered_dictionary
from fairseq_plugin.controls import TextControls
from recurrence.weights.unshare import unshare
from tests.support import cli, models
from tests.support.flags import options, parser
from tests.support.guide import GUIDE, files_crossed, imported_example

FILES = {"recurrence.papers.scaled": "class ScaledBlock", "fairseq_plugin.models.scaled": "class ScaledTransformer"}
REGISTRIES = [value for name, value in vars(registries).items() if name.endswith("_REGISTRY")]


@pytest.fixture(scope="module")
def build():
    """The guide's files; the architecture is registered for this file only."""
    with ExitStack() as stack:
        for registry in REGISTRIES:
            stack.enter_context(mock.patch.dict(registry))
        stack.enter_context(imported_example(FILES))
        yield scaled


def scaled(**options) -> torch.nn.Module:
    torch.manual_seed(0)
    words = numbered_dictionary(models.TARGET_SYMBOLS)
    sizes = dict(encoder_embed_dim=16, encoder_ffn_embed_dim=24, encoder_attention_heads=2, decoder_attention_heads=2)
    return build_architecture("scaled_base", words, words, **{**sizes, "encoder_layers": 3, **options}).eval()


@torch.no_grad()
def test_the_example_translates_step_by_step_and_at_another_depth(build):
    model, inputs = build(), [tensor % models.TARGET_SYMBOLS for tensor in models.inputs("ringformer_base")]
    whole, _ = model(*inputs)
    torch.testing.assert_close(models.read_in_steps(model, inputs), whole)
    deeper = build(encoder_layers=5)
    deeper.load_state_dict(model.state_dict())
    assert torch.equal(deeper.encoder.loop.own[4].scales[0], model.encoder.loop.own[2].scales[0])
    deeper.encoder.loop.blocks[0].foldable = True
    with pytest.raises(ValueError, match=r"^scales\.0 of a pass: an upstream layer has no such parameter"):
        unshare(deeper.encoder.loop)
    assert build(first_scale=0.5).decoder.loop.own[1].scales[2].eq(0.5).all()
    with pytest.raises(ValueError, match=r"^--first-scale=-1.0: must be > 0"):
        build(first_scale=-1.0)


@torch.no_grad()
def test_the_control_of_the_example_computes_the_same_but_for_the_scales(build):
    words = numbered_dictionary(models.TARGET_SYMBOLS)

    def built(arch: str, *flags: str) -> torch.nn.Module:
        torch.manual_seed(0)
        return build_architecture(arch, words, words, **vars(parser(arch).parse_args(flags))).eval()

    flags = [f"--{side}-{name}" for side in models.SIDES for name in ("embed-dim=16", "ffn-embed-dim=16", "layers=1")]
    looped = built("scaled_base", *flags)
    args = Namespace(**vars(options("scaled_base", *flags)), arch="scaled_base")
    once = built(*TextControls(args, ["--arch", "scaled_base", *flags], looped, Mock()).flags(["once"])["once"][1:])
    once.load_state_dict({key: tensor for key, tensor in looped.state_dict().items() if ".scales." not in key})
    inputs = [tensor % models.TARGET_SYMBOLS for tensor in models.inputs("ringformer_base")]
    torch.testing.assert_close(once(*inputs)[0], looped(*inputs)[0])


def test_the_guide_names_the_files_of_a_forward_pass():
    ((arch, count, said),) = re.findall(
        r"^In training, a .*? of `(\w+)` .*? of (\d+) files: (.*?)\.$", GUIDE, re.S | re.M
    )
    model, inputs = models.tiny(arch).float().train(), models.inputs(arch)
    files = files_crossed(lambda: model(*inputs))
    named = re.findall(r"\]\(\.\./([\w/]+\.py)\)", said)
    assert (set(named), int(count)) == (files, len(files))


OWN = """
import fairseq_plugin
from fairseq.models import register_model_architecture


@register_model_architecture("ringformer", "my_ring")
@register_model_architecture("shared_language_model", "my_lm")
@register_model_architecture("recurrent_speech_to_text", "my_speech")
def small(args):
    for name in ("encoder_layers", "decoder_layers"):
        setattr(args, name, getattr(args, name, None) or 2)
"""


@pytest.fixture
def own(tmp_path) -> Path:
    """A user's folder with architectures of this package's families."""
    (folder := tmp_path / "my_models").mkdir()
    (folder / "__init__.py").write_text(OWN)
    return folder


@pytest.mark.slow
def test_an_architecture_of_a_user_trains_and_is_exported(own, corpus, tmp_path, rejected):
    flags = ("--user-dir", own, "--arch", "my_ring", "--batch-size", "16", "--max-update", "1")
    log = cli.train(corpus.data, tmp_path / "run", *flags, env={"PYTHONPATH": str(cli.REPOSITORY)})
    assert len(cli.logged(log)) == 1
    pytest.importorskip("onnxscript")
    checkpoint, served = tmp_path / "run" / "checkpoint_last.pt", tmp_path / "served"
    assert "must be a looped architecture, of this plugin or of --user-dir" in rejected(
        convert.main, "onnx", checkpoint, served
    )
    cli.python("-m", "fairseq_plugin.convert", "onnx", checkpoint, served, "--user-dir", own)
    assert served.joinpath("decoder.onnx").is_file()


def test_architectures_of_a_user_have_the_defaults_of_their_family(own):
    words, small = numbered_dictionary(9), dict(decoder_embed_dim=16, decoder_ffn_embed_dim=16)
    with ExitStack() as stack:
        for registry in REGISTRIES:
            stack.enter_context(mock.patch.dict(registry))
        exec(OWN, {})
        features = dict(input_feat_per_channel=8, input_channels=1, conv_channels=8)
        both = dict(small, encoder_embed_dim=16, encoder_ffn_embed_dim=16)
        assert build_architecture("my_speech", None, words, **both, **features).encoder.loop.order == (0, 1)
        assert build_language_model(
            "my_lm", words, adaptive_input_cutoff="none", adaptive_softmax_cutoff="none", **small
        ).decoder.stack.loop.order == (0, 1)
