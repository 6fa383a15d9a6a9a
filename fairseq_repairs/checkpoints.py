"""Loading checkpoints under torch's safe loader, which allows the types in fairseq's own files and no others."""

import argparse
import collections
import contextlib
import math
import os
import pickle
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import omegaconf
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

from fairseq_repairs.files import damage, require_plain
from fairseq_repairs.replace import at_once, instead


class PlainType:
    """The type of an array's numbers as numpy pickles it, int64 or float64; all else that a pickle says is rejected."""

    def __init__(self, name: str, *unused):
        _require_plain(name in ("i8", "f8"))
        self.name = name

    def __setstate__(self, state: tuple) -> None:
        _require_plain(state in [(3, order, *[None] * 3, -1, -1, 0) for order in "<>"])
        self.str = state[1] + self.name


def read_number(kind: PlainType, data: bytes) -> float | int:
    """Such a number by itself, numpy's `scalar`: a score that scipy or scikit-learn has computed."""
    _require_plain(isinstance(kind, PlainType) and isinstance(data, bytes) and len(data) == 8)
    return np.frombuffer(data, kind.str).item()


class PlainArray(np.ndarray):
    """An array of such numbers, which is pickled as numpy's own."""

    def __setstate__(self, state: tuple) -> None:
        version, shape, kind, fortran, data = state
        _require_plain(isinstance(data, bytes) and 8 * math.prod(shape) == len(data))
        super().__setstate__((version, shape, np.dtype(kind.str), fortran, data))

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


def _require_plain(holds: bool) -> None:
    if not holds:
        raise pickle.UnpicklingError("an array that fairseq's checkpoints never hold")


def rebuild_array(*unused) -> np.ndarray:
    """An empty array, of which a pickle then sets the state, numpy's `_reconstruct`."""
    return np.empty(0).view(PlainArray)


# The options of an architecture are a Namespace, and tasks of speech store their dictionaries; --eval-bleu stores its
# counts as arrays (int64 on one rank, float64 on several), and sentence_prediction its best score as a number of numpy.
# numpy 1 and numpy 2 pickle the functions under different names. A file names a type with its module: one whose name
# here has no dot can only come from a type or function that a file may name.
CHECKPOINT_TYPES = (
    argparse.Namespace,
    Dictionary,
    ("ndarray", "numpy.ndarray"),
    (PlainType, "numpy.dtype"),
    (PlainArray, "array"),
    (rebuild_array, "numpy.core.multiarray._reconstruct"),
    (rebuild_array, "numpy._core.multiarray._reconstruct"),
    (read_number, "numpy.core.multiarray.scalar"),
    (read_number, "numpy._core.multiarray.scalar"),
)
MOST_LAYERS = 10_000
FIRST_WEIGHTS = [f"{side}_embed_path" for side in ("encoder", "decoder")]
FIRST_WEIGHTS += [f"load_pretrained_{side}_from" for side in ("encoder", "decoder")]

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


@at_once
def allow_checkpoint_types() -> None:
    """Lets torch's safe loader read the types in fairseq's own checkpoints (`CHECKPOINT_TYPES`)."""
    torch.serialization.add_safe_globals(list(CHECKPOINT_TYPES))


@instead(distributed_utils, "_broadcast_object_slow")
def allow_broadcast_types(broadcast: Callable, *args, **kwargs) -> Any:
    """Lets ranks receive a checkpoint from rank 0 when training resumes.

    `BROADCAST_TYPES` are allowed while such a message is read, but not in files.
    """
    allowed = torch.serialization.get_safe_globals()  # which would be forbidden afterwards
    with torch.serialization.safe_globals([kind for kind in BROADCAST_TYPES if kind not in allowed]):
        return broadcast(*args, **kwargs)


@instead(distributed_utils, "_split_tensors_from_obj")
def send_marks(split: Callable, sent: Any, tensors: list) -> Any:
    """Sends what the modules of a state dict note beside their tensors, such as versions; fairseq forgets it."""
    found = split(sent, tensors)
    if isinstance(sent, collections.OrderedDict) and hasattr(sent, MARKS):
        found[MARKS] = dict(getattr(sent, MARKS))
    return found


@instead(distributed_utils, "_put_tensors_in_obj")
def receive_marks(put: Callable, received: Any, tensors: list) -> Any:
    """Attaches what :func:`send_marks` sends."""
    found = put(received, tensors)
    if isinstance(found, dict) and MARKS in found:
        found = collections.OrderedDict(found)
        setattr(found, MARKS, found.pop(MARKS))
    return found


@instead(checkpoint_utils, "load_ema_from_checkpoint")
def name_missing_average(load: Callable, path: str) -> Any:
    """Says that the checkpoint of `--ema-seed-model` has no average; fairseq says only "KeyError: 'ema'"."""
    try:
        return load(path)
    except KeyError as error:
        if error.args != ("ema",):
            raise
        raise CheckpointError(f"{path}: has no average: must be of a training with --store-ema") from None


@instead(checkpoint_utils, "load_checkpoint_to_cpu", "load_ema_from_checkpoint")
def explain_rejected_checkpoint(load: Callable, path: str, *args, **kwargs) -> dict[str, Any]:
    """Names the file, and the type that the safe loader rejects, in place of its advice to trust the file.

    Also rejects a model that would be built without end, and forgets the files of weights with which one began. fairseq
    reads these again, before the checkpoint's weights: they may be on another machine, or any file of this one.
    """
    with _explained(path):
        state = load(path, *args, **kwargs)
        require_bounded(path, state)
    for options in model_options(state):
        for name in FIRST_WEIGHTS:
            if getattr(options, name, None):
                setattr(options, name, None)
    return state


