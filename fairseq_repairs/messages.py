"""Error messages of commands: one line that names the cause."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.modules import AdaptiveSoftmax
from fairseq.trainer import Trainer

from fairseq_repairs.commands import is_fairseq_command
from fairseq_repairs.replace import at_once, before, in_groups, instead

TRACEBACK = "RECURRENCE_TRACEBACK"  # "1" prints the traceback too
LONGEST = 600  # characters


def print_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The exception hook of a command: one line on stderr, and for torchrun, which otherwise reports no cause."""
    if os.environ.get(TRACEBACK) == "1" or issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    if issubclass(kind, KeyboardInterrupt):
        return
    hint = "" if os.environ.get(TRACEBACK) == "1" else f" ({TRACEBACK}=1 shows where)"
    line = f"{Path(sys.argv[0]).name}: error: {one_line(error)}{hint}"
    print(line, file=sys.stderr)
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        Path(path).write_text(json.dumps({"message": line, "timestamp": int(time.time())}), encoding="utf-8")


@at_once
def print_errors_in_one_line() -> None:
    """Ends a failing command with one line; `RECURRENCE_TRACEBACK=1` prints the traceback too.

    That is a command of fairseq, or one that `python -m` runs from a package that imports this one.
    """
    starting = sys.argv[0] == "-m"  # while Python imports the package of the module that it will run
    if (is_fairseq_command() or starting) and sys.excepthook is sys.__excepthook__:
        sys.excepthook = print_one_line
        os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise hydra prints fairseq-hydra-train's errors itself


def one_line(error: BaseException) -> str:
    """An error's message in one line, with the error's type if the message is unclear without it."""
    text = str(error)
    if isinstance(error, torch.multiprocessing.ProcessRaisedException):  # its message ends with the rank's traceback
        text = re.sub(r"^[\w.]*?(\w+(?:Error|Exception|Interrupt)): ", "", text.strip().splitlines()[-1])
    elif not isinstance(error, ArithmeticError | OSError | ValueError) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if type(error) is Exception and error.__context__:  # fairseq's, that a checkpoint's weights do not fit: which?
        text += f" ({without_lists(error.__context__)})"
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def without_lists(error: BaseException) -> str:
    """An error's message with the first key of each list; torch lists all keys that are missing, and all others."""
    return re.sub(r'(, "[^"]*")+', lambda rest: f" and {rest[0].count(', ')} more", str(error))


@instead(checkpoint_utils, "load_model_ensemble_and_task")
def name_weights_that_do_not_fit(load: Callable, filenames: Sequence[str], *args, **kwargs) -> Any:
    """Names the checkpoint whose weights are not those of its model; torch's message lists their keys, but no file."""
    try:
        return load(filenames, *args, **kwargs)
    except RuntimeError as error:
        first, _, wrong = without_lists(error).partition("\n")
        if " loading state_dict for " not in first:
            raise
        wrong = " ".join(wrong.split())
        raise ValueError(f"{os.pathsep.join(map(str, filenames))}: does not fit its model: {wrong}") from error


@instead(Trainer, "train_step")
def name_nonfinite_updates(step: Callable, trainer: Trainer, *args, **kwargs) -> Any:
    """Reports a loss or gradient that is not finite; fairseq searches for the module, and the search fails."""
    try:
        return step(trainer, *args, **kwargs)
    except (FloatingPointError, StopIteration) as error:
        raise FloatingPointError(
            f"update {trainer.get_num_updates() + 1}: the loss or a gradient is no longer a finite number: lower --lr "
            f"or set --clip-norm ({error.__context__ or error})"
        ) from error


@before(Trainer, "__init__")
def require_adaptive_loss(self, cfg, task, model, criterion, *args, **kwargs) -> None:
    """Lets an adaptive softmax and its loss need one another; fairseq fails in the first update.

    A criterion that is not fairseq's own may be able to train one, too.
    """
    softmax = getattr(getattr(model, "decoder", None), "adaptive_softmax", None)
    if isinstance(criterion, AdaptiveLoss):
        if softmax is None:
            raise ValueError("--criterion adaptive_loss: needs --adaptive-softmax-cutoff")
    elif isinstance(softmax, AdaptiveSoftmax) and type(criterion).__module__.startswith("fairseq."):
        name = in_groups(cfg).criterion._name
        raise ValueError(f"--criterion {name}: must be adaptive_loss with --adaptive-softmax-cutoff")
