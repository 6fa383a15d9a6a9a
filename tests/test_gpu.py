"""What only a CUDA device can show; skipped where there is none."""

import pytest
import torch

from recurrence.block import Shape
from recurrence.papers import cuda_graph
from recurrence.papers.kausik import RecurrentBlock
from tests.support import cases, language, models, stacks, vision

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def on_gpu(arch, *flags, dtype=torch.float32):
    model = models.tiny(arch, *flags).to("cuda", dtype)
    return model, tuple(tensor.cuda() for tensor in stacks.as_type(models.inputs(arch), dtype))


@cases.every_case
def test_models_compute_what_they_do_on_the_processor(case):
    """A loss to which every output counts differently, and its gradients."""
    model = case.build()
    inputs = case.inputs(model)
    expected_loss, expected = case.loss_and_gradients(model, inputs)
    loss, gradients = case.loss_and_gradients(model.cuda(), tuple(tensor.cuda() for tensor in inputs))
    torch.testing.assert_close(loss.cpu(), expected_loss, rtol=0, atol=1e-9)
    torch.testing.assert_close({name: grad.cpu() for name, grad in gradients.items()}, expected, rtol=1e-7, atol=1e-9)


@vision.every_registered_structure
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_image_models_train_under_autocast(structure, dtype):
    model = vision.small(structure).float().cuda().train()
    with torch.autocast("cuda", dtype=dtype):
        found = model(vision.images(model).cuda())
    branches = found if isinstance(found, list) else [found]  # a model of mixed depth gives two
    sum(logits.float().log_softmax(-1)[..., 0].mean() for logits in branches).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


@models.every_model_with_encoder
def test_incremental_decoding_equals_the_full_forward(arch):
    model, inputs = on_gpu(arch, dtype=torch.float64)
    keep, found, expected = models.is_token(inputs[-1]), models.read_in_steps(model, inputs), model(*inputs)[0]
    torch.testing.assert_close(found[keep], expected[keep], rtol=0, atol=1e-9)


@models.every_model_with_encoder
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_trains(arch, dtype):
    model, inputs = on_gpu(arch, "--dropout", "0.1", "--attention-dropout", "0.1", dtype=dtype)
    model.train()(*inputs)[0].float().log_softmax(-1)[..., 0].mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@models.every_language_case
def test_language_models_train_under_autocast(arch, flags):
    model = models.tiny(arch, *flags, "--dropout", "0.1").float().cuda().train()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(language.texts((9, 5, 12)).cuda())[0].float().log_softmax(-1)[..., 0].mean()
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize(("window", "accumulate"), [(1, False), (2, True)])
def test_a_graph_of_all_steps_computes_what_they_do(window, accumulate, monkeypatch):
    """Two layers of one shape, so that one graph runs twice before the backward pass needs its results."""
    torch.manual_seed(0)
    shape = Shape(16, 32, 2, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1)
    layers = torch.nn.Sequential(*(RecurrentBlock(shape, window=window, accumulate=accumulate) for _ in range(2)))
    layers.to("cuda", torch.float64)

    def outcome(x):
        torch.manual_seed(1)
        y = layers(x)
        return [y, *torch.autograd.grad(y.square().sum(), [x, *layers.parameters()])]

    texts = [torch.randn(3, 10, 16, dtype=torch.float64, device="cuda", requires_grad=True) for _ in range(5)]
    cuda_graph._graphs.clear()
    found = [outcome(x) for x in texts]
    assert sum(isinstance(graph, cuda_graph._Graph) for graph in cuda_graph._graphs.values()) == 2
    monkeypatch.setattr(cuda_graph, "_suits", lambda tensors: False)
    torch.testing.assert_close(found, [outcome(x) for x in texts], rtol=0, atol=1e-12)
