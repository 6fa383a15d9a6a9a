"""Sizes in a checkpoint that its file cannot hold, rejected before anything of that size is allocated."""

import copy
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from fairseq import checkpoint_utils, models
from torch import Tensor, nn

from fairseq_repairs.replace import after, instead

MOST = 1 << 28  # numbers in tables that a checkpoint does not hold, such as positions
PACKAGES = {"fairseq"}  # whose models are checked: code of others may keep what it computes without memory
LOADED: list[str] = []  # paths of the checkpoints, such as shards, that were loaded since a model was built


@after(checkpoint_utils, "load_checkpoint_to_cpu")
def note_path(state: dict[str, Any], path: Any, *args, **kwargs) -> None:
    """Notes a checkpoint of the model that is built next."""
    LOADED.append(str(path))


@instead(models, "build_model")
def require_held_model(build: Callable, cfg: Any, task: Any, from_checkpoint: bool = False) -> nn.Module:
    """Rejects a checkpoint whose options describe a larger model than its weights; fairseq allocates it first."""
    files = [path for path in LOADED if os.path.isfile(path)]
    LOADED.clear()
    if from_checkpoint and files and _package_of(cfg) in PACKAGES:
        most = sum(map(os.path.getsize, files))
        require_held(lambda: build(copy.deepcopy(cfg), task, from_checkpoint), most, files[-1])
    return build(cfg, task, from_checkpoint)


def _package_of(cfg: Any) -> str:
    """The package of the model's class; empty if there is no such model."""
    name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
    kind = models.ARCH_MODEL_REGISTRY.get(name) or models.MODEL_REGISTRY.get(name)
    return kind.__module__.partition(".")[0] if kind else ""


def require_held(build: Callable[[], nn.Module], most: int, path: Any) -> None:
    """Raises ValueError if a model has more parameters than this, or larger tables than `MOST`; builds it without them.

    A model that cannot be built so, or not at all, passes: building it tells why.
    """
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with torch.device("meta"):
            model = build()
    except Exception as error:
        if "overflow" in str(error):  # of a size that no tensor can have
            raise ValueError(f"{path}: its options describe a model that no machine can hold: {error}") from None
        return
    finally:
        logging.disable(disabled)
    parameters = sum(each.numel() for each in model.parameters())
    tables = sum(each.numel() for each in _tables(model))
    if parameters > most or tables > MOST:
        raise ValueError(
            f"{path}: its options describe a model of {parameters:,} parameters and {tables:,} other numbers: must "
            f"be <= {most:,}, for which the file has room, and <= {MOST:,}"
        )


def _tables(model: nn.Module) -> Iterator[Tensor]:
    """Tensors of a model that are not its parameters."""
    yield from model.buffers()
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))