def require_bounded(path: Any, state: dict[str, Any]) -> None:
    """Raises CheckpointError for a model of too many layers, and for a tensor larger than the file.

    A tensor in a file may claim any size, with strides of 0.
    """
    most = os.path.getsize(path) if os.path.isfile(path) else math.inf
    for tensor in tensors_in(state):
        if tensor.layout != torch.strided or tensor.is_meta or tensor.numel() > most:
            shape = tuple(tensor.shape)
            raise CheckpointError(
                f"{path}: has a tensor of shape {shape}, which a file of {most:,} bytes does not hold"
            )
    for options in model_options(state):
        given = vars(options) if isinstance(options, argparse.Namespace) else options
        for name in given:
            if str(name).endswith("layers") and isinstance(given[name], int) and given[name] > MOST_LAYERS:
                raise CheckpointError(f"{path}: {name}={given[name]}: must be <= {MOST_LAYERS}")


def tensors_in(state: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested dictionaries and lists, in whatever depth, which may hold themselves."""
    seen, waiting = set(), [state]
    while waiting:
        one = waiting.pop()
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, dict | list | tuple) and id(one) not in seen:
            seen.add(id(one))
            waiting += one.values() if isinstance(one, dict) else one


def model_options(state: dict[str, Any]) -> list[Any]:
    """The model's options in a checkpoint: in a Namespace, a dictionary or fairseq's configuration."""
    return [options for options in (state.get("args"), (state.get("cfg") or {}).get("model")) if options]


def require_types(state: dict[str, Any]) -> None:
    """Raises TypeError if a part of a checkpoint has another type than those that fairseq writes."""
    groups = dict, argparse.Namespace, type(None)
    parts: dict[str, Any] = {"extra_state": dict, "optimizer_history": list, "args": groups, "cfg": (dict, type(None))}
    parts |= {"dictionaries": dict}  # see fairseq_repairs.corpus
    for name, kind in parts.items():
        if name in state and not isinstance(state[name], kind):
            raise TypeError(f"{name} must not be a {type(state[name]).__name__}")
    for name, group in (state.get("cfg") or {}).items():
        if not isinstance(group, groups):
            raise TypeError(f"cfg.{name} must not be a {type(group).__name__}")
    for name, tensor in state["model"].items():
        if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
            raise TypeError(f"model: {str(name)[:100]!r} must name a tensor, not a {type(tensor).__name__}")


def load_safely(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint as it was written, with its tensors on the CPU.

    Raises:
        OSError: there is no such file.
        ValueError: it is not a plain file.
        CheckpointError: it is a file, but not an intact checkpoint; names the type if it refers to one that is not
            allowed. Also a ValueError.
    """
    with _explained(path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
            raise TypeError("has no state dict under model")
        require_types(state)
    require_bounded(path, state)
    return state


@contextlib.contextmanager
def _explained(path: str | Path) -> Iterator[None]:
    """Turns the safe loader's errors into a CheckpointError that names the file; rejects what is not a plain file."""
    # Allow the types again: leaving torch's safe_globals disallows its types even if they were allowed before, and timm
    # uses it for argparse.Namespace whenever it reads a checkpoint.
    allow_checkpoint_types()
    require_plain(path)
    try:
        yield
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        rejected = re.search(r"GLOBAL (\S+)", str(error))
        if rejected is None:
            raise CheckpointError(f"{path}: not a checkpoint that can be read safely; nothing in it was run") from None
        raise CheckpointError(
            f"{path}: rejected, because it refers to {rejected[1]}, which fairseq's own checkpoints never hold; "
            "nothing in it was run. Reading an untrusted file can run any code, so do not load this one unless you "
            "know why that name is there."
        ) from None
    except ValueError as error:  # of a damaged file, or of an option
        wrong = damage(path) if os.path.isfile(path) else None
        if wrong is None and not isinstance(error, UnicodeDecodeError):
            raise
        raise CheckpointError(f"{path}: not an intact checkpoint: {wrong or error}") from None
    except (AssertionError, AttributeError, EOFError, LookupError, RuntimeError, TypeError) as error:
        wrong = damage(path) if isinstance(error, EOFError | RuntimeError) else None
        if wrong is not None:
            raise CheckpointError(f"{path}: not an intact checkpoint: {wrong}") from None
        raise CheckpointError(f"{path}: not a checkpoint of fairseq ({type(error).__name__}: {error})") from error


@instead(Trainer, "load_checkpoint")
def explain_state_of_other_parameters(load: Callable, trainer: Trainer, filename: str, *args, **kwargs) -> Any:
    """Names the options with which training resumes with other parameters, such as those of another depth.

    torch rejects the optimizer's state in words that name neither the file nor a way out. Also names a file in which
    parts have other types than those that fairseq writes.
    """
    try:
        return load(trainer, filename, *args, **kwargs)
    except (AssertionError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{filename}: cannot be resumed from: {type(error).__name__}: {error}") from error
    except ValueError as error:
        if "loaded state dict contains a parameter group" not in str(error):
            raise
        raise ValueError(
            f"{filename}: its optimizer state belongs to other parameters, such as those of another depth or order; "
            "use --reset-optimizer or, in a new --save-dir and without --restore-file, --finetune-from-model"
        ) from error
