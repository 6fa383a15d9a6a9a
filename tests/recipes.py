"""The recipes as tests see them: their programs on the path, their tables, and the commands that they print."""

import os
import shlex
import sys
from pathlib import Path

from tests import cli

RECIPES = cli.REPOSITORY / "recipes"
sys.path[:0] = [str(RECIPES / name) for name in ("", "records", "metrics", "figures", "data")]


def recipe(script: str | Path, *arguments: str, fails: bool = False, **settings: str) -> str:
    """Run a recipe with these settings of its environment and return what it printed."""
    path = os.pathsep.join([str(cli.SCRIPTS), os.environ["PATH"]])
    return cli.run("bash", RECIPES / script, *arguments, fails=fails, env={"PATH": path, **settings})


def commands(script: str | Path, *arguments: str, **settings: str) -> list[list[str]]:
    """The commands that a recipe would carry out."""
    lines = recipe(script, *arguments, DRY_RUN="1", **settings).split("\n")
    return [shlex.split(line) for line in lines if " " in line and not line.startswith("# ")]
