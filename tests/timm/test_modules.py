"""What other tools do to the modules of an image model acts: properties, hooks, dropout, quantisation, offloading."""

import copy

import pytest
import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, fx, nn
from torch.ao.quantization import get_default_qat_qconfig_mapping, get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import fuse_fx, prepare_fx, prepare_qat_fx
from torch.nn.modules.module import register_module_forward_hook

from tests.support import vision
from timm_plugin._layers import ConvStem

WITH_CONVOLUTIONS = ["sret_nano", "deit, SReT's stem", "sret, class token"]


def stem_of(model: nn.Module) -> ConvStem:
    return next(module for module in model.modules() if isinstance(module, ConvStem))


def by_module(stem: ConvStem, x: Tensor) -> Tensor:
    for conv, norm in ((stem.conv1, stem.bn1), (stem.conv2, stem.bn2), (stem.conv3, stem.bn3)):
        x = F.relu(norm(conv(x)))
    return x


def circular(conv: nn.Conv2d) -> None:
    conv.padding_mode = "circular"


def dilated(conv: nn.Conv2d) -> None:
    conv.dilation, conv.padding = (2, 2), (2, 2)


def unbiased(conv: nn.Conv2d) -> None:
    conv.bias = None


@pytest.mark.parametrize("change", [circular, dilated, unbiased])
@pytest.mark.parametrize("kind", ["sret_t", "deit, SReT's stem"])
def test_a_property_of_the_stems_convolutions_acts(kind, change):
    model, x = vision.small_with_images(kind)
    stem = stem_of(model)
    before = stem(x)
    for conv in (stem.conv1, stem.conv2, stem.conv3):
        change(conv)
    assert torch.equal(stem(x), by_module(stem, x))
    assert (stem(x) - before).abs().max() > 0.01
    assert model(x).isfinite().all()


@pytest.mark.parametrize("change", [circular, dilated, unbiased])
def test_a_property_of_the_convolution_between_stages_acts_on_the_class_token(change):
    model, x = vision.small_with_images("sret, class token")
    for stage in model.stages[1:]:
        change(stage.pool)
    found = model(x)
    for stage in model.stages[1:]:
        stage.pool.register_forward_hook(lambda *call: None)  # for which the module is called
    torch.testing.assert_close(found, model(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_the_stem_may_stay_in_float32(dtype):
    model = vision.fresh("sret_t").to(dtype)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()
    x = vision.images(model)
    for mode in (True, False):
        y = stem_of(model.train(mode))(x)
        assert y.dtype == dtype
        assert y.isfinite().all()
    assert torch.equal(stem_of(model)(x), by_module(stem_of(model), x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", WITH_CONVOLUTIONS)
def test_quantisation_of_graphs_prepares_the_stem(kind):
    """torch's observers see the model as it is, and its convolutions fuse with their norms."""
    model = vision.fresh(kind).eval()
    x = vision.images(model)
    expected = model(x)
    prepared = prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping(), example_inputs=(x,))
    fused = fuse_fx(copy.deepcopy(model))
    for other in (prepared, fused):
        torch.testing.assert_close(other(x), expected, rtol=1e-4, atol=1e-5)
        assert not [module for module in other.modules() if isinstance(module, nn.BatchNorm2d)]
    trained = prepare_qat_fx(copy.deepcopy(model).train(), get_default_qat_qconfig_mapping(), example_inputs=(x,))
    trained(x).sum().backward()
    assert all(parameter.grad is not None for parameter in trained.parameters())


@vision.every_case
def test_a_trace_reads_no_tensor_that_it_does_not_use(case):
    nodes = fx.symbolic_trace(vision.small(case)).graph.nodes
    assert not [node for node in nodes if node.op == "get_attr" and not node.users]


@vision.every_case
def test_global_hooks_see_every_layer_and_may_change_its_output(case):
    model = vision.fresh(case).eval()
    x, seen = vision.images(model, 8), set()
    before = model(x)

    def edit(module: nn.Module, inputs: tuple, output: Tensor) -> Tensor | None:
        seen.add(module)
        return 1.5 * output if isinstance(module, nn.Linear | nn.Conv2d) else None

    handle = register_module_forward_hook(edit)
    everywhere = model(x)
    handle.remove()
    layers = {module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d | nn.LayerNorm)}
    assert layers <= seen
    for module in layers:
        module.register_forward_hook(edit)
    assert torch.equal(model(x), everywhere)
    assert (everywhere - before).abs().max() > 0.1


@vision.every_registered_structure
def test_dropout_at_inference_is_that_of_its_modules(structure):
    """Monte Carlo dropout: in evaluation, except for the modules that drop."""
    for rate in vision.rates_of(structure):
        model = vision.small(structure, **{rate: 0.5})
        x = vision.images(model, 4)
        dropping = [module for module in model.modules() if isinstance(module, nn.Dropout | DropPath)]
        for module in dropping:
            module.train()
        torch.manual_seed(0)
        outputs = torch.stack([model(x) for _ in range(4)])
        assert outputs.std(0).max() > 1e-4, rate
        for module in dropping:
            setattr(module, "drop_prob" if isinstance(module, DropPath) else "p", 0.0)
        assert torch.equal(model(x), model.eval()(x)), rate


@vision.every_case
def test_weights_may_be_offloaded(case):
    """Accelerate puts the tensors of a module on the device for its call alone."""
    accelerate = pytest.importorskip("accelerate")
    model, x = vision.small_with_images(case)
    expected = model(x)
    offloaded = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert next(offloaded.parameters()).is_meta
    torch.testing.assert_close(offloaded(x), expected, rtol=0, atol=0)
