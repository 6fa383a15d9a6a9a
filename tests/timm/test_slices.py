"""SReT's slices in complete models: permutations, checkpoints, image sizes."""

import copy

import pytest
import torch

from recurrence.depth import source_passes
from tests.support import vision
from tests.support.vision import timm


def permutations(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: table for name, table in model.named_buffers() if name.endswith("slices.permutation")}


SLICED = [case for case in vision.STRUCTURES if permutations(vision.fresh(case))]
every_sliced_case = pytest.mark.parametrize("sliced", SLICED)


def test_the_models_with_slices():
    names = {vision.CASES[case][0] for one in SLICED for case in vision.STRUCTURES[one]}
    assert names == {"sret_ext", "sret_t", "sret_tl", "sret_s", "sret_108", "sret_108_mixed"}


@pytest.mark.parametrize(("permuted_runs", "permuted"), [("none", ()), ("later", (False, True)), ("all", (True, True))])
def test_designs_of_permutation(permuted_runs, permuted):
    """Which of a block's two runs permute their slices; without permutations, training draws nothing."""
    model = vision.small("sret_t", permuted_runs=permuted_runs, groups=((4, 2), (2, 2), (1, 1)))
    passes = [[own.slices.permutation is not None for own in stage.loop.own] for stage in model.stages[:2]]
    assert all(found == list(permuted or (False, False)) * (len(found) // 2) for found in passes)
    x = vision.images(model)
    assert torch.allclose(copy.deepcopy(model).train()(x), copy.deepcopy(model).train()(x)) == (permuted_runs == "none")


@every_sliced_case
def test_training_draws_and_inference_does_not_unless_as_published(sliced):
    fixed, drawing = vision.small(sliced, mixed_depth=False), vision.small(sliced, inference_permutation="random")
    x = vision.images(fixed)

    def run(model: torch.nn.Module, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return copy.deepcopy(model)(x)  # which keeps the batch norms' statistics

    assert torch.equal(run(fixed, 1), run(fixed, 2))
    for model in (drawing, fixed.train()):
        assert torch.equal(run(model, 1), run(model, 1))
        assert not torch.allclose(run(model, 1), run(model, 2))


@every_sliced_case
def test_the_permutation_travels_with_the_checkpoint(sliced):
    model, other = vision.small(sliced), vision.small(sliced, seed=1, permutation_seed=5)
    x = vision.images(model)
    tables, theirs = permutations(model), permutations(other)
    assert tables.keys() == theirs.keys() <= model.state_dict().keys()
    assert not any(torch.equal(tables[name], theirs[name]) for name in tables)
    assert len({tuple(table.tolist()) for table in tables.values()}) == len(tables)
    for table in tables.values():
        assert torch.equal(table.sort().values, torch.arange(len(table)))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))
    # and without it, the seed says what it is
    again = vision.small(sliced, seed=1)
    again.load_state_dict({key: tensor for key, tensor in model.state_dict().items() if key not in tables})
    assert torch.equal(again(x), model(x))


@every_sliced_case
def test_a_graph_takes_the_permutations_of_a_checkpoint(sliced):
    model, x = vision.small_with_images(sliced)
    net = vision.small(sliced, seed=1, permutation_seed=5, features_only=True, feature_cls="fx")
    assert not net.graph_module.load_state_dict(model.state_dict(), strict=False).missing_keys
    torch.testing.assert_close(net(x), model.forward_intermediates(x, intermediates_only=True), rtol=1e-9, atol=1e-12)


def test_a_rounded_permutation_is_rejected():
    model = vision.small("sret_t")
    state = model.state_dict()
    key = next(name for name in state if name.endswith("permutation"))
    state[key] = state[key] // 2
    with pytest.raises(RuntimeError, match=f"{key}: must be a permutation; an average of buffers"):
        model.load_state_dict(state)


@every_sliced_case
def test_weights_of_sliced_and_global_models_are_interchangeable(sliced):
    loops = vision.fresh(sliced).config.loops
    everywhere = vision.small(sliced, groups=((1,) * loops,) * 3, seed=1)
    model = vision.small(sliced)
    everywhere.load_state_dict(model.state_dict())
    assert not permutations(everywhere)
    x = vision.images(model)
    assert not torch.allclose(everywhere(x), model(x))
    back = vision.small(sliced, seed=2)
    back.load_state_dict(everywhere.state_dict())
    assert torch.equal(back(x), model(x))


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("nll_ratio", [0, 1.5])
@pytest.mark.parametrize(("trained", "used"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_another_number_of_loops_takes_the_permutations_of_the_same_runs(trained, used, nll_ratio, metadata):
    permuted = "later" if used > 1 else "all"  # with one run, there are no later ones
    options = dict(groups=((8, 2), (4, 2), (2, 2)), nll_ratio=nll_ratio, permuted_runs=permuted)
    model, other = vision.small("sret_t", loops=trained, **options), vision.small("sret_t", loops=used, **options)
    for table in permutations(other).values():
        table.zero_()  # as in a model from the meta device
    other.load_state_dict(model.state_dict() if metadata else dict(model.state_dict()))
    drawn = permutations(vision.small("sret_t", loops=used, **options))
    for stage, (before, after) in enumerate(zip(model.loops(), other.loops())):
        for index, source in enumerate(source_passes(before.order, after.order)):
            if after.own[index].slices.permutation is not None:
                theirs = before.own[source].slices.permutation
                drawn_here = drawn[f"stages.{stage}.loop.own.{index}.slices.permutation"]
                assert torch.equal(after.own[index].slices.permutation, drawn_here if theirs is None else theirs)


@pytest.mark.parametrize(("stem", "named"), [("conv", "multiples of 32"), ("patch", "multiples of 32 plus 8")])
def test_the_sides_that_an_error_names_work(stem, named):
    with pytest.raises(ValueError, match=f"try other groups, or an img_size in {named}$"):
        timm.create_model("sret_t", stem=stem, img_size=240, device="meta")
    timm.create_model("sret_t", stem=stem, img_size=256 + 8 * ("plus" in named), device="meta")


@every_sliced_case
def test_groups_that_do_not_divide_are_rejected(sliced):
    rule = r"must divide the \d+ tokens \(\d+ x \d+\) of stage \d at img_size=.*72.*; try other groups, or"
    with pytest.raises(ValueError, match=rule):
        vision.fresh(sliced, img_size=72)
    model = vision.small(sliced)
    before = permutations(model)
    with pytest.raises(ValueError, match=rule):
        model.set_input_size((72, 72))
    assert model.patch_embed.img_size == (64, 64)
    assert permutations(model).keys() == before.keys()
    assert torch.isfinite(model(vision.images(model))).all()


@pytest.mark.parametrize("name", ["sret_t", "sret_tl", "sret_s"])
def test_published_sizes_work(name):
    for size in (224, 384, 512):
        assert timm.create_model(name, img_size=size, device="meta")


def test_further_runs_have_as_many_slices_as_the_last():
    written_out = vision.small("sret_t", seed=1, loops=3, groups=((8, 2, 2), (4, 1, 1), (1, 1, 1)))
    assert written_out.stages[0].loop.own[2].slices.groups == 2
    shorter = vision.small("sret_t", seed=1, loops=3, groups=((8, 2), (4, 1), (1,)))
    images = vision.images(shorter)
    assert torch.equal(shorter.eval()(images), written_out.eval()(images))


def test_a_last_pass_that_owns_nothing_hides_no_depth(caplog):
    """Safetensors drop the order; here the tensors that passes own are the permutations of the second ones."""
    options = dict(loops=3, groups=((2, 2, 1), (2, 1, 1), (1, 1, 1)), nll_ratio=0)
    model, loaded = (vision.small("sret_t", seed=seed, **options) for seed in (0, 1))
    loaded.load_state_dict(dict(model.state_dict()))
    assert torch.equal(loaded(vision.images(model)), model(vision.images(model)))
    assert not caplog.records
