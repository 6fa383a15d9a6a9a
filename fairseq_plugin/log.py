"""A short log of fairseq-train for whoever chose no other by LOGLEVEL or `--log-format`."""

import logging
import math
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from fairseq.logging.progress_bar import BaseProgressBar, SimpleProgressBar, TqdmProgressBar
from fairseq.trainer import Trainer

from fairseq_repairs.commands import is_fairseq_command
from fairseq_repairs.log import is_chosen
from fairseq_repairs.replace import after, instead

# How fairseq prepares each epoch; warnings stay.
QUIET = ("fairseq.data.data_utils", "fairseq.data.iterators", "fairseq.tasks.fairseq_task")
# What a line between two validations leaves out; the line of an epoch has it.
DETAILS = {"nll_loss", "ppl", "ups", "wpb", "bsz", "num_updates", "gnorm", "clip", "loss_scale"}
DETAILS |= {"train_wall", "gb_free", "wall"}


def shorten() -> None:
    """Leaves out the configuration, the module tree and how data are prepared, and shortens the lines of a training."""
    if is_chosen() or not is_fairseq_command() or Path(sys.argv[0]).stem not in ("fairseq-train", "train"):
        return
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    # The command logs its configuration and its model as they are.
    logging.getLogger("fairseq_cli.train").addFilter(lambda record: isinstance(record.msg, str))
    after(Trainer, "__init__")(_shorten_lines)


def _shorten_lines(unused: None, trainer: Trainer, *others, **more) -> None:
    limits = trainer.cfg.optimization

    @instead((SimpleProgressBar, TqdmProgressBar), "log")
    def log(original: Callable, bar: Any, stats: dict[str, Any], tag: str | None = None, step: int | None = None):
        original(bar, brief(stats, limits.max_update, updates_left(bar, limits.max_epoch)), tag=tag, step=step)


def updates_left(bar: BaseProgressBar, max_epoch: int) -> float:
    """Updates to the end of that epoch, if later ones are as long as this (`--update-freq` may change that); infinite
    if it is 0, no limit."""
    return len(bar) * (max_epoch - bar.epoch + 1) - bar.iterable.n if max_epoch else math.inf


def brief(stats: dict[str, Any], max_update: int, left: float) -> dict[str, Any]:
    """The numbers of a line: updates, losses, rate, words a second, and the time left without validations.

    Args:
        stats: fairseq's.
        max_update: fairseq's option, 0 for no limit.
        left: updates to the end of the last epoch; infinite for no limit. Without either, no time is known.
    """
    done, speed = stats.get("num_updates", 0), stats.get("ups", 0)
    last = min(max_update or math.inf, done + left)
    known = math.isfinite(last)
    line = {"update": f"{done}/{last}" if known else done}
    line |= {name: value for name, value in stats.items() if name not in DETAILS}
    if known and speed:
        line["left"] = str(timedelta(seconds=round((last - done) / speed)))
    return line
