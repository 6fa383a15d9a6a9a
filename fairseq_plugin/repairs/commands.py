"""fairseq's commands: their log, and options with wrong defaults."""

import functools
import importlib.util
import itertools
import logging
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq import options, trainer, utils
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.speech_to_text import SpeechToTextTask
from fairseq.tasks.translation_lev import TranslationLevenshteinTask
from torch import nn

from fairseq_plugin.repairs.foreign import copies_of
from fairseq_plugin.repairs.replace import call_after, call_before, in_groups, is_known, replace


def is_fairseq_command() -> bool:
    """Whether this process runs one of fairseq's commands, by its script or by ``python -m``."""
    command = Path(sys.argv[0])
    return command.name.startswith("fairseq-") or command.parent.name == "fairseq_cli"


def restore_cli_logging() -> None:
    """Configures a fairseq command's log again if another library configured logging first.

    iopath does so while fairseq is imported: ``fairseq-eval-lm`` then prints no perplexity, and ``preprocess.log``
    stays empty. One of fairseq's own model files sets level DEBUG, and every command prints debugging output. Ranks
    above 0 of a distributed run are quiet on purpose and stay so.
    """
    root = logging.getLogger()
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if is_fairseq_command() and not distributed and root.handlers and root.level != logging.INFO:
        utils.reset_logging()


def no_xla(args: Namespace) -> None:
    """Unsets the ``tpu`` that fairseq sets with ``--bf16``, if torch_xla is not installed."""
    if getattr(args, "bf16", False) and getattr(args, "tpu", False) and importlib.util.find_spec("torch_xla") is None:
        args.tpu = False


def allow_bf16_without_xla() -> None:
    """Lets ``--bf16`` train on the CPU and on CUDA; an explicit ``--tpu`` is kept."""
    call_after(options, "parse_args_and_arch", _reset_tpu)


def _reset_tpu(parsed: Any, parser: ArgumentParser, input_args: list[str] | None = None, *args, **kwargs) -> None:
    if "--tpu" not in (sys.argv if input_args is None else input_args):
        no_xla(parsed[0] if isinstance(parsed, tuple) else parsed)


def shorten_training_log() -> None:
    """Keeps the module tree and nonexistent "shared parameters", such as absent biases, out of the log."""

    def skip_absent(catalog: Callable) -> Callable:
        def _catalog_shared_params(module, memo=None, prefix=""):
            found = catalog(module, memo, prefix)
            return found if memo is not None else [paths for paths in found if _attribute(module, paths[0]) is not None]

        return _catalog_shared_params

    replace(trainer, "_catalog_shared_params", skip_absent)
    logging.getLogger("fairseq_cli.train").addFilter(_is_no_module)


def _attribute(module: nn.Module, path: str) -> Any:
    return functools.reduce(getattr, path.split("."), module)


def _is_no_module(record: logging.LogRecord) -> bool:
    return not isinstance(record.msg, nn.Module)


def show_help_of_the_architecture() -> None:
    """Makes ``--help`` list the options of the given ``--arch`` and ``--task``, which fairseq's parser adds later."""

    def with_added_options(parse: Callable) -> Callable:
        def parse_args_and_arch(parser, input_args=None, *args, modify_parser=None, **kwargs):
            words = sys.argv[1:] if input_args is None else input_args
            others = [word for word in words if word not in ("-h", "--help")]
            if others == words or not any(word.partition("=")[0] in ("--arch", "-a", "--task") for word in words):
                return parse(parser, input_args, *args, modify_parser=modify_parser, **kwargs)
            calls = itertools.count()

            def modify_then_help(parser: ArgumentParser) -> None:
                """fairseq calls this twice: before it reads --arch and --task, and after it has added their options."""
                if modify_parser is not None:
                    modify_parser(parser)
                if next(calls):
                    parser.print_help()
                    parser.exit()

            return parse(parser, others, *args, modify_parser=modify_then_help, **kwargs)

        return parse_args_and_arch

    replace(options, "parse_args_and_arch", with_added_options)


def translate_one_shard() -> None:
    """Lets fairseq-generate translate the share of ``--shard-id`` in ``--num-shards``; it translates everything."""
    for module in copies_of("fairseq_cli.generate"):
        call_before(module, "_main", _take_share)


def _take_share(cfg: Any, *args, **kwargs) -> None:
    if cfg.dataset.num_shards > 1:
        cfg.distributed_training.distributed_world_size = cfg.dataset.num_shards
        cfg.distributed_training.distributed_rank = cfg.dataset.shard_id


def reject_useless_options() -> None:
    """Rejects options that fairseq-generate or -interactive takes but cannot use; it fails on the first batch.

    A user's own task may use them.
    """
    for module in copies_of("fairseq_cli.generate"):
        call_before(module, "_main", _check_generation)
    for module in copies_of("fairseq_cli.interactive"):
        call_before(module, "main", _check_interaction)


def _check_generation(cfg: Any, *args) -> None:
    task = TASK_REGISTRY[cfg.task._name]
    if not is_known(task):
        return
    _check_alignment(cfg, task)
    if cfg.generation.constraints:
        raise ValueError("--constraints: only for fairseq-interactive, whose input lines contain them")
    if cfg.generation.print_step and not issubclass(task, TranslationLevenshteinTask):
        raise ValueError("--print-step: needs --task translation_lev, whose models edit a sentence in steps")


def _check_interaction(cfg: Any) -> None:
    cfg = in_groups(cfg)
    task = TASK_REGISTRY[cfg.task._name]
    if is_known(task):
        _check_alignment(cfg, task)
    if cfg.generation.score_reference:
        raise ValueError("--score-reference: there is no reference to score; must be given to fairseq-generate")


def _check_alignment(cfg: Any, task: type) -> None:
    if cfg.generation.print_alignment and issubclass(task, LanguageModelingTask | SpeechToTextTask):
        raise ValueError(f"--print-alignment: --task {cfg.task._name} has no words of a source to align with")


def default_validation_task() -> None:
    """Lets ``fairseq-validate`` run without ``--task``, for which its parser has no default (KeyError: None).

    Without it, the options of ``translation`` are accepted. The task that validates is always the checkpoint's.
    """
    call_before(options, "parse_args_and_arch", _default_task)


def _default_task(parser: ArgumentParser, *args, **kwargs) -> None:
    if parser.get_default("task") is None and "--task" in parser.format_usage():
        parser.set_defaults(task="translation")
