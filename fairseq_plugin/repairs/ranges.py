"""Rejects numbers outside their range by the option's name, before any work."""

import json
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq_plugin.repairs.foreign import literal
from fairseq_plugin.repairs.replace import call_with_options

# fairseq reads the numbers of validation as strings.
POSITIVE = (lambda value: float(value) >= 1, "must be >= 1")
NOT_NEGATIVE = (lambda value: value >= 0, "must be >= 0")


def _betas(text: Any) -> bool:
    value = literal(text) if isinstance(text, str) else text
    return len(value) == 2 and all(0 <= beta < 1 for beta in value)


def _json_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(["batch_size", "batch_size_valid", "max_tokens", "max_tokens_valid"], POSITIVE),
    **dict.fromkeys(["beam", "nbest", "workers"], POSITIVE),
    **dict.fromkeys(["num_workers", "warmup_updates", "clip_norm"], NOT_NEGATIVE),
    "update_freq": (lambda values: min(values) >= 1, "must be >= 1 for each epoch"),
    "label_smoothing": (lambda value: 0 <= value < 1, "must be in 0 .. 1, 1 excluded"),
    "adam_betas": (_betas, "must be two numbers in 0 .. 1, 1 excluded, such as (0.9, 0.98)"),
    **dict.fromkeys(["eval_bleu_args", "eval_bleu_detok_args"], (_json_object, 'must be JSON, such as {"beam": 4}')),
}


def require_numbers_in_range() -> None:
    """Rejects numbers outside their range (``RULES``) by the option's name.

    fairseq divides by zero, ignores a batch size of 0, or fails after the first epoch.
    """
    call_with_options(check_ranges)


def check_ranges(args: Namespace) -> None:
    """Raises ValueError for an option that breaks its rule; missing options and None break none."""
    for name, (holds, rule) in RULES.items():
        value = getattr(args, name, None)
        if value is not None and not _holds(holds, value):
            raise ValueError(f"--{name.replace('_', '-')} {value}: {rule}")
    if hasattr(args, "nbest") and args.nbest > args.beam:
        raise ValueError(f"--nbest {args.nbest}: must be <= --beam {args.beam}")
    window, tokens = (getattr(args, name, None) or 0 for name in ("context_window", "tokens_per_sample"))
    if window and not 0 <= window < tokens:
        raise ValueError(f"--context-window {window}: must be >= 0 and < --tokens-per-sample {tokens}")


def _holds(holds: Callable[[Any], bool], value: Any) -> bool:
    try:
        return holds(value)
    except (TypeError, ValueError):
        return False
