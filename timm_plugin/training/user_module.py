"""Models of the user's own, from a file or a package, as fairseq's --user-dir imports them."""

import argparse
import importlib
import sys
import traceback
from pathlib import Path


def add_user_module(parser: argparse._ActionsContainer) -> None:
    """Adds --user-module, which imports as soon as it is read."""
    help = "a Python file, or the folder of a package, that registers models with timm"
    parser.add_argument("--user-module", type=_imported, metavar="FILE_OR_FOLDER", help=help)


def _imported(text: str) -> str:
    """Imports a module, with its folder on the path, unless that has been done; returns its name as given."""
    path = Path(text).resolve()
    file = path / "__init__.py" if path.is_dir() else path
    if not (file.is_file() and file.suffix == ".py"):
        raise argparse.ArgumentTypeError(f"{text}: must be a Python file, or a folder with an __init__.py")
    name = path.name.removesuffix(".py")
    if "." in name:
        raise argparse.ArgumentTypeError(f"{text}: must have no dot in its name but that of .py")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        found = importlib.import_module(name)
    except Exception as error:  # of some, argparse would not tell the reason
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "<frozen" not in frame.filename]
        place = f"{frames[-1].filename}:{frames[-1].lineno}"
        raise argparse.ArgumentTypeError(f"{text}: {type(error).__name__}: {error} ({place})") from None
    if Path(found.__file__ or "") != file:
        raise argparse.ArgumentTypeError(f"{text}: must have another name, as {name} is {found.__file__}")
    return text
