"""What is registered with timm: names, sizes, configurations, and that no test leaves a model out."""

import functools
import importlib
import re
from pathlib import Path

import pytest
import torch
from timm.models import model_entrypoint
from torch import nn

from recurrence.count import stored, unshared
from tests.support import vision
from tests.support.counts import COUNTS
from tests.support.vision import MODELS, every_model, every_registered_structure, timm
from timm_plugin import FAMILIES
from timm_plugin._config import ImageConfig
from timm_plugin._model import ImageModel
from timm_plugin._vit import LoopedVisionTransformer, ViTConfig


@functools.cache
def on_meta(name: str, **kwargs) -> nn.Module:
    """A model at full size, without memory for its parameters; what is asked for again is the same."""
    return timm.create_model(name, device="meta", **kwargs)


def test_registered_models_are_those_of_the_families():
    assert sorted(name for family in FAMILIES for name in family.default_cfgs) == sorted(MODELS)
    for family in FAMILIES:
        module = family.__name__.rpartition(".")[2]
        assert sorted(family.default_cfgs) == sorted(name for name in MODELS if name in timm.list_models(module=module))


def test_every_model_is_a_function_of_its_family_that_a_search_finds():
    for family in FAMILIES:
        text = Path(family.__file__).read_text(encoding="utf-8")
        for name in family.default_cfgs:
            assert f"@register_model\ndef {name}(" in text
            assert getattr(family, name) is model_entrypoint(name)


@pytest.mark.parametrize("row", [row for row in COUNTS if row.model in MODELS], ids=str)
def test_parameters(row):
    model = on_meta(row.model, **row.arguments)
    assert row.agrees(stored(model), []), stored(model)
    assert all(parameter.is_meta for parameter in model.parameters())
    if "loops" in row.arguments:
        assert (unshared(model) == stored(model)) == (row.arguments["loops"] == 1)


def test_a_family_must_have_every_part():
    for base, config, part in (
        (ImageModel, ImageConfig, "features"),
        (LoopedVisionTransformer, ViTConfig, "make_loop"),
    ):
        with pytest.raises(TypeError, match=f"abstract class {base.__name__} .*{part}"):
            base(config())


@every_model
def test_every_model_is_counted_as_registered(name):
    assert [row for row in COUNTS if row.model == name and set(row.arguments) <= {"num_classes"}]


@every_model
def test_configuration(name):
    model = on_meta(name)
    cfg = model.pretrained_cfg
    tagged = bool(cfg.get("tag"))  # of the data set whose weights are part of the package
    assert tagged == bool(cfg.get("file"))
    assert cfg["input_size"] == ((3, 64, 64) if tagged else (3, 224, 224))
    assert cfg["crop_pct"] == 1 if tagged else 0.87 < cfg["crop_pct"] <= 0.9
    assert re.fullmatch(r"arXiv:\d{4}\.\d{5}", cfg["paper_ids"])
    for key in ("classifier", "first_conv"):
        assert f"{cfg[key]}.weight" in model.state_dict()


@every_registered_structure
def test_device_and_type_are_those_asked_for(structure):
    model = timm.create_model(structure, **vision.arguments(structure), device="meta", dtype=torch.bfloat16)
    tensors = [*model.parameters(), *model.buffers()]
    assert all(tensor.is_meta for tensor in tensors)
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors if tensor.is_floating_point())


# Tests on a few models, and why.
FEW = {
    "test_published_sizes_work": "of the models with slices",
    "test_released_files_load_as_they_are": "of the models whose code has been released",
    "test_references": "of the models that the published code does not show with every option",
    "test_an_order_replaces_the_layers_of_the_preset": "of one model of each family that takes an order",
    "test_deep_supervision_is_the_loss_of_all_depths": "of the models with elastic depth",
    "test_distillation_trains_the_full_depth": "of the models with elastic depth",
    "test_training_without_the_outputs_is_told": "of the models of mixed depth",
    "test_an_image_without_a_batch_is_rejected_by_its_rule": "of one model with positions and one without",
    "test_the_pretrained_configuration_tells_the_grid_of_a_file_as_in_timm": "of models whose positions are a row",
    "test_set_input_size_resamples": "of the models whose weights know places",
    "test_the_same_size_changes_nothing": "of the models whose weights know places",
    "test_a_checkpoint_of_another_size_is_resampled": "of the models whose weights know places",
    "test_each_rate_is_that_of_its_places": "of a model of each family that takes all rates",
    "test_resizing_keeps_type_and_frozenness": "of the models whose weights know places",
}


def test_no_test_leaves_a_model_out():
    modules = [importlib.import_module(f"tests.timm.{path.stem}") for path in Path(__file__).parent.glob("test_*.py")]
    tested = {name: models for module in modules for name, models in vision.models_tested(module).items()}
    assert len(tested) > len(FEW) + 25
    assert FEW.keys() <= tested.keys()
    for name, models in tested.items():
        assert models == set(MODELS) or name in FEW, name
