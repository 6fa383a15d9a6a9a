"""Options and commands of earlier versions: whoever gives one gets a single line that says what to use instead."""

import argparse
from collections.abc import Mapping
from typing import Any

from recurrence.errors import shown

# What to use instead of loops that begin late in training.
LATE_LOOPS = "train with all passes from the start; late loops were never ahead"
# What to use instead of a loop over a trained model's layers with a low-rank term for each pass.
RELAXED_SHARING = "train a looped model from scratch, which in translation was better at half the size"


class Removed(argparse.Action):
    """An option, or the arguments of a command, that ends the program with that line; the help does not show it.

    Args:
        instead: what to use instead.
        **about: what argparse gives its actions.
    """

    reason = "was removed:"

    def __init__(self, instead: str, **about: Any):
        super().__init__(**{"nargs": "?", **about, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS})
        self.instead = instead

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        name = "" if option is None else f"{shown(option, values)}: "
        parser.exit(2, f"{parser.prog}: error: {name}{self.reason} {self.instead}\n")


def reject_options(parser: argparse._ActionsContainer, removed: Mapping[str, str]) -> None:
    """Rejects removed options of a parser. `removed`: what to use instead, by the name that each had in Python."""
    for name, instead in removed.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action=Removed, instead=instead)


def reject_command(commands: argparse._SubParsersAction, name: str, instead: str) -> None:
    """Rejects a removed command of a parser, and says what to use instead."""
    old = commands.add_parser(name, add_help=False)
    old.add_argument("arguments", action=Removed, instead=instead, nargs=argparse.REMAINDER)
