"""The recipes as tests call them: what they print, and the commands that they would carry out."""

import shlex
from pathlib import Path

import rows

from tests.support import cli

RECIPES = cli.REPOSITORY / "recipes"
PAPERS = list(rows.papers())
TABLES = [table for paper in PAPERS for table in paper.tables.values()]
RUNS = [run for table in TABLES for run in table.runs.values()]


def name(value: object) -> str:
    """How pytest calls a table, or another value."""
    return f"{value.paper.folder.name}/{value.key}" if isinstance(value, rows.Table) else str(value)


def recipe(script: str | Path, *arguments: str, fails: bool = False, **settings: str) -> str:
    """Run a recipe with these settings of its environment and return what it printed."""
    return cli.run("bash", RECIPES / script, *arguments, fails=fails, env={"PATH": cli.search_path(), **settings})


def commands(script: str | Path, *arguments: str, **settings: str) -> list[list[str]]:
    """The commands that a recipe would carry out."""
    lines = recipe(script, *arguments, DRY_RUN="1", **settings).split("\n")
    return [shlex.split(line) for line in lines if " " in line and not line.startswith("# ")]
