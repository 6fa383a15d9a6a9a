"""The recipes as tests call them: what they print, and the commands that they would carry out."""

import os
import shlex
from pathlib import Path

from tests.support import cli

RECIPES = cli.REPOSITORY / "recipes"


def recipe(script: str | Path, *arguments: str, fails: bool = False, **settings: str) -> str:
    """Run a recipe with these settings of its environment and return what it printed."""
    path = os.pathsep.join([str(cli.SCRIPTS), os.environ["PATH"]])
    return cli.run("bash", RECIPES / script, *arguments, fails=fails, env={"PATH": path, **settings})


def commands(script: str | Path, *arguments: str, **settings: str) -> list[list[str]]:
    """The commands that a recipe would carry out."""
    lines = recipe(script, *arguments, DRY_RUN="1", **settings).split("\n")
    return [shlex.split(line) for line in lines if " " in line and not line.startswith("# ")]
