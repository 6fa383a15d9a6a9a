"""Error messages of commands: one line that names the cause."""

import os
import re
import sys
from argparse import Namespace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.trainer import Trainer
from omegaconf import DictConfig, OmegaConf

from fairseq_plugin.repairs.commands import is_fairseq_command
from fairseq_plugin.repairs.foreign import literal
from fairseq_plugin.repairs.replace import call_before, call_with_options, explain_errors
from recurrence.errors import report_to_torchrun

TRACEBACK = "RECURRENCE_TRACEBACK"  # "1" prints the traceback too
LONGEST = 600  # characters
GIVEN: set[str] = set()  # the names in this command's --model-overrides


def print_errors_in_one_line() -> None:
    """Ends a failing command, fairseq's or ours, with one line; ``RECURRENCE_TRACEBACK=1`` prints the traceback too."""
    is_ours = sys.argv[0] == "-m"  # while `python -m` imports the package of the module that it will run
    if (is_fairseq_command() or is_ours) and sys.excepthook is sys.__excepthook__:
        sys.excepthook = print_one_line
        os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise hydra prints fairseq-hydra-train's errors itself


def print_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The exception hook of a command: one line on stderr, and for torchrun's report."""
    if os.environ.get(TRACEBACK) == "1" or issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    if not issubclass(kind, KeyboardInterrupt):
        hint = "" if os.environ.get(TRACEBACK) == "1" else f" ({TRACEBACK}=1 shows where)"
        line = f"{Path(sys.argv[0]).name}: error: {one_line(error)}{hint}"
        print(line, file=sys.stderr)
        report_to_torchrun(line)


def one_line(error: BaseException) -> str:
    """An error's message in one line, with the error's type if the message is unclear without it."""
    text = str(error)
    if isinstance(error, torch.multiprocessing.ProcessRaisedException):  # its message ends with the rank's traceback
        text = re.sub(r"^[\w.]*?(\w+(?:Error|Exception|Interrupt)): ", "", text.strip().splitlines()[-1])
    elif not isinstance(error, ArithmeticError | OSError | ValueError) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def require_literal_overrides() -> None:
    """Rejects ``--model-overrides`` that is not a dictionary by the option's name, before anything is loaded."""
    call_with_options(_check_overrides)


def _check_overrides(args: Namespace) -> None:
    for option in ("model_overrides", "optimizer_overrides"):
        text = getattr(args, option, None) or "{}"
        try:
            value = literal(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            name = option.replace("_", "-")
            raise ValueError(f"--{name} {text}: must be a dictionary of literals, such as {{'dropout': 0.1}}")


def require_known_overrides() -> None:
    """Rejects names in ``--model-overrides`` that one of this plugin's models does not have; fairseq ignores them."""
    call_with_options(_note_overrides)
    call_before(checkpoint_utils, "overwrite_args_by_name", _check_names)


def _note_overrides(args: Namespace) -> None:
    GIVEN.clear()
    if not getattr(args, "lm_path", None):  # which gets the overrides of the translation models, too
        GIVEN.update(literal(getattr(args, "model_overrides", None) or "{}"))


def _check_names(cfg: DictConfig, overrides: dict[str, Any]) -> None:
    groups: Any = OmegaConf.to_container(cfg)
    groups = {name: vars(group) if isinstance(group, Namespace) else group for name, group in groups.items()}
    model = groups.get("model") or {}
    arch = model.get("arch") or model.get("_name")
    options = getattr(ARCH_MODEL_REGISTRY.get(arch), "options", None)
    if options is None:
        return  # fairseq's own
    known = {*groups, *options.known()}.union(*(group for group in groups.values() if isinstance(group, dict)))
    unknown = sorted(GIVEN.intersection(overrides) - known)
    if unknown:
        raise ValueError(f"--model-overrides: {unknown[0]}: not an option of {arch}")


def name_nonfinite_updates() -> None:
    """Reports a loss or gradient that is not finite; fairseq searches for the module, and the search fails."""
    explain_errors(Trainer, "train_step", (FloatingPointError, StopIteration), _named_update)


def _named_update(error: Exception, trainer: Trainer, *args, **kwargs) -> ArithmeticError:
    return ArithmeticError(
        f"update {trainer.get_num_updates() + 1}: the loss or a gradient is no longer a finite number: lower --lr or "
        f"set --clip-norm ({str(error) or type(error).__name__})"
    )


def require_adaptive_loss() -> None:
    """Rejects criterions that cannot train an adaptive softmax; fairseq fails in the first backward pass."""
    call_before(Trainer, "__init__", _reject_other_criterions)


def _reject_other_criterions(self, cfg, task, model, criterion, *args, **kwargs) -> None:
    softmax = getattr(getattr(model, "decoder", None), "adaptive_softmax", None)
    if softmax is not None and not isinstance(criterion, AdaptiveLoss):
        name = cfg.criterion._name
        raise ValueError(f"--criterion {name}: must be adaptive_loss with --adaptive-softmax-cutoff")
