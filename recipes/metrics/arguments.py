"""Types of arguments that several metrics share."""

import argparse
from pathlib import Path
from typing import TypeVar

File = TypeVar("File")


def named_file(text: str) -> tuple[str, Path]:
    """Parses NAME=FILE; NAME may be a path, too."""
    name, _, path = text.partition("=")
    if not (name and path):
        raise argparse.ArgumentTypeError(f"{text}: must have a value before and after =")
    return name, Path(path)


def distinct(named: list[tuple[str, File]]) -> dict[str, File]:
    """The files by name.

    Raises:
        ValueError: if two have the same name.
    """
    names = [name for name, _ in named]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name}: is the name of {names.count(name)} files: must be of one")
    return dict(named)
