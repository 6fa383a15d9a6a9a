"""Error messages of commands: one line that names the cause."""

import json
import logging
import os
import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.modules import AdaptiveSoftmax
from fairseq.trainer import Trainer
from omegaconf import MissingMandatoryValue

from fairseq_repairs.arguments import FEW, parser_of
from fairseq_repairs.checkpoints import model_options
from fairseq_repairs.commands import is_fairseq_command
from fairseq_repairs.replace import after, at_once, before, in_groups, instead

logger = logging.getLogger(__name__)

TRACEBACK = "RECURRENCE_TRACEBACK"  # "1" prints the traceback too
LONGEST = 600  # characters
WORKER = " in DataLoader worker process "  # in the first line of an error that torch passes on from a data worker
# torch's words for an embedding with another number of symbols.
EMBEDDING = re.compile(
    r"size mismatch for (?P<side>\w*)[\w.]*embed_tokens\.weight: .*?\[(?P<there>\d+)(?P<width>, \d+)\].*?"
    r"\[(?P<here>\d+)(?P=width)\]"
)
TRAINED: list[Any] = []  # the model's options in the checkpoint that is being loaded
RATES = r".*dropout"
# Options of models without weights that change no output either, or that shapes of weights tell.
MAY_DIFFER = rf"{RATES}|.*_(layerdrop|path|to_keep|from|init|profile|range|activations)|(max|min|quant)_.*|compile"


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
    if WORKER in text.partition("\n")[0]:  # its message ends with the worker's traceback
        text = _end_of_traceback(text)
    if isinstance(error, MissingMandatoryValue):  # as of --bpe subword_nmt
        text = f"--{str(error.key).replace('_', '-')}: must be given"
    elif isinstance(error, torch.multiprocessing.ProcessRaisedException):  # its message ends with the rank's traceback
        text = _end_of_traceback(text)
    elif isinstance(error, IndexError) and text == "index out of range in self":  # of an embedding
        text = "the data have a symbol beyond the dictionary: damaged, or binarized with another one?"
    elif "device-side assert triggered" in text:  # of the same and of other indices, on a GPU
        text = (
            "an index is out of range on the GPU: do the data have a symbol beyond the dictionary, because they are "
            "damaged, or binarized with another one? --cpu says more"
        )
    elif not isinstance(error, ArithmeticError | OSError | ValueError) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if type(error) is Exception and error.__context__:  # fairseq's, that a checkpoint's weights do not fit: which?
        text += f" ({without_lists(error.__context__)})"
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def _end_of_traceback(text: str) -> str:
    """The last line, without the error's type."""
    return re.sub(r"^[\w.]*?(\w+(?:Error|Exception|Interrupt)): ", "", text.strip().splitlines()[-1])


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
        wrong = _other_dictionary(str(error)) or f"does not fit its model: {' '.join(wrong.split())}"
        raise ValueError(f"{os.pathsep.join(map(str, filenames))}: {wrong}") from error


@instead(Trainer, "load_checkpoint")
def name_cause_of_weights_that_do_not_fit(load: Callable, trainer: Trainer, filename: str, *args, **kwargs) -> Any:
    """Names the dictionary or the options because of which a checkpoint does not fit the model that is trained.

    Warns of options that differ although the weights fit: the number of heads, for one, has no weights.
    """
    TRAINED.clear()
    try:
        extra = load(trainer, filename, *args, **kwargs)
    except Exception as error:
        cause = error.__context__
        if type(error) is not Exception or " loading state_dict for " not in str(cause):
            raise
        wrong = _other_dictionary(str(cause))
        if wrong is None and TRAINED and (other := _differing(TRAINED[-1], trainer.cfg.model, RATES)):
            wrong = f"its weights are of another model than this command's: it was trained with {other}"
        if wrong is None:
            raise
        raise ValueError(f"{filename}: {wrong}") from cause
    if extra is not None and TRAINED and (other := _differing(TRAINED[-1], trainer.cfg.model, MAY_DIFFER)):
        logger.warning(f"{filename}: its weights fit, but it was trained with {other}")
    return extra


@after(checkpoint_utils, "load_checkpoint_to_cpu")
def note_options(state: dict[str, Any], *args, **kwargs) -> None:
    """Notes with which options the model of a checkpoint was trained."""
    TRAINED.extend(model_options(state)[-1:])


def _other_dictionary(said: str) -> str | None:
    """What to do if torch names an embedding with another number of symbols."""
    found = EMBEDDING.search(said)
    if found is None:
        return None
    side = {"encoder": " source", "decoder": " target"}.get(found["side"], "")
    return (
        f"was trained with a{side} dictionary of {int(found['there']):,} symbols, but the data's has "
        f"{int(found['here']):,}: binarize them with the dictionary of its training (--srcdict, --tgtdict)"
    )


def _differing(trained: Any, ours: Any, left_out: str) -> str:
    """The options of the model with which a checkpoint was trained and that now differ, but for those that match."""
    theirs, given = _as_dictionary(trained), _as_dictionary(ours)
    arch = theirs.get("arch") or theirs.get("_name")
    known = vars(parser_of(ARCH_MODEL_REGISTRY.get(arch)).parse_args([]))
    names = ["arch", *(name for name in known if not re.fullmatch(left_out, name))]
    other = [name for name in names if (theirs.get(name) or None) != (given.get(name) or None)]
    return ", ".join(f"--{name.replace('_', '-')} {theirs.get(name)}, now {given.get(name)}" for name in other[:FEW])


def _as_dictionary(options: Any) -> dict[str, Any]:
    return vars(options) if isinstance(options, Namespace) else dict(options)


@instead(Trainer, "train_step")
def name_nonfinite_updates(step: Callable, trainer: Trainer, *args, **kwargs) -> Any:
    """Reports a loss or gradient that is not finite; fairseq searches for the module, and the search fails."""
    try:
        return step(trainer, *args, **kwargs)
    except (FloatingPointError, StopIteration) as error:
        if "inconsistent between workers" in f"{error} {error.__context__}":
            raise
        raise FloatingPointError(
            f"update {trainer.get_num_updates() + 1}: the loss or a gradient is no longer a finite number: lower --lr "
            f"or set --clip-norm ({error.__context__ or error})"
        ) from error


@before(Trainer, "__init__")
def require_adaptive_loss(self, cfg, task, model, criterion, *args, **kwargs) -> None:
    """Requires an adaptive softmax and its loss to be used together; fairseq fails in the first update.

    A criterion that is not fairseq's own may be able to train one, too.
    """
    softmax = getattr(getattr(model, "decoder", None), "adaptive_softmax", None)
    if isinstance(criterion, AdaptiveLoss):
        if softmax is None:
            raise ValueError("--criterion adaptive_loss: needs --adaptive-softmax-cutoff")
    elif isinstance(softmax, AdaptiveSoftmax) and type(criterion).__module__.startswith("fairseq."):
        name = in_groups(cfg).criterion._name
        raise ValueError(f"--criterion {name}: must be adaptive_loss with --adaptive-softmax-cutoff")
