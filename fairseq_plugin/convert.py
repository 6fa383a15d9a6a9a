"""Converts checkpoints: a looped model to fairseq's own, and fairseq's to a looped one.

Usage::

    python -m fairseq_plugin.convert unshare looped.pt unshared.pt
    python -m fairseq_plugin.convert share fairseq.pt looped.pt --unique-layers 3 --strategy cycle --rank 64

See :mod:`fairseq_plugin.conversion.unshare` and :mod:`~fairseq_plugin.conversion.share`.
"""

import argparse
import logging
from collections.abc import Sequence
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_plugin.conversion import upstream
from fairseq_plugin.conversion.share import check_shareable, shared
from fairseq_plugin.conversion.unshare import unshared
from fairseq_plugin.repairs.checkpoints import load_safely
from recurrence.weights import command

logger = logging.getLogger("fairseq_plugin.convert")

LIMITS = ("max_source_positions", "max_target_positions", "tokens_per_sample")  # fairseq-hydra-train: of the task


def unshare_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint of fairseq's own architecture with the same output as a looped one.

    Raises:
        ValueError: naming the architecture if it is not one of this plugin's, or what fairseq cannot represent.
    """
    args = _model_options(state)
    family = ARCH_MODEL_REGISTRY.get(args.arch)
    if family is None or not family.__module__.startswith("fairseq_plugin."):
        raise ValueError(f"--arch {args.arch}: not an architecture of this plugin; there is nothing to unshare")
    args, weights = unshared(upstream.build(args, state["model"]), args)
    return {**_with_model(state, args, weights), "args": upstream.readable(_run_options(state, args)), "cfg": None}


def share_checkpoint(state: dict[str, Any], strategy: str, unique_layers: int, rank: int | None) -> dict[str, Any]:
    """The looped checkpoint that approximates one of fairseq's own; see :func:`fairseq_plugin.conversion.share.shared`.

    Raises:
        ValueError: naming the option and the rule, or what a looped model cannot represent.
    """
    args = _model_options(state)
    check_shareable(args)
    return _with_model(state, *shared(upstream.build(args, state["model"]), args, strategy, unique_layers, rank))


def _model_options(state: dict[str, Any]) -> argparse.Namespace:
    """The options of the model and its run, from either of the places where fairseq's versions store them.

    Raises:
        ValueError: if there are none.
    """
    args = state.get("args") or (state.get("cfg") or {}).get("model")
    if args is None:
        raise ValueError("IN: holds no options of a model, under args or cfg")
    args = argparse.Namespace(**(vars(args) if isinstance(args, argparse.Namespace) else args))
    args.arch = getattr(args, "arch", None) or args._name
    task = _group(state, "task")
    for name in LIMITS:
        if getattr(args, name, None) is None and task.get(name) is not None:
            setattr(args, name, task[name])
    return args


def _group(state: dict[str, Any], name: str) -> dict[str, Any]:
    """A group of the run's options, such as "task"; {} if there is none."""
    options = (state.get("cfg") or {}).get(name) or {}
    return vars(options) if isinstance(options, argparse.Namespace) else options


def _run_options(state: dict[str, Any], args: argparse.Namespace) -> argparse.Namespace:
    """The options of the model and of its training run under the names of fairseq's commands."""
    values: dict[str, Any] = {}
    for part in ("task", "criterion", "optimizer", "lr_scheduler") if state.get("cfg") else ():
        values |= _group(state, part)
        values[part] = values.pop("_name", None) or values.get(part)
    values |= vars(args)
    if values.get("task") == "shifted_language_modeling":  # differs only in training
        values["task"] = "language_modeling"
    return argparse.Namespace(**values)


def _with_model(state: dict[str, Any], args: argparse.Namespace, weights: dict) -> dict[str, Any]:
    """The state with new weights and options, without the optimizer and the rest of the training run."""
    vars(args).pop("_name", None)
    changed = {**state, "model": weights, "last_optimizer_state": None, "extra_state": {}}
    if state.get("args"):
        changed["args"] = args
    else:
        common = {**state["cfg"].get("common", {}), "user_dir": None}
        changed["cfg"] = {**state["cfg"], "model": args, "common": common}
    return changed


def main(arguments: Sequence[str] | None = None) -> None:
    parser, _ = command.build("python -m fairseq_plugin.convert", __doc__.split("\n")[0], "fairseq")
    args = parser.parse_args(arguments)
    try:
        if args.input.resolve() == args.output.resolve():
            raise ValueError(f"OUT={args.output}: must not be IN, which is never overwritten")
        if not args.input.is_file():
            raise ValueError(f"IN={args.input}: no such file")
        state = load_safely(args.input)
        if args.command == "unshare":
            state = unshare_checkpoint(state)
        else:
            state = share_checkpoint(state, args.strategy, args.unique_layers, args.rank)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    checkpoint_utils.torch_persistent_save(state, str(args.output))
    logger.info("wrote %s (--arch %s)", args.output, _model_options(state).arch)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.INFO, force=True)
    main()
