"""Loading checkpoints under torch's safe loader, which allows the types in fairseq's own files and no others."""

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
from fairseq.data import Dictionary
from fairseq.distributed import utils as distributed_utils
from fairseq.models.ema.ema import EMA
from fairseq.trainer import Trainer
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

from fairseq_plugin.repairs.replace import call_after, instead, replace
from recurrence.files import damage
from recurrence.loop import named_loops

_rebuild_array = np.empty(0).__reduce__()[0]

# The options of an architecture are a Namespace, and tasks of speech store their dictionaries; --eval-bleu stores its
# counts as arrays (int64 on one rank, float64 on several). numpy 1 and numpy 2 pickle the rebuild function under
# different names.
CHECKPOINT_TYPES = (
    argparse.Namespace,
    Dictionary,
    np.ndarray,
    np.dtype,
    np.dtypes.Int64DType,
    np.dtypes.Float64DType,
    (_rebuild_array, "numpy.core.multiarray._reconstruct"),
    (_rebuild_array, "numpy._core.multiarray._reconstruct"),
)

# The types in the message with which rank 0 sends a checkpoint to the others: by then, the configuration is an
# omegaconf object, and each tensor is replaced by a placeholder.
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


MARKS = "_metadata"  # the attribute in which torch's state dicts have what each module notes


class CheckpointError(ValueError, pickle.UnpicklingError):
    """A file that is not an intact fairseq checkpoint, or refers to a type that those never hold."""


def allow_checkpoint_types() -> None:
    """Lets the safe loader read the types in fairseq's own checkpoints (``CHECKPOINT_TYPES``)."""
    torch.serialization.add_safe_globals(list(CHECKPOINT_TYPES))


@instead(distributed_utils, "_broadcast_object_slow")
def allow_broadcast_types(broadcast: Callable, *args, **kwargs) -> Any:
    """Lets ranks receive a checkpoint from rank 0 when training resumes.

    ``BROADCAST_TYPES`` are allowed while such a message is read, but not in files.
    """
    with torch.serialization.safe_globals(list(BROADCAST_TYPES)):
        return broadcast(*args, **kwargs)


def broadcast_marks() -> None:
    """Lets ranks receive the marks of a state dict, such as the orders of loops; fairseq sends only its tensors."""
    replace(distributed_utils, "_split_tensors_from_obj", _add_marks)
    replace(distributed_utils, "_put_tensors_in_obj", _attach_marks)


def _add_marks(split: Callable, sent: Any, tensors: list) -> Any:
    found = split(sent, tensors)
    if isinstance(sent, collections.OrderedDict) and hasattr(sent, MARKS):
        found[MARKS] = dict(getattr(sent, MARKS))
    return found


def _attach_marks(put: Callable, received: Any, tensors: list) -> Any:
    found = put(received, tensors)
    if isinstance(found, dict) and MARKS in found:
        found = collections.OrderedDict(found)
        setattr(found, MARKS, found.pop(MARKS))
    return found


@instead(checkpoint_utils, "load_checkpoint_to_cpu", "load_ema_from_checkpoint")
def explain_rejected_checkpoint(load: Callable, path: str, *args, **kwargs) -> Any:
    """Names the file and the type when the safe loader rejects a checkpoint, instead of advising to trust it."""
    with _explained(path):
        return load(path, *args, **kwargs)


@instead(models, "build_model")
def build_from_plain_options(build: Callable, cfg: Any, *args, **kwargs) -> Any:
    """Builds a model from the options that :func:`conversion.upstream.readable` writes into a checkpoint.

    CTranslate2's converter passes on the `OrderedDict` from the file, which fairseq does not accept.
    """
    plain = isinstance(cfg, collections.OrderedDict)
    return build(argparse.Namespace(**vars(cfg)) if plain else cfg, *args, **kwargs)


def restore_task_state() -> None:
    """Restores a task's state when training resumes; fairseq saves it, but only reads it for inference."""
    call_after(Trainer, "state_dict", _save_task_state)
    call_after(Trainer, "load_checkpoint", _restore_task_state)


