"""Repairs of fairseq: clipping gradients on a CPU, scaling the loss with ``--amp``, and the adaptive loss."""

from argparse import Namespace

import pytest
import torch
from fairseq import utils
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from torch import nn

from fairseq_repairs import gradients
from tests.support import upstream


@pytest.mark.parametrize("max_norm", [0.0, 0.5, 100.0])
def test_clipping_on_the_cpu_equals_fairseqs_bit_for_bit(max_norm):
    found = []
    for clip in (utils.clip_grad_norm_.__wrapped__, utils.clip_grad_norm_):
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(size)) for size in (3, 70, 500)]
        for param in params[:2]:
            param.grad = torch.randn_like(param)
        norm = clip(params, max_norm, lambda norm: 2 * norm)
        found.append([norm, *(param.grad for param in params[:2])])
    for theirs, ours in zip(*found):
        assert torch.equal(theirs, ours)


@pytest.mark.parametrize(("sharded", "base_layers", "run"), [(False, 0, 1), (True, 0, 2), (False, 1, 2)])
def test_ranks_that_exchange_tensors_in_the_forward_run_an_empty_batch(sharded, base_layers, run):
    trainer = Namespace(is_fsdp=sharded, cfg=Namespace(model=Namespace(base_layers=base_layers)))
    found = gradients.count_batches_before_an_empty_one(lambda _, samples: len(samples), trainer, [{"id": 1}, {}])
    assert found == run


@pytest.fixture
def param() -> nn.Parameter:
    return nn.Parameter(torch.ones(4))


@pytest.fixture
def scaled(param, monkeypatch):
    """fairseq's optimizer with ``--amp``, its scaler on the CPU; fairseq only uses it on a GPU."""
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", lambda **settings: torch.amp.GradScaler("cpu", **settings))

    def build(*flags: str) -> AMPOptimizer:
        args = upstream.arguments("transformer", "--amp", "--optimizer", "adam", "--lr", "1e-3", *flags)
        return AMPOptimizer.build_optimizer(convert_namespace_to_omegaconf(args), [param])

    return build


@pytest.mark.parametrize("scale", [1, 128, 2**16, 2**24])
def test_an_update_does_not_depend_on_the_scale(scale, param, scaled):
    optimizer = scaled("--fp16-init-scale", str(scale))
    assert optimizer.scaler.get_scale() == scale
    optimizer.backward((param * 1e-4).sum())
    assert optimizer.clip_grad_norm(1.0).item() == pytest.approx(2e-4)
    optimizer.step()
    # Adam moves by the rate, but for its epsilon; unscaled twice, by 0.7 of it with a scale of 128.
    torch.testing.assert_close(1 - param.detach(), torch.full((4,), 1e-3), rtol=0.01, atol=0)


def test_gradients_that_overflow_are_skipped_and_the_scale_falls(param, scaled):
    optimizer = scaled()
    optimizer.backward((param * float("inf")).sum())
    optimizer.clip_grad_norm(1.0)
    optimizer.step()
    assert torch.equal(param.detach(), torch.ones(4))
    assert optimizer.scaler.get_scale() == 64


def test_the_scale_grows_after_the_window(scaled):
    assert scaled("--amp-scale-window", "7").scaler.get_growth_interval() == 7


def test_a_resumed_run_has_the_scale_of_the_checkpoint_and_the_window_of_its_command(param, scaled):
    def update(optimizer: AMPOptimizer) -> None:
        optimizer.zero_grad()
        optimizer.backward(param.sum())
        optimizer.clip_grad_norm(0.0)
        optimizer.step()

    saved, resumed = scaled("--amp-scale-window", "4"), scaled("--amp-scale-window", "2")
    for _ in range(7):
        update(saved)
    state = saved.state_dict()
    resumed.load_state_dict({key: state[key] for key in ("state", "param_groups")})  # as fairseq stores them
    assert resumed.scaler.get_scale() == 128
    resumed.load_state_dict(state)
    assert (resumed.scaler.get_scale(), resumed.scaler.get_growth_interval()) == (256, 2)
    update(resumed)
    assert resumed.scaler.get_scale() == 512


def adaptive_loss(target: torch.Tensor) -> tuple:
    """A criterion and a model whose bands begin at symbols 8 and 14, and a sample of these targets."""
    words = upstream.dictionary(19)
    model = upstream.built("transformer_lm", words, "--adaptive-softmax-cutoff", "8,14")
    criterion = AdaptiveLoss(LanguageModelingTask(LanguageModelingConfig(), words), sentence_avg=False)
    return criterion, model, {"net_input": {"src_tokens": target.roll(1)}, "target": target}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_adaptive_loss_is_summed_in_float32(dtype):
    criterion, model, sample = adaptive_loss(torch.arange(2, 19).repeat(3000, 1))
    exact = criterion(model.double(), sample)[0].item()
    loss, *_ = criterion(model.to(dtype), sample)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=1e-3)
    assert exact > torch.finfo(torch.float16).max
    loss.backward()
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {dtype}


def test_the_adaptive_loss_is_that_of_the_probabilities():
    """Of all symbols but the padding, 1: bands begin at 8 and 14, so that 9 and 15 are number 1 there."""
    target = torch.tensor([[*range(2, 19), 1]])
    criterion, model, sample = adaptive_loss(target)
    loss, size, _ = criterion(model, sample)
    scores = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)
    torch.testing.assert_close(loss[0], -scores[0, :-1].gather(1, target[0, :-1, None]).sum())
    assert size == target.numel() - 1
