"""Images of other sizes and channels: at creation, later, and from checkpoints of another size."""

import operator
import re

import pytest
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed

from tests.support import vision
from tests.support.vision import every_case, is_pyramid, timm

TABLES = ("pos_embed", "level_embed")


# A Mixer, as timm's, has weights for each place of a patch.
RESIZABLE = [case for case in vision.STRUCTURES if "mixer" not in vision.CASES[case][0]]
every_resizable_case = pytest.mark.parametrize("case", RESIZABLE)


def sizes(case: str) -> list[tuple[int, int]]:
    """A larger one, and one that is not square."""
    side = vision.arguments(case)["img_size"]
    return [(2 * side, 2 * side), (2 * side, side)]


def resampled(table: torch.Tensor, grid: tuple[int, int], old: tuple[int, int], prefix: int) -> torch.Tensor:
    """timm's function, on each level of a table."""
    if table.dim() == 4:
        tokens = resample_abs_pos_embed(table.flatten(2).transpose(1, 2), grid, old, 0)
        return tokens.transpose(1, 2).reshape(1, -1, *grid)
    return torch.cat([resample_abs_pos_embed(level[None], grid, old, prefix) for level in table])


def test_only_models_without_places_are_resizable():
    assert {case for case in vision.STRUCTURES if hasattr(vision.fresh(case), "set_input_size")} == set(RESIZABLE)


@pytest.mark.parametrize("name", ["plain_vit", "recursive_deit_tiny", "uit"])
def test_the_pretrained_configuration_tells_the_grid_of_a_file_as_in_timm(name, tmp_path):
    """Another grid may have as many tokens."""
    square, path = vision.small(name).float(), tmp_path / "weights.pth"
    torch.save(square.state_dict(), path)
    overlay = dict(file=str(path), input_size=(3, 32, 32), num_classes=vision.CLASSES)
    wide = vision.fresh(name, img_size=(16, 64), pretrained=True, pretrained_cfg_overlay=overlay)
    square.set_input_size((16, 64))
    torch.testing.assert_close(wide.pos_embed, square.pos_embed)


@every_resizable_case
def test_set_input_size_resamples(case):
    for size in sizes(case):
        model = vision.small(case)
        old = {name: getattr(model, name).detach().clone() for name in TABLES if getattr(model, name, None) is not None}
        old_grid, prefix = model.patch_embed.grid_size, getattr(model, "num_prefix_tokens", 0)
        trained = {name for name, _ in model.named_parameters()}
        model.set_input_size(size)
        grid = model.patch_embed.grid_size
        assert timm.models.get_model_traits(model)["img_size"] == size
        for name, table in old.items():
            new = getattr(model, name)
            assert isinstance(new, torch.nn.Parameter) == (name in trained)
            torch.testing.assert_close(new.detach(), resampled(table, grid, old_grid, prefix))
            assert not torch.equal(new.flatten()[: table.numel()], table.flatten())
        x = vision.images(model)
        assert x.shape[2:] == size
        assert model(x).isfinite().all()
        assert not [module for module in model.modules() if module.training]
        with pytest.raises(AssertionError):
            model(torch.randn(1, 3, size[0] + 16, size[1], dtype=torch.float64))


@every_resizable_case
def test_the_same_size_changes_nothing(case):
    """Not even permutations of a checkpoint, which may be of another seed; nor does an optimiser lose a parameter."""
    model, x = vision.small_with_images(case)
    for name, table in model.named_buffers():
        if name.endswith("slices.permutation"):
            table.copy_(table.flip(0))
    expected, parameters = model(x), list(model.parameters())
    model.set_input_size(model.patch_embed.img_size)
    assert torch.equal(model(x), expected)
    assert all(map(operator.is_, model.parameters(), parameters))


@every_resizable_case
def test_a_checkpoint_of_another_size_is_resampled(case, tmp_path):
    model = vision.small(case)
    torch.save(model.state_dict(), tmp_path / "model.pth")
    for size in sizes(case):
        loaded = vision.fresh(case, img_size=size, checkpoint_path=str(tmp_path / "model.pth")).double().eval()
        model.set_input_size(size)
        x = vision.images(model)
        permuted = {name: t for name, t in model.named_buffers() if name.endswith("slices.permutation")}
        assert all(torch.equal(loaded.get_buffer(name), table) for name, table in permuted.items())
        # timm reads the file into a model in float32
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-3, atol=1e-4)
        model = vision.small(case)


