"""Makes timm's own `tests/test_models.py` test our models: `TORCH_BACKEND=timm_backend`.

That file is parametrised with `timm.list_models`, and imports the module that TORCH_BACKEND names after it has imported
`list_models` and before it calls it. Two things keep it from testing a plugin as it stands:

* it would test timm's thousand models too;
* two of its lists name families of models in the file itself. `NON_STD_FILTERS` says whose `forward_features` gives
  tokens instead of a map, by patterns of names (`vit_*`, `deit*`); `FEAT_INTER_FILTERS` says who has
  `forward_intermediates`, by modules of timm. No name that a plugin could choose stands for it in the second.

So `list_models` is replaced, in that file alone: it answers with our models only, and where it is handed one of the
two lists, our families stand in it beside timm's: those whose configuration states no `pool_size` (the size of a map)
beside the models of tokens, all of our modules beside those with `forward_intermediates`. The file is not changed.

TIMM_PLUGIN_MODELS, patterns of names separated by commas, selects among our models.
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
# A pattern of each of the two lists that no other list has.
NON_STANDARD, WITH_INTERMEDIATES = "vit_*", "vision_transformer"


def list_models(
    filter: str | Iterable[str] = "",
    module: str | Iterable[str] = "",
    pretrained: bool = False,
    exclude_filters: str | Iterable[str] = "",
    **kwargs: Any,
) -> list[str]:
    """`timm.list_models` for our models, as the module's docstring says."""
    found = timm.list_models(
        _with(filter, NON_STANDARD, OF_TOKENS),
        _with(module, WITH_INTERMEDIATES, MODULES),
        pretrained,
        _with(exclude_filters, NON_STANDARD, OF_TOKENS),
        **kwargs,
    )
    return [name for name in found if name.split(".")[0] in SELECTED]


def _with(given: str | Iterable[str], sign: str, ours: list[str]) -> str | list[str]:
    """A list of timm's that holds the sign, with ours behind; any other as it is."""
    if isinstance(given, str) or sign not in given:
        return given
    return [*given, *ours]


def _importing_module() -> FrameType | None:
    """The module that is importing this one: the nearest caller that has timm's `list_models` among its names."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("list_models") is not timm.list_models:
        frame = frame.f_back
    return frame


_importer = _importing_module()
if _importer is not None:
    _importer.f_globals["list_models"] = list_models
