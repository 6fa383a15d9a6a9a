"""Into averages and graphs: fx, TorchScript, torch.export, torch.compile."""

import copy
import io

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torchvision.models import feature_extraction

from tests.support import vision
from tests.support.vision import every_case, every_registered_structure, timm


@every_case
@pytest.mark.parametrize("kind", ["ModelEma", "ModelEmaV2"])
def test_averages_of_whole_state_dicts_round_no_order(case, kind):
    """At their usual decay, an average of two equal whole numbers would be the next smaller one."""
    model, x = vision.small_with_images(case)
    average = getattr(timm.utils, kind)(copy.deepcopy(model))
    average.update(model)
    restored = vision.small(case, seed=1)
    restored.load_state_dict(getattr(average, "ema" if kind == "ModelEma" else "module").state_dict())
    torch.testing.assert_close(restored(x), model(x), rtol=0, atol=1e-9)


@every_case
def test_fx_extracts_features(case):
    model, x = vision.small_with_images(case)
    pooled, logits = model.forward_head(model.forward_features(x), pre_logits=True), model(x)
    extractor = feature_extraction.create_feature_extractor(model, return_nodes=["head_drop", "head"])
    outputs = extractor(x)
    torch.testing.assert_close(outputs["head_drop"], pooled, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(outputs["head"], logits, rtol=1e-9, atol=1e-12)
    assert extractor.train()(x)["head"].shape == logits.shape


@every_registered_structure
def test_fx_traces_training_with_every_rate(structure):
    model = vision.fresh(structure, **dict.fromkeys(vision.rates_of(structure), 0.3), mixed_depth=False)
    extractor = feature_extraction.create_feature_extractor(model.train(), return_nodes=["head"])
    x = vision.images(model)
    assert not torch.equal(extractor(x)["head"], extractor(x)["head"])


@every_registered_structure
def test_torchscript_is_of_inference(structure):
    model = vision.small(structure, drop_path_rate=0.5, proj_drop_rate=0.3)
    file, script = io.BytesIO(), torch.jit.script(model)
    kept = {name for name in model.state_dict() if not name.endswith("noted")}  # a graph needs no order
    assert script.state_dict().keys() == kept
    torch.jit.save(script, file)
    file.seek(0)
    x = vision.images(model)
    torch.testing.assert_close(torch.jit.load(file)(x), model(x), rtol=1e-9, atol=1e-12)
    with pytest.raises(RuntimeError, match=r"call eval\(\) first"):
        torch.jit.script(model.train())


@every_registered_structure
def test_torch_export_for_any_batch(structure):
    """Wide enough for the operators of oneDNN; the export to ONNX is tested with narrow models."""
    model = vision.fresh(structure, embed_dim=128).eval()
    images = vision.images(model, 9)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (images[:2],), dynamic_shapes=({0: batch},))
    assert program.state_dict.keys() == model.state_dict().keys()
    with torch.no_grad():
        for count in (1, 5, 9):
            found = program.module()(images[:count])
            torch.testing.assert_close(found, model(images[:count]), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@every_registered_structure
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_compiles_into_one_graph(structure, training):
    rates = dict(drop_path_rate=0.2, drop_rate=0.1)
    model = vision.small(structure, **rates).train(training)
    x = vision.images(model)
    counter = CompileCounterWithBackend("eager")
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(model), backend=counter, fullgraph=True)
    outputs = []
    for function in (compiled, model):
        torch.manual_seed(0)
        outputs.append(function(x))
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-12)
    compiled(x)
    assert counter.frame_count == 1


# The compiler's own kernels take it long: two passes of a block, in one stage where there are stages. It draws random
# numbers of its own, so nothing is permuted.
COMPILED = {"ringformer_vit": dict(depth=2), "sret_t": dict(depths=(1,), num_heads=(2,), groups=((8, 1),))}


@pytest.mark.slow
@pytest.mark.parametrize("variant", COMPILED)
def test_compiled_training_step(variant):
    """By the compiler itself, with its kernels and its backward pass."""
    model = vision.small(variant, **COMPILED[variant]).float().train()
    x = vision.images(model)
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True)
    expected = vision.loss_and_gradients(model, x)
    loss, gradients = vision.loss_and_gradients(compiled, x)
    torch.testing.assert_close(loss, expected[0])
    gradients = {name.removeprefix("_orig_mod."): gradient for name, gradient in gradients.items()}
    torch.testing.assert_close(gradients, expected[1], rtol=1e-3, atol=1e-5)
