"""docs/extending.md: its example is a complete architecture, and it names the files of a forward pass."""

import re
from contextlib import ExitStack
from unittest import mock

import pytest
import torch
from fairseq import models as registries

from fairseq_plugin.build import build_architecture, numbered_dictionary
from recurrence.weights.unshare import unshare
from tests.support import models
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


def test_the_guide_names_the_files_of_a_forward_pass():
    ((arch, count, said),) = re.findall(
        r"^In training, a .*? of `(\w+)` .*? of (\d+) files: (.*?)\.$", GUIDE, re.S | re.M
    )
    model, inputs = models.tiny(arch).float().train(), models.inputs(arch)
    files = files_crossed(lambda: model(*inputs))
    named = re.findall(r"\]\(\.\./([\w/]+\.py)\)", said)
    assert (set(named), int(count)) == (files, len(files))
