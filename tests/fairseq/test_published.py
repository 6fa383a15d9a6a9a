"""Published models of texts: profiles and rejections; and a reference of the one that is not published."""

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import nn

from fairseq_plugin.build import build_architecture, numbered_dictionary
from fairseq_plugin.published import SYSTEMS, from_published, to_published
from fairseq_plugin.published.translation import SYSTEMS as TRANSLATION_SYSTEMS
from recurrence.papers import admin
from tests.support import models, reference
from tests.support.golden import golden
from tests.support.recorded import SYSTEM_OF, load, recorded


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("takase_sequence", "decoder.layers.1.fc1.weight"),  # a copy of layer 0, as the two below
        ("takase_cycle", "decoder.layers.2.fc1.weight"),
        ("takase_cycle_rev", "decoder.layers.3.fc1.weight"),
        ("ilr_rope_map211", "lm_head.weight"),
    ],
)
def test_copies_and_tied_matrices_that_differ_are_rejected(name, key):
    file = golden(name)
    with pytest.raises(ValueError, match=f"{key}: differs from the tensor that it shares"):
        load(name, file, **{key: file["state_dict"][key] + 1})


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("takase_admin_forward", dict(init_type="default"), "_ratio_change: published key that nothing is mapped to"),
        ("ilr_rope_map211", dict(rope_theta=500000.0), "rope_theta=500000.0: must be 10000"),
        ("kausik_rec_1layer", dict(bias=True), "bias=True: must be False"),
    ],
)
def test_configurations_that_do_not_fit_are_rejected(name, values, message):
    file = golden(name)
    with pytest.raises(ValueError, match=message):
        from_published(SYSTEM_OF[name], file["state_dict"], {**file["meta"]["config"], **values})


@pytest.mark.parametrize(
    ("name", "ignored"), [("ilr_rope_block2", dict(loop_map=[3, 1, 1])), ("ilr_rope_map211", dict(num_loops=3))]
)
def test_block_recurrence_ignores_a_map_and_a_map_the_number_of_loops(name, ignored):
    file = golden(name)
    found = from_published("ilr", file["state_dict"], {**file["meta"]["config"], **ignored})
    assert [loop.order for loop in models.loops(found)] == [loop.order for loop in models.loops(load(name, file))]


def test_block_recurrence_of_one_loop_runs_each_layer_once():
    """The preset's map for four layers does not replace it."""
    build, _ = SYSTEMS["ilr"]
    config = dict(golden("ilr_rope_map211")["meta"]["config"], num_hidden_layers=4, sequential_looping=True)
    orders = [build(dict(config, num_loops=loops)).decoder.stack.loop.order for loops in (1, 2)]
    assert orders == [(0, 1, 2, 3), (0, 1, 2, 3) * 2]


def test_relative_positions_that_the_published_code_lacks_are_rejected():
    message = r"^decoder.stack.loop.blocks.0.self_attn.relative.content_bias: .* has no such parameter \(9 in all\)$"
    with pytest.raises(ValueError, match=message):
        to_published("ilr", models.tiny("ilr_small", "--position", "relative"), {})


def test_signals_that_the_published_code_needs_are_named():
    message = r"^decoder.loop.own.0.qkv_signal.down: the published code of ringformer needs it \(\d+ in all\)$"
    with pytest.raises(ValueError, match=message):
        to_published("ringformer", models.tiny("ringformer_tiny", "--attention-signal", "none"), {"bias": False})


@pytest.mark.parametrize("name", ["takase_sequence", "takase_cycle", "takase_cycle_rev"])
def test_biases_that_the_published_code_copies_load_as_a_layer_for_each_pass(name):
    file, inputs, keep = recorded(name)
    copied = {
        f"decoder.layers.{depth}.encoder_attn.in_proj_bias": file["state_dict"][
            f"decoder.layers.{depth}.self_attn.in_proj_bias"
        ]
        for depth, which in enumerate(file["meta"]["depth_to_unique"]["decoder"])
        if which in file["meta"]["depth_to_unique"]["decoder"][:depth]
    }
    with pytest.raises(ValueError, match="is that of self-attention, .* with share_params_cross_layer=False"):
        load(name, file, **copied)
    apart = {**file["meta"]["config"], "share_params_cross_layer": False}
    found = from_published("takase", {**file["state_dict"], **copied}, apart)(*inputs)[0]
    expected = file["outputs"]["logits_as_published"]
    torch.testing.assert_close(found[keep], expected[keep], rtol=0, atol=1e-4)
    assert (expected - file["outputs"]["logits"])[keep].abs().max() > 1e-2


