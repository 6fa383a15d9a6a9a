"""Published checkpoints: recorded results, and every architecture against a reference written from the equations."""

import pytest
import torch
import torch.nn.functional as F
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor

from fairseq_plugin.published import FIXED, from_published, to_published
from fairseq_plugin.published.language import SYSTEMS as LANGUAGE_SYSTEMS
from fairseq_plugin.published.translation import SYSTEMS as TRANSLATION_SYSTEMS
from recurrence import admin
from tests.support import models, reference

RECORDED = {
    "ringformer_translation_ring": "ringformer",
    "ringformer_translation_ring_learnedpos": "ringformer",
    "ringformer_translation_ring_bias": "ringformer",
    "ringformer_translation_universal": "universal",
    "ringformer_translation_owf": "one_wide_ffn",
    "ringformer_translation_vanilla": "vanilla",
    "takase_vanilla": "takase",
    "takase_sequence": "takase",
    "takase_cycle": "takase",
    "takase_cycle_rev": "takase",
    "takase_admin_profile": "takase",
    "takase_admin_forward": "takase",
}
# Of these, the references below translate.
TRANSLATION = list(RECORDED)
ILR = [f"{position}_map{reuse}" for position in ("rope", "alibi", "learned", "nope") for reuse in ("111", "211", "123")]
ILR += [f"{position}_block2" for position in ("rope", "alibi", "learned", "nope")]
ILR += ["nope_map211_inject", "rope_block3_noinject", "alibi_heads6_map211"]
RECORDED |= {f"ilr_{name}": "ilr" for name in ILR}
RECORDED |= dict.fromkeys(["kausik_rec_1layer", "kausik_rec_2layer", "kausik_regular_2layer"], "kausik")
every_recorded_model = pytest.mark.parametrize("name", RECORDED)
# By what the outputs were recorded in: of the outputs and of the gradients.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
GRADIENTS = {torch.float64: 1e-9, torch.float32: 1e-5}


def recorded(name: str) -> tuple[dict, tuple[Tensor, ...], Tensor]:
    """The file, the inputs of `model`, and which positions count."""
    file = models.golden(name)
    inputs = file["inputs"]
    if name not in TRANSLATION:
        tokens = inputs.get("input_ids", inputs.get("idx"))
        return file, (tokens,), torch.ones_like(tokens, dtype=torch.bool)
    pad = file["meta"]["config"]["pad"]
    source = inputs.get("src", inputs.get("src_tokens"))
    target = inputs.get("trg", inputs.get("prev_output_tokens"))
    return file, (source, source.ne(pad).sum(1), target), target.ne(pad)


def recorded_loss(name: str, file: dict, logits: Tensor) -> Tensor:
    """The loss of which a file has the gradients."""
    if RECORDED[name] == "ilr":
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), file["inputs"]["input_ids"][:, 1:].flatten())
    if RECORDED[name] == "kausik":
        return F.cross_entropy(logits.flatten(0, 1), file["inputs"]["targets"].flatten())
    return logits.pow(2).mean()


def load(name: str, file: dict, **changes: Tensor):
    return from_published(RECORDED[name], {**file["state_dict"], **changes}, file["meta"]["config"])


@every_recorded_model
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_recorded_logits(name, dtype):
    file, inputs, keep = recorded(name)
    expected = file["outputs"]["logits"]
    model = load(name, file)
    assert not model.training
    assert next(model.parameters()).dtype == expected.dtype
    logits, _ = model.to(dtype)(*inputs)
    tolerance = max(TOLERANCE[dtype], TOLERANCE[expected.dtype] if dtype == torch.float64 else 0)
    torch.testing.assert_close(logits[keep].to(expected), expected[keep], rtol=0, atol=tolerance)


@pytest.mark.parametrize("system", ["universal", "owf", "vanilla"])
def test_a_learned_table_of_positions(system):
    """pos_encoding=0: the fixed table's values as a learned one give what the fixed one gives."""
    name = f"ringformer_translation_{system}"
    file, inputs, keep = recorded(name)
    file["meta"]["config"]["pos_encoding"] = 0
    for side in ("encoder", "decoder"):
        file["state_dict"][f"{side}.pos_layer.emb_layer.weight"] = file["state_dict"].pop(f"{side}.pos_layer.pe")[0]
    logits, _ = load(name, file)(*inputs)
    torch.testing.assert_close(logits[keep], file["outputs"]["logits"][keep], rtol=0, atol=1e-9)


@every_recorded_model
def test_recorded_gradients(name):
    file, inputs, _ = recorded(name)
    model = load(name, file)
    loss = recorded_loss(name, file, model(*inputs)[0])
    loss.backward()
    tolerance = GRADIENTS[loss.dtype]
    assert loss.item() == pytest.approx(file["loss"], abs=min(tolerance, 1e-5))
    for parameter in model.parameters():
        parameter.data = parameter.grad
    gradients = to_published(RECORDED[name], model, file["meta"]["config"])
    assert set(file["grads"]) <= set(gradients)
    for key, expected in file["grads"].items():
        torch.testing.assert_close(gradients[key], expected, rtol=0, atol=tolerance, msg=key)


@every_recorded_model
def test_inverse_gives_the_published_weights_back(name):
    file, _, _ = recorded(name)
    back = to_published(RECORDED[name], load(name, file), file["meta"]["config"])
    expected = {key: tensor for key, tensor in file["state_dict"].items() if not FIXED.fullmatch(key)}
    assert back.keys() == expected.keys()
    assert all(torch.equal(back[key], expected[key]) for key in expected)


