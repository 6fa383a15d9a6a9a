"""What commands log: no warnings about fairseq's own code, and no shared parameters that do not exist."""

import os
import sys
import warnings
from collections.abc import Callable
from operator import attrgetter

from fairseq import trainer
from torch import nn

from fairseq_repairs.commands import is_fairseq_command
from fairseq_repairs.replace import at_once, instead

# Which of fairseq's own lines newer libraries warn about: the modules that warn, or the beginning of what they say.
WARNING_MODULES = (r"hydra\.", r"fairseq\.", r"torch\.jit\.")
WARNINGS = ("\n'config' is validated", "'pin_memory' argument is set as true", "`broadcast_buffers` is deprecated")


def is_chosen() -> bool:
    """Whether the user chose what a command logs, by LOGLEVEL or `--log-format`."""
    return "LOGLEVEL" in os.environ or any(word.partition("=")[0] == "--log-format" for word in sys.argv)


@at_once
def hide_warnings_about_fairseq() -> None:
    """Hides what torch and hydra say about fairseq's code, 24 lines before a training, which no user can change.

    Setting LOGLEVEL, `--log-format` or Python's PYTHONWARNINGS shows them again.
    """
    if not is_fairseq_command() or is_chosen() or sys.warnoptions:
        return
    for module in WARNING_MODULES:
        for category in (DeprecationWarning, FutureWarning, UserWarning):
            warnings.filterwarnings("ignore", category=category, module=module)
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message=message)


@instead(trainer, "_catalog_shared_params")
def ignore_absent_parameters(
    catalog: Callable, module: nn.Module, memo: dict | None = None, prefix: str = ""
) -> list[list[str]] | None:
    """Leaves out parameters that are None, such as absent biases: fairseq logs them all as one shared parameter."""
    found = catalog(module, memo, prefix)
    return found and [paths for paths in found if attrgetter(paths[0])(module) is not None]
