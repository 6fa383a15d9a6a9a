"""Errors of the command line: what was meant, in place of every name that there is."""

import difflib
import functools
import logging
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from typing import Any

from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

from fairseq_repairs.replace import after, before

logger = logging.getLogger(__name__)

DEFAULT_RATE = [0.25]
FEW = 8  # names that a line lists


@before(options, "parse_args_and_arch")
def suggest_names(parser: ArgumentParser, *args, **kwargs) -> None:
    """Names what may be meant by a misspelt option or value, and what has an option that this model lacks.

    argparse prints all options and, for a misspelt `--arch`, all models.
    """
    parser.error = functools.partial(_fail, parser)  # type: ignore[method-assign]


def _fail(parser: ArgumentParser, message: str) -> None:
    choice = re.fullmatch(r"argument (\S+): invalid choice: '?([^']*?)'? \(choose from (.*)\)", message, re.S)
    unknown = re.match(r"unrecognized arguments: .*?(?<!\S)(--[\w-]+)", message)
    if choice:
        option, given, names = choice.groups()
        known = names.replace("'", "").split(", ")
        said = f"{option} {given}: must be one of {', '.join(known)}"
        if len(known) > FEW:
            said = f"{option} {given}: there is no such name{_near(given, known) or f'; --help lists all {len(known)}'}"
    elif unknown:
        said = f"{message}: {_explained(parser, unknown[1])}"
    else:
        ArgumentParser.error(parser, message)
    parser.exit(2, f"{parser.prog}: error: {said}\n")


def _near(given: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(given, known)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _explained(parser: ArgumentParser, option: str) -> str:
    """What has an option that this command line does not have."""
    owners = [f"--{group} {_some(names)}" for group, names in _owners(option) if names]
    if owners:
        return f"{option} is an option of {', '.join(owners)}"
    return f"{option} is not an option{_near(option, parser._option_string_actions)}"


def _owners(option: str) -> Iterator[tuple[str, list[str]]]:
    """The names of each group, such as "arch", that have an option."""
    groups = {"arch": ARCH_MODEL_REGISTRY, "task": TASK_REGISTRY}
    groups |= {name.replace("_", "-"): registry["registry"] for name, registry in REGISTRIES.items()}
    for group, kinds in groups.items():
        having = {kind for kind in set(kinds.values()) if option in parser_of(kind)._option_string_actions}
        yield group, [name for name, kind in kinds.items() if kind in having]


def parser_of(kind: Any) -> ArgumentParser:
    """A parser of only the options of a model, task, criterion, or the like."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    if hasattr(kind, "add_args"):
        kind.add_args(parser)
    elif found := getattr(kind, "__dataclass", None):
        options.gen_parser_from_dataclass(parser, found())
    return parser


def _some(names: list[str]) -> str:
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")


@after(options, "parse_args_and_arch")
def warn_of_default_rate(parsed: Any, parser: Any, input_args: list[str] | None = None, *others, **kwargs) -> None:
    """Warns of a training with Adam that begins at fairseq's default rate, 0.25: its loss does not go down."""
    args = parsed[0] if isinstance(parsed, tuple) else parsed
    words = sys.argv[1:] if input_args is None else input_args
    given = any(word.partition("=")[0] == "--lr" for word in words)
    if "adam" in (getattr(args, "optimizer", None) or "") and args.lr == DEFAULT_RATE and not given:
        logger.warning(
            f"--lr was not given: --optimizer {args.optimizer} begins at fairseq's default of 0.25, with which no "
            "transformer learns; 5e-4 is usual"
        )
