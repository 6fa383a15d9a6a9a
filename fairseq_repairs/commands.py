"""fairseq's commands: their log, help, and options with wrong defaults."""

import contextlib
import importlib.util
import itertools
import logging
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import options, utils
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer.transformer_config import EncDecBaseConfig

from fairseq_repairs.replace import after, at_once, before, instead


def is_fairseq_command() -> bool:
    """Whether this process runs one of fairseq's commands, by its script or by `python -m`."""
    command = Path(sys.argv[0])
    return command.name.startswith("fairseq-") or command.parent.name == "fairseq_cli"


@at_once
def restore_cli_logging() -> None:
    """Configures a fairseq command's log again if another library configured logging first.

    iopath does so while fairseq is imported: `fairseq-eval-lm` then prints no perplexity, and `preprocess.log` stays
    empty. One of fairseq's own model files sets level DEBUG, and every command prints debugging output. Ranks above 0
    of a distributed run are quiet on purpose and stay so.
    """
    root = logging.getLogger()
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if is_fairseq_command() and not distributed and root.handlers and root.level != logging.INFO:
        utils.reset_logging()


@after(options, "parse_args_and_arch")
def allow_bf16_without_xla(parsed: Any, parser: Any, input_args: list[str] | None = None, *others, **kwargs) -> None:
    """Lets `--bf16` train on the CPU and on CUDA; fairseq sets `tpu` with it. An explicit `--tpu` is kept."""
    args = parsed[0] if isinstance(parsed, tuple) else parsed
    implied = getattr(args, "bf16", False) and "--tpu" not in (sys.argv if input_args is None else input_args)
    if implied and importlib.util.find_spec("torch_xla") is None:
        args.tpu = False


@at_once
def pass_layers_to_keep_as_text() -> None:
    """Lets `--encoder-layers-to-keep 0,2` and the decoder's train: the models split a text, and got a list."""
    EncDecBaseConfig.__dataclass_fields__["layers_to_keep"].type = str


@instead(options, "parse_args_and_arch")
def show_help_of_the_architecture(
    parse: Callable, parser: ArgumentParser, input_args: list[str] | None = None, *args, modify_parser=None, **kwargs
) -> Any:
    """Makes `--help` list the options of the given `--arch` and `--task`, which fairseq's parser adds later."""
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
            _show_defaults(parser, others)
            parser.print_help()
            parser.exit()

    return parse(parser, others, *args, modify_parser=modify_then_help, **kwargs)


def _show_defaults(parser: ArgumentParser, words: Sequence[str]) -> None:
    """Adds the given architecture's defaults to the help of its options, for which fairseq's parser has none."""
    reader, preset = ArgumentParser(add_help=False), Namespace()
    reader.add_argument("--arch", "-a")
    arch = reader.parse_known_args(words)[0].arch
    with contextlib.suppress(AttributeError):  # an architecture that reads an option before it sets it
        ARCH_CONFIG_REGISTRY.get(arch, vars)(preset)
    for action in parser._actions:
        value, said = getattr(preset, action.dest, None), action.help or "default"
        if value not in (None, False, "") and "default" not in said and action.default in (None, SUPPRESS):
            action.help += f" (default: {value})".replace("%", "%%")


@before(options, "parse_args_and_arch")
def default_validation_task(parser: ArgumentParser, *args, **kwargs) -> None:
    """Lets `fairseq-validate` run without `--task`, for which its parser has no default (KeyError: None).

    Without it, the options of `translation` are accepted. The task that validates is always the checkpoint's.
    """
    if parser.get_default("task") is None and "--task" in parser.format_usage():
        parser.set_defaults(task="translation")
