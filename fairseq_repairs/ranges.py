"""Rejects values on which fairseq fails, by the option's name and before any work."""

import json
import math
from collections.abc import Callable
from typing import Any

from fairseq import options
from fairseq.optim.lr_scheduler.cosine_lr_scheduler import CosineLRSchedule
from fairseq.trainer import Trainer

from fairseq_repairs.foreign import literal
from fairseq_repairs.replace import after, before, in_groups

POSITIVE = (lambda value: value >= 1, "must be >= 1")
INTERVAL = (lambda value: value != 0, "must be >= 1; a large number, such as 1000000, turns it off")


def _value(given: Any) -> Any:
    return literal(given) if isinstance(given, str) else given


# Values that break a rule fail in fairseq. Others, --clip-norm -1 or --batch-size 0, mean no limit there.
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(["beam", "workers", "tokens_per_sample"], POSITIVE),
    **dict.fromkeys(["save_interval", "validate_interval", "log_interval"], INTERVAL),
    "keep_interval_updates_pattern": (lambda value: value != 0, "must be >= 1, or -1 for none"),
    "nbest": (lambda value: value != 0, "must not be 0"),
    "num_workers": (lambda value: value >= 0, "must be >= 0"),
    "update_freq": (lambda values: min(values) >= 1, "must be >= 1 for each epoch"),
    "label_smoothing": (lambda value: not math.isnan(value), "must be a number"),
    "adam_betas": (lambda betas: len(_value(betas)) == 2, "must be two numbers, such as (0.9, 0.98)"),
    **dict.fromkeys(
        ["model_overrides", "optimizer_overrides"],
        (lambda given: isinstance(_value(given), dict), "must be a dictionary of literals"),
    ),
    **dict.fromkeys(
        ["eval_bleu_args", "eval_bleu_detok_args"],
        (lambda text: isinstance(json.loads(text), dict), 'must be JSON, such as {"beam": 4}'),
    ),
}
RULES_OF_TRAINING = {"max_tokens": POSITIVE}  # in other commands 0 and -1 mean no limit


@after(options, "parse_args_and_arch")
def require_values_in_range(parsed: Any, *unused, **other) -> None:
    """Rejects values outside their range (`RULES`) by the option's name.

    fairseq divides by zero, names no option, or fails after the first epoch.
    """
    args = parsed[0] if isinstance(parsed, tuple) else parsed
    check_ranges(args, trains=hasattr(args, "max_update"))


@after(options, "parse_args_and_arch")
def end_polynomial_decay_with_the_training(parsed: Any, *unused, **other) -> None:
    """Lets `polynomial_decay` end at `--max-update` where no `--total-num-update` is given.

    That is the default which fairseq declares, and fails to read.
    """
    args = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(args, "lr_scheduler", None) == "polynomial_decay" and args.total_num_update is None:
        if args.max_update <= 0:
            raise ValueError("--lr-scheduler polynomial_decay: needs --total-num-update or --max-update")
        args.total_num_update = float(args.max_update)


@before(Trainer, "__init__")
def require_configured_values_in_range(self, cfg: Any, *unused, **other) -> None:
    """The same for fairseq-hydra-train, which parses no arguments."""
    for group in in_groups(cfg).values():
        check_ranges(group, trains=True)


@before("fairseq_cli.preprocess", "main")
def require_values_of_preprocessing_in_range(args: Any) -> None:
    """The same for fairseq-preprocess, which has a parser of its own."""
    check_ranges(args, trains=False)


@after(CosineLRSchedule, "__init__")
def end_with_the_warm_up(built: None, schedule: CosineLRSchedule, *args, **kwargs) -> None:
    """Lets a cosine that is nothing but warm-up, `--warmup-updates` equal to `--max-update`, end at its peak.

    fairseq divides by the length of the cosine, 0, after the last update, and saves nothing.
    """
    schedule.period = schedule.period or 1


def check_ranges(args: Any, trains: bool) -> None:
    """Raises ValueError for an option that breaks its rule; missing options and None break none."""
    for name, (holds, rule) in (RULES | (RULES_OF_TRAINING if trains else {})).items():
        value = getattr(args, name, None)
        if value is not None and not _holds(holds, value):
            raise ValueError(f"--{name.replace('_', '-')} {value}: {rule}")
    window, tokens = (getattr(args, name, None) or 0 for name in ("context_window", "tokens_per_sample"))
    if window > 0 and window >= tokens:
        raise ValueError(f"--context-window {window}: must be < --tokens-per-sample {tokens}")
    schedulers = getattr(args, "lr_scheduler", None), getattr(args, "_name", None)
    warmup = getattr(args, "warmup_updates", 1) if "inverse_sqrt" in schedulers else 1
    if warmup < 1:
        raise ValueError(f"--warmup-updates {warmup}: must be >= 1 with --lr-scheduler inverse_sqrt")


def _holds(holds: Callable[[Any], bool], value: Any) -> bool:
    try:
        return holds(value)
    except (TypeError, ValueError):
        return False
