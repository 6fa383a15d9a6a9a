"""Makes timm's own `tests/test_models.py` test our models: `TORCH_BACKEND=timm_backend`.

That file parametrizes its tests with `timm.list_models`, and imports the module named by TORCH_BACKEND before it calls
it. There, `list_models` is replaced by one that returns our models only, and adds them to the file's two lists of
families: `NON_STD_FILTERS`, whose `forward_features` returns tokens instead of a map, and `FEAT_INTER_FILTERS`, whose
modules have `forward_intermediates`. The file itself is not changed.

TIMM_PLUGIN_MODELS selects some of our models: patterns of names, separated by commas.
"""

import fnmatch
import os
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import timm
from timm.models import get_pretrained_cfg

from timm_plugin import FAMILIES, MODELS

MODULES = [family.__name__.rpartition(".")[2] for family in FAMILIES]
SELECTED = [
    name
    for name in MODELS
    if any(fnmatch.fnmatch(name, pattern) for pattern in os.environ.get("TIMM_PLUGIN_MODELS", "*").split(","))
]
OF_TOKENS = [name for name in MODELS if get_pretrained_cfg(name).pool_size is None]
# For each of the two lists, an entry that no other list has.
NON_STANDARD, WITH_INTERMEDIATES = "vit_*", "vision_transformer"


def list_models(
    filter: str | Iterable[str] = "",
    module: str | Iterable[str] = "",
    pretrained: bool = False,
    exclude_filters: str | Iterable[str] = "",
    **kwargs: Any,
) -> list[str]:
    """`timm.list_models` for our models; see the module's docstring."""
    found = timm.list_models(
        _with(filter, NON_STANDARD, OF_TOKENS),
        _with(module, WITH_INTERMEDIATES, MODULES),
        pretrained,
        _with(exclude_filters, NON_STANDARD, OF_TOKENS),
        **kwargs,
    )
    return [name for name in found if name.split(".")[0] in SELECTED]


def _with(given: str | Iterable[str], marker: str, ours: list[str]) -> str | list[str]:
    """Adds ours to a list that contains the marker; returns any other list unchanged."""
    if isinstance(given, str) or marker not in given:
        return given
    return [*given, *ours]


def _importing_module() -> FrameType | None:
    """The frame of the module that imports this one: the nearest caller with timm's `list_models` as a global."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("list_models") is not timm.list_models:
        frame = frame.f_back
    return frame


_importer = _importing_module()
if _importer is not None:
    _importer.f_globals["list_models"] = list_models