def test_recorded_profile():
    """From the weights before profiling, on the recorded batch; `to_published` returns complete vectors.

    The batch has padding on either side, which the statistics include, and no dropout.
    """
    file, inputs, keep = recorded("takase_admin_profile")
    config, before = {**file["meta"]["config"], "init_type": "adaptive-profiling"}, dict(file["state_dict"])
    for key in (key for key in before if key.endswith("_ratio_change")):
        before[key] = torch.ones_like(before[key])
    model = from_published("takase", before, config).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model(*inputs)
    assert model.decoder.training
    expected = file["outputs"]["encoder_omega"] + file["outputs"]["decoder_omega"]
    torch.testing.assert_close(admin.read(models.loops(model)), torch.tensor(expected), rtol=0, atol=2e-6)
    torch.testing.assert_close(model(*inputs)[0][keep], file["outputs"]["logits"][keep], rtol=0, atol=1e-4)
    after = to_published("takase", model, config)
    assert len(after) == len(file["state_dict"]) - 4
    for key, tensor in after.items():
        torch.testing.assert_close(tensor, file["state_dict"][key], rtol=0, atol=2e-6)


def test_a_published_model_is_not_profiled_again():
    file, inputs, _ = recorded("takase_admin_forward")
    model = load("takase_admin_forward", file).train()
    model(*inputs)
    assert admin.read(models.loops(model)).eq(1).all()


def test_one_layer_for_all_passes_of_stacks_of_different_depth():
    """share_layer_num=-1, the published code's "all"."""
    config = {**golden("takase_sequence")["meta"]["config"], "encoder_layers": 4, "decoder_layers": 2}
    config |= {"share_params_cross_layer": True, "share_layer_num": -1}
    sizes = {
        f"{side}_{name}": config[f"encoder_{name}"]
        for side in models.SIDES
        for name in ("embed_dim", "ffn_embed_dim", "attention_heads")
    }
    unique = dict(encoder_layers=4, decoder_layers=2, encoder_unique_layers=1, decoder_unique_layers=1)
    joint = numbered_dictionary(config["vocab"])
    model = build_architecture("sequence", joint, joint, **sizes, **unique, share_all_embeddings=True)
    again = from_published("takase", to_published("takase", model, config), config)
    assert [(len(loop.blocks), loop.passes) for loop in models.loops(again)] == [(1, 4), (1, 2)]


SYSTEM_OF_FAMILY = {
    "RingFormer": "ringformer",
    "Universal": "universal",
    "OneWideFFN": "one_wide_ffn",
    "Vanilla": "vanilla",
    "ParameterSharing": "takase",
    "RecursiveTransformer": None,  # described in a paper, but in no published code
}


def test_every_architecture_has_a_system_or_a_reference():
    assert set(SYSTEM_OF_FAMILY) == {ARCH_MODEL_REGISTRY[arch].__name__ for arch in models.ARCHS}
    assert set(SYSTEM_OF_FAMILY.values()) - {None} == set(TRANSLATION_SYSTEMS)


@pytest.mark.parametrize("unpublished", [arch for arch in models.ARCHS if arch.startswith("recursive")])
@pytest.mark.parametrize("left_pad", [False, True])
def test_reference_of_what_is_not_published(unpublished, left_pad):
    symbols = (models.TARGET_SYMBOLS, models.TARGET_SYMBOLS)
    model = models.tiny(unpublished, "--share-all-embeddings", on=models.task(*symbols))
    source, lengths, target = models.batch(symbols=symbols, left_pad=left_pad)
    pad = model.decoder.dictionary.pad()
    expected = reference.logits(model.state_dict(), source, target, heads=2, pad=pad, depth=4)
    keep = target.ne(pad)
    torch.testing.assert_close(model(source, lengths, target)[0][keep], expected[keep], rtol=0, atol=1e-9)
