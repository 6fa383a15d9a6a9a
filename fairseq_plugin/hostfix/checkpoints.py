"""Loading checkpoints under torch's safe loader: the types that fairseq's own files hold, and no others."""

import argparse
import collections
import contextlib
import pickle
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import omegaconf
import torch
from fairseq import checkpoint_utils, models
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

from fairseq_plugin.hostfix.replace import explain_errors, replace
from fairseq_plugin.hostfix.saving import damage

_rebuild_array = np.empty(0).__reduce__()[0]

# The options of an architecture are a Namespace; --eval-bleu leaves its counts as arrays, int64 on one rank and
# float64 on several. numpy 1 and numpy 2 pickle the rebuild function under different names.
CHECKPOINT_TYPES = (
    argparse.Namespace,
    np.ndarray,
    np.dtype,
    np.dtypes.Int64DType,
    np.dtypes.Float64DType,
    (_rebuild_array, "numpy.core.multiarray._reconstruct"),
    (_rebuild_array, "numpy._core.multiarray._reconstruct"),
)

# What rank 0 sends to the others when it has read a checkpoint for them: the configuration is an omegaconf object by
# then, and each tensor is replaced by a placeholder.
BROADCAST_TYPES = (
    dict,
    list,
    int,
    collections.defaultdict,
    typing.Any,
    omegaconf.DictConfig,
    omegaconf.ListConfig,
    AnyNode,
    ContainerMetadata,
    Metadata,
    distributed_utils._TensorPlaceholder,
)


class CheckpointError(ValueError, pickle.UnpicklingError):
    """A file that is no whole checkpoint of fairseq, or that refers to what those never hold."""


def allow_checkpoint_types() -> None:
    """Let the safe loader read the types that fairseq's own checkpoints hold (``CHECKPOINT_TYPES``)."""
    torch.serialization.add_safe_globals(list(CHECKPOINT_TYPES))


def allow_broadcast_types() -> None:
    """Let a resume on several ranks receive the checkpoint from rank 0.

    ``BROADCAST_TYPES`` are allowed while such a message is read, not for files.
    """

    def receive_broadcast_types(broadcast: Callable) -> Callable:
        def _broadcast_object_slow(*args, **kwargs):
            with torch.serialization.safe_globals(list(BROADCAST_TYPES)):
                return broadcast(*args, **kwargs)

        return _broadcast_object_slow

    replace(distributed_utils, "_broadcast_object_slow", receive_broadcast_types)


def explain_refused_checkpoint() -> None:
    """Name the file and the type when the safe loader refuses a checkpoint, in place of torch's advice to trust it."""

    def explain_refusal(load: Callable) -> Callable:
        def load_or_explain(path, *args, **kwargs):
            with _explained(path):
                return load(path, *args, **kwargs)

        return load_or_explain

    for name in ("load_checkpoint_to_cpu", "load_ema_from_checkpoint"):
        replace(checkpoint_utils, name, explain_refusal)


def explain_unfit_checkpoint() -> None:
    """Name the file whose parameters are not those of the model that the data and the options make.

    fairseq quotes every parameter that has another shape, and no file.
    """

    explain_errors(checkpoint_utils, "load_model_ensemble_and_task", RuntimeError, _named_file)


def _named_file(error: RuntimeError, filenames: list[str], *args, **kwargs) -> ValueError | None:
    if "loading state_dict" not in str(error):
        return None
    first = str(error).splitlines()[1].strip()
    files = ", ".join(filenames)
    return ValueError(f"{files}: does not fit the model that the dictionaries and --model-overrides make: {first}")


def build_from_plain_options() -> None:
    """Build a language model from the options that :func:`conversion.upstream.readable` writes into a checkpoint.

    CTranslate2's converter hands them over as they stand in the file; fairseq knows a Namespace and its own type.
    """

    def build_from_attributes(build: Callable) -> Callable:
        def build_model(cfg, *args, **kwargs):
            plain = isinstance(cfg, collections.OrderedDict)
            return build(argparse.Namespace(**vars(cfg)) if plain else cfg, *args, **kwargs)

        return build_model

    replace(models, "build_model", build_from_attributes)


def restore_task_state() -> None:
    """Give a task its state back when training resumes; fairseq saves it, and reads it for inference alone."""

    def save_for_training(state_dict: Callable) -> Callable:
        def trainer_state(self):
            state = state_dict(self)
            state["extra_state"]["task_state"] = state["task_state"]
            return state

        return trainer_state

    def read_in_training(load: Callable) -> Callable:
        def load_checkpoint(self, *args, **kwargs):
            extra_state = load(self, *args, **kwargs)
            if extra_state is not None and "task_state" in extra_state:
                self.task.load_state_dict(extra_state["task_state"])
            return extra_state

        return load_checkpoint

    replace(Trainer, "state_dict", save_for_training)
    replace(Trainer, "load_checkpoint", read_in_training)


def load_safely(path: str | Path) -> dict[str, Any]:
    """Return the state that a checkpoint holds as it was written, its tensors on the CPU.

    Raises:
        CheckpointError: naming the file, and the type if it refers to one that is not allowed.
    """
    with _explained(path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        state["model"]  # noqa: B018  which no other file has
        return state


@contextlib.contextmanager
def _explained(path: str | Path) -> Iterator[None]:
    # Again, as whoever closes torch's safe_globals takes its types away, even from those who had allowed them before;
    # timm does so with argparse.Namespace whenever it reads a checkpoint.
    allow_checkpoint_types()
    try:
        yield
    except pickle.UnpicklingError as error:
        raise CheckpointError(_explanation(path, str(error))) from None
    except (EOFError, RuntimeError):
        wrong = damage(path)
        if wrong is None:
            raise
        raise CheckpointError(f"{path}: not a whole checkpoint: {wrong}") from None
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of fairseq ({type(error).__name__}: {error})") from error


def _explanation(path: str | Path, error: str) -> str:
    refused = re.search(r"GLOBAL (\S+)", error)
    if refused is None:
        return f"{path}: not a checkpoint that can be read safely; nothing in it was run"
    return (
        f"{path}: refused, because it refers to {refused[1]}, which fairseq's own checkpoints never hold; nothing in "
        "it was run. A file from elsewhere can run any code when it is read, so do not load it unless you can tell "
        "why that name is there."
    )