@every_recorded_model
def test_no_key_is_dropped_or_made_up(name):
    file, _, _ = recorded(name)
    with pytest.raises(ValueError, match="surplus.weight: published key that nothing is mapped to"):
        load(name, file, **{"surplus.weight": torch.zeros(1)})
    key = next(key for key in file["state_dict"] if not FIXED.fullmatch(key))
    del file["state_dict"][key]
    with pytest.raises(ValueError, match=f"{key}: published key is missing"):
        load(name, file)


@pytest.mark.parametrize("name", ["takase_sequence", "takase_cycle", "takase_cycle_rev"])
def test_copies_that_differ_are_refused(name):
    file, _, _ = recorded(name)
    first, *later = [index for index, which in enumerate(file["meta"]["depth_to_unique"]["decoder"]) if which == 1]
    key = f"decoder.layers.{later[0]}.fc1.weight"
    assert torch.equal(file["state_dict"][key], file["state_dict"][f"decoder.layers.{first}.fc1.weight"])
    with pytest.raises(ValueError, match=f"{key}: differs from the tensor that it shares"):
        load(name, file, **{key: file["state_dict"][key] + 1})


def test_vectors_of_admin_need_a_model_that_has_them():
    file = models.golden("takase_admin_forward")
    with pytest.raises(ValueError, match=r"(attention|fc|self|encoder)_ratio_change: published key that nothing"):
        from_published("takase", file["state_dict"], {**file["meta"]["config"], "init_type": "default"})


def test_recorded_profile():
    """From weights before the profile, on the recorded batch; the vectors come back whole."""
    file, inputs, keep = recorded("takase_admin_profile")
    config, before = {**file["meta"]["config"], "init_type": "adaptive-profiling"}, dict(file["state_dict"])
    for key in (key for key in before if key.endswith("_ratio_change")):
        before[key] = torch.ones_like(before[key])
    model = from_published("takase", before, config)
    model.profile(*inputs)
    expected = file["outputs"]["encoder_omega"] + file["outputs"]["decoder_omega"]
    torch.testing.assert_close(admin.read(model.stacks), torch.tensor(expected), rtol=0, atol=2e-6)
    torch.testing.assert_close(model(*inputs)[0][keep], file["outputs"]["logits"][keep], rtol=0, atol=1e-4)
    after = to_published("takase", model, config)
    assert len(after) == len(file["state_dict"]) - 4
    for key, tensor in after.items():
        torch.testing.assert_close(tensor, file["state_dict"][key], rtol=0, atol=2e-6)


def test_a_published_model_is_not_profiled_again():
    file, inputs, _ = recorded("takase_admin_forward")
    model = load("takase_admin_forward", file).train()
    model(*inputs)
    assert admin.read(model.stacks).eq(1).all()


def test_unknown_system_is_refused():
    with pytest.raises(ValueError, match="system='transformer': must be one of"):
        from_published("transformer", {}, {})


# References

SYSTEM_OF = {  # of a family
    "RingFormer": "ringformer",
    "Universal": "universal",
    "OneWideFFN": "one_wide_ffn",
    "Vanilla": "vanilla",
    "ParameterSharing": "takase",
    "RecursiveTransformer": "recursive",
}
UNPUBLISHED = {"recursive"}  # described in a paper, but in no published code


def test_every_architecture_has_a_system():
    assert set(SYSTEM_OF) == {ARCH_MODEL_REGISTRY[arch].__name__ for arch in models.ARCHS}
    assert set(SYSTEM_OF.values()) == {*TRANSLATION_SYSTEMS, *UNPUBLISHED} == set(reference.SYSTEMS)
    assert {*TRANSLATION_SYSTEMS, *LANGUAGE_SYSTEMS} == set(RECORDED.values())


@pytest.mark.parametrize("name", TRANSLATION)
def test_reference_equals_the_recorded_logits(name):
    """What the architectures below are compared with is itself compared with the published code."""
    file, (source, _, target), keep = recorded(name)
    config = file["meta"]["config"]
    heads = config.get("num_head") or config["encoder_attention_heads"]
    depths = [config.get(f"{side[:3]}_num_layers") or config[f"{side}_layers"] for side in models.SIDES]
    tensors = {key: tensor.double() for key, tensor in file["state_dict"].items()}
    logits = reference.SYSTEMS[RECORDED[name]](tensors, source, target, heads, config["pad"], depths)
    expected = file["outputs"]["logits"]
    torch.testing.assert_close(logits[keep].to(expected), expected[keep], rtol=0, atol=TOLERANCE[expected.dtype])


@models.every_translation_model
@pytest.mark.parametrize("left_pad", [False, True])
def test_reference_equality(arch, left_pad):
    system = SYSTEM_OF[ARCH_MODEL_REGISTRY[arch].__name__]
    joint = system in ("takase", "recursive")  # one matrix for all
    symbols = (models.TARGET_SYMBOLS if joint else models.SOURCE_SYMBOLS, models.TARGET_SYMBOLS)
    model = models.tiny(arch, *(["--share-all-embeddings"] if joint else []), on=models.task(*symbols))
    source, lengths, target = models.batch(symbols=symbols, left_pad=left_pad)
    tensors = model.state_dict() if system in UNPUBLISHED else to_published(system, model, dict(bias=0))
    pad = model.decoder.dictionary.pad()
    expected = reference.SYSTEMS[system](tensors, source, target, heads=2, pad=pad, depths=(4, 4))
    keep = target.ne(pad)
    torch.testing.assert_close(model(source, lengths, target)[0][keep], expected[keep], rtol=0, atol=1e-9)
