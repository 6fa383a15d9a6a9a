"""Types of arguments that several metrics share."""

import argparse
from pathlib import Path


def named_file(text: str) -> tuple[str, Path]:
    """Parses NAME=FILE; NAME may be a path, too."""
    name, _, path = text.partition("=")
    if not (name and path):
        raise argparse.ArgumentTypeError(f"{text}: must have a value before and after =")
    return name, Path(path)