def _save_task_state(state: dict[str, Any], trainer: Trainer) -> None:
    state["extra_state"]["task_state"] = state["task_state"]


def _restore_task_state(
    extra: dict[str, Any] | None, trainer: Trainer, filename: str, reset_optimizer: bool = False, *args, **kwargs
) -> None:
    if extra is not None and "task_state" in extra and not reset_optimizer:  # as in fine-tuning, with other data
        trainer.task.load_state_dict(extra["task_state"])


def load_safely(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint as it was written, with its tensors on the CPU.

    Raises:
        CheckpointError: naming the file, and the type if that is not allowed.
    """
    with _explained(path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
            raise TypeError("has no state dict under model")
        return state


@contextlib.contextmanager
def _explained(path: str | Path) -> Iterator[None]:
    """Turns the safe loader's errors into a CheckpointError that names the file."""
    # Allow the types again: leaving torch's safe_globals disallows its types even if they were allowed before, and timm
    # uses it for argparse.Namespace whenever it reads a checkpoint.
    allow_checkpoint_types()
    try:
        yield
    except pickle.UnpicklingError as error:
        raise CheckpointError(_explanation(path, str(error))) from None
    except (EOFError, KeyError, RuntimeError, TypeError) as error:
        wrong = damage(path) if isinstance(error, EOFError | RuntimeError) else None
        if wrong is not None:
            raise CheckpointError(f"{path}: not an intact checkpoint: {wrong}") from None
        raise CheckpointError(f"{path}: not a checkpoint of fairseq ({type(error).__name__}: {error})") from error


def _explanation(path: str | Path, error: str) -> str:
    rejected = re.search(r"GLOBAL (\S+)", error)
    if rejected is None:
        return f"{path}: not a checkpoint that can be read safely; nothing in it was run"
    return (
        f"{path}: rejected, because it refers to {rejected[1]}, which fairseq's own checkpoints never hold; nothing in "
        "it was run. Reading an untrusted file can run any code, so do not load this one unless you know why that name "
        "is there."
    )


@instead(EMA, "restore")
def average_adaptive_softmax(restore: Callable, ema: EMA, state_dict: dict, *args, **kwargs) -> None:
    """Lets ``--store-ema`` average a model with an adaptive softmax.

    fairseq leaves marks of versions out of the average, which the adaptive softmax then rejects as "no longer
    supported".
    """
    versions = {key: tensor for key, tensor in ema.model.state_dict().items() if "version" in key}
    restore(ema, {**versions, **state_dict}, *args, **kwargs)


def begin_average_with_weights() -> None:
    """Lets ``--store-ema`` begin from a checkpoint without an average, with its weights; fairseq stops (KeyError)."""
    call_after(checkpoint_utils, "load_checkpoint_to_cpu", _offer_weights)
    call_after(Trainer, "load_checkpoint", _release_weights)


def _offer_weights(state: dict[str, Any], *args, **kwargs) -> None:
    if isinstance(state.get("extra_state"), dict):
        state["extra_state"].setdefault("ema", state.get("model"))


def _release_weights(extra: dict[str, Any] | None, *args, **kwargs) -> None:
    if extra is not None:  # which fairseq-train keeps until it ends
        extra.pop("ema", None)


@instead(Trainer, "load_checkpoint")
def explain_state_of_another_order(load: Callable, trainer: Trainer, filename: str, *args, **kwargs) -> Any:
    """Names the options with which training resumes in another order, whose parameters the optimizer does not know.

    Where the number of parameters stays, they would silently get the momentum of others.
    """
    try:
        extra, error = load(trainer, filename, *args, **kwargs), None
    except ValueError as wrong:
        if "loaded state dict contains a parameter group" not in str(wrong):
            raise
        error = wrong
    resumed = trainer.get_num_updates() > 0  # the optimizer, too
    if error is None and not (resumed and any(loop.moved for loop in named_loops(trainer.get_model()).values())):
        return extra
    raise ValueError(
        f"{filename}: its optimizer state belongs to other parameters, such as those of another depth or order; use "
        "--reset-optimizer or --finetune-from-model"
    ) from error