@pytest.mark.parametrize(
    ("kind", "size", "rule"),
    [
        *((kind, 0, "must be one side or two, in whole numbers >= 1") for kind in ("sret_t", "plain_vit")),
        *((kind, (64, 1.5), "must be one side or two, in") for kind in ("sret_t", "deit, SReT's stem")),
        ("sret, patches and class token", 15, "must be >= 16, the side of a patch"),
        ("plain_vit", 4, "must be >= patch_size=8"),
    ],
)
def test_a_size_that_is_rejected_changes_nothing(kind, size, rule):
    model, x = vision.small_with_images(kind)
    expected = model(x)
    with pytest.raises(ValueError, match=f"^{re.escape(f'img_size={size}: {rule}')}"):
        model.set_input_size(size)
    assert torch.equal(model(x), expected)


def test_a_table_of_images_that_are_not_square_is_loaded_at_its_size():
    wide = vision.small("recursive_deit_tiny", img_size=(32, 64))
    with pytest.raises(RuntimeError, match="size mismatch for pos_embed"):
        vision.small("recursive_deit_tiny", img_size=64).load_state_dict(wide.state_dict())
    model = vision.small("recursive_deit_tiny", img_size=(32, 64), seed=1)
    model.load_state_dict(wide.state_dict())
    model.set_input_size(64)
    expected = resampled(wide.pos_embed, (8, 8), (4, 8), 1)
    torch.testing.assert_close(model.pos_embed.detach(), expected.detach())


@pytest.mark.parametrize(
    ("name", "size", "side"),
    [
        *(("recursive_deit_tiny", (16, 64), 32), ("recursive_deit_tiny", (16, 64), 20), ("uit", (16, 48), 32)),
        ("deit, SReT's stem", (58, 32), 32),  # the stem rounds sides up, unlike patches
    ],
)
def test_a_folder_names_the_size_of_images_that_are_not_square(name, size, side, tmp_path):
    wide = vision.small(name, img_size=size)
    timm.models.save_for_hf(wide, tmp_path, safe_serialization=True)
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=side)
    wide.set_input_size(side)
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, wide.state_dict()[key].to(tensor))


@pytest.mark.parametrize("kinds", [("sret_t", "recursive_deit_tiny"), ("recursive_deit_tiny", "sret, class token")])
def test_positions_of_another_kind_of_model_are_reported_by_torch(kinds):
    for used, trained in (kinds, kinds[::-1]):
        with pytest.raises(RuntimeError, match=r"size mismatch for pos_embed"):
            vision.fresh(used).load_state_dict(vision.fresh(trained).state_dict())


@every_resizable_case
def test_resizing_keeps_type_and_frozenness(case):
    model = vision.small(case).to(torch.bfloat16).requires_grad_(False)
    model.set_input_size(sizes(case)[0])
    assert not [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    tensors = [*model.parameters(), *model.buffers()]
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors if tensor.is_floating_point())


@every_case
def test_other_channels_and_classes(case, tmp_path):
    """Of a pretrained model, timm sums or repeats the channels of the first convolution and drops the classifier."""
    model = vision.small(case, in_chans=4)
    assert model(vision.images(model)).shape == (2, vision.CLASSES)
    pretrained = vision.small(case).float()
    save_file(pretrained.state_dict(), tmp_path / "model.safetensors")
    overlay = dict(file=str(tmp_path / "model.safetensors"), num_classes=vision.CLASSES)
    grey, three = (
        vision.fresh(case, pretrained=True, pretrained_cfg_overlay=overlay, **changes).eval()
        for changes in (dict(in_chans=1), dict(num_classes=3))
    )
    x = vision.images(grey)
    torch.testing.assert_close(grey(x), pretrained(x.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5)
    x = vision.images(three)
    torch.testing.assert_close(three.forward_features(x), pretrained.forward_features(x))
    assert three(x).shape == (2, 3)


@pytest.mark.parametrize("pyramid", list(filter(is_pyramid, vision.MODELS)))
def test_stages_of_odd_maps(pyramid):
    """Maps are rounded up, as the stem's convolutions do."""
    model = vision.fresh(pyramid, img_size=(72, 56), groups=((1, 1),) * 3).eval()
    maps = model.forward_intermediates(vision.images(model), intermediates_only=True)
    assert [tuple(tensor.shape[2:]) for tensor in maps] == [(9, 7), (5, 4), (3, 2)]


@pytest.mark.parametrize("track", [True, False])
def test_statistics_of_the_stem_may_be_those_of_the_batch(track):
    """Test-time adaptation: the norms train in a model that does not, or have no statistics at all."""
    model = vision.small("sret_t")
    if not track:
        torch.func.replace_all_batch_norm_modules_(model)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    before = model(vision.images(model)).clone()
    for norm in norms:
        norm.train()
    after = model(vision.images(model))
    assert torch.equal(after, before) != track
    assert not track or all(int(norm.num_batches_tracked) == 1 for norm in norms)
