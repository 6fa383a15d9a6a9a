"""The command lines of the metrics, and types of arguments that several of them share."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path


def parser(description: str, **options) -> argparse.ArgumentParser:
    """A command line whose help shows the description as it is written."""
    shown = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=description, formatter_class=shown, **options)


def print_scores(command_line: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], dict]) -> None:
    """Prints what is measured by the given arguments as JSON; bad input ends the program with one line."""
    try:
        scores = measure(command_line.parse_args())
    except (OSError, ValueError) as error:
        command_line.error(str(error))
    print(json.dumps(scores, indent=2))


def named_file(text: str) -> tuple[str, Path]:
    """Parses NAME=FILE; NAME may be a path, too."""
    name, _, path = text.partition("=")
    if not (name and path):
        raise argparse.ArgumentTypeError(f"{text}: must have a value before and after =")
    return name, Path(path)
