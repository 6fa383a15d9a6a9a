"""Invariants of every model registered with fairseq or timm."""

import copy
import re
import weakref

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recurrence import count
from recurrence.loop import named_loops
from tests.support import cases, models, stacks, vision
from tests.support.cases import Case, every_case, every_case_without_injection, every_stored_case

EXACT = dict(rtol=1e-10, atol=1e-10)
# Biases without a gradient, because the norm that follows subtracts the mean.
WITHOUT_EFFECT = re.compile(r"\.(conv\d|mixing\.down)\.bias$")


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The stored tensors of a model, without the empty version marks of fairseq's adaptive modules."""
    marks = ("_float_tensor", "adaptive_softmax.version")
    return {key: tensor for key, tensor in model.state_dict().items() if not key.endswith(marks)}


def test_every_registered_model_goes_through_every_invariant():
    expected = {*models.EVERY, *vision.MODELS}
    tests = {name: test for name, test in globals().items() if name.startswith("test_") and hasattr(test, "pytestmark")}
    assert len(tests) > 8
    for name, test in tests.items():
        (cases,) = (mark.args[1] for mark in test.pytestmark if mark.args[0] == "case")
        assert set().union(*(case.represented for case in cases)) == expected, name


# Training


@every_case
def test_loss_and_gradients_are_finite_with_nan_in_uninitialised_memory(case: Case):
    with stacks.poisoned_memory():
        assert torch.empty(3).isnan().all()
        model = case.build().train()
        for inputs in case.batches(model):
            loss, gradients = case.loss_and_gradients(model, inputs)
            assert loss.isfinite()
            assert all(gradient.isfinite().all() for gradient in gradients.values())


@every_case
def test_gradients_reach_every_parameter(case: Case):
    model = case.build(rate=0.0).train()
    _, gradients = case.loss_and_gradients(model, case.inputs(model))
    assert gradients.keys() == dict(model.named_parameters()).keys()
    without = {name for name, gradient in gradients.items() if not gradient.abs().max() > 1e-9}
    assert all(map(WITHOUT_EFFECT.search, without))


@every_case
def test_autocast_keeps_the_direction_of_the_gradient(case: Case):
    model = case.build(rate=0.0).train()
    inputs = case.inputs(model)
    _, exact = case.loss_and_gradients(model, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, found = case.loss_and_gradients(model.float(), stacks.as_type(inputs, torch.float32))
    exact, found = (torch.cat([part[name].double().flatten() for name in exact]) for part in (exact, found))
    assert torch.cosine_similarity(exact, found, dim=0) > 0.95  # not for what is not a number


@every_case_without_injection
def test_tied_gradient_is_the_sum_of_the_untied(case: Case):
    tied = case.build()
    untied, inputs = stacks.untied(tied), case.inputs(tied)
    loss, gradients = case.loss_and_gradients(tied, inputs)
    loss_apart, apart = case.loss_and_gradients(untied, inputs)
    torch.testing.assert_close(loss, loss_apart, **EXACT)
    torch.testing.assert_close(gradients, stacks.summed_by_block(apart, tied), **EXACT)
    assert count.unshared(tied) == count.stored(untied)


@every_case
def test_activation_checkpointing_saves_memory_and_changes_nothing_else(case: Case):
    """Loss and gradients are equal bit for bit, with dropout."""
    found, kept = {}, {}
    for checkpointing in (False, True):
        model = case.build(rate=0.2, checkpointing=checkpointing).train()
        inputs = case.inputs(model)
        kept[checkpointing] = stacks.kept_for_backward(model, case.output, model, *inputs)
        model = case.build(rate=0.2, checkpointing=checkpointing).train()  # with fresh batch statistics
        found[checkpointing] = case.loss_and_gradients(model, inputs)
    torch.testing.assert_close(found[True], found[False], rtol=0, atol=0)
    assert kept[True] < 0.6 * kept[False]


@every_case
def test_the_same_seed_repeats_a_training_step(case: Case):
    model = case.build(rate=0.1).train()
    first, again, other = (case.loss_and_gradients(model, case.inputs(model), seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@every_case
def test_inference_is_deterministic_and_changes_no_state(case: Case):
    """Neither the state dict nor a later training step depends on it."""
    model, used = case.build(), case.build(rate=0.5)
    inputs, before = case.inputs(model), {key: tensor.clone() for key, tensor in used.state_dict().items()}
    with torch.inference_mode():
        assert torch.equal(case.output(used, *inputs), case.output(used, *inputs))
    assert all(torch.equal(tensor, before[key]) for key, tensor in used.state_dict().items())
    found, expected = (case.loss_and_gradients(one, inputs) for one in (used, model))
    torch.testing.assert_close(found, expected, **EXACT)


@every_case
@torch.no_grad()
def test_inference_keeps_no_state_of_earlier_passes(case: Case):
    """When a pass begins, only its input is alive of all that ran, and the inputs that `inject` adds again."""
    model, ran = case.build(), []
    for loop in named_loops(model).values():
        outputs: list[weakref.ref] = []
        most = 1 + len(loop.inject)

        def begin(block, inputs, outputs=outputs, most=most):
            assert sum(output() is not None for output in outputs) <= most

        for block in loop.blocks:
            block.register_forward_pre_hook(begin)
            block.register_forward_hook(lambda block, inputs, y, outputs=outputs: outputs.append(weakref.ref(y)))
        loop.register_forward_hook(lambda loop, inputs, y, outputs=outputs: ran.append(len(outputs)))
    case.output(model, *case.inputs(model))
    assert ran == [loop.passes for loop in named_loops(model).values()]


# Storing


@every_stored_case
def test_a_saved_model_loads_strictly_and_stores_each_tensor_once(case: Case, tmp_path):
    model = case.build()
    stored = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(model).values())
    torch.save(model.state_dict(), tmp_path / "model.pt")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    overhead = 600 * len(model.state_dict()) + 2000  # name, shape and alignment of each tensor
    for file, read in (("model.pt", torch.load), ("model.safetensors", load_file)):
        assert stored <= (tmp_path / file).stat().st_size < stored + overhead
        fresh = case.build(seed=1)
        assert not cases.same_output(case, fresh, model)
        fresh.load_state_dict(read(tmp_path / file), strict=True)
        assert cases.same_output(case, fresh, model)


@every_stored_case
def test_copies_and_casts_keep_tied_tensors(case: Case):
    """With the weights of another model, the copy computes that model's output, and the original keeps its own."""
    model, other = case.build(), case.build(seed=1)
    inputs = case.inputs(model)
    before, expected = case.output(model, *inputs), case.loss_and_gradients(other, inputs)
    for made in (copy.deepcopy(model), copy.deepcopy(model).bfloat16().double()):
        made.load_state_dict(other.state_dict(), strict=True)
        assert cases.same_output(case, made, other)
        assert torch.equal(case.output(model, *inputs), before)
        torch.testing.assert_close(case.loss_and_gradients(made, inputs), expected, **EXACT)
