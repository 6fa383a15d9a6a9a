"""Runs the recipes' scripts and parses the commands that they would run."""

import functools
import os
import shlex
from pathlib import Path

import pytest
import request
import results_csv
import rows
import timm
from fairseq import options

from tests.support import cli
from timm_plugin.training import options as image_options

RECIPES = cli.REPOSITORY / "recipes"
TRAINER = str(RECIPES / "train_image.py")
SCRIPTS = [path for path in RECIPES.glob("*/*.sh") if path.is_symlink() and path.resolve() == RECIPES / "table.sh"]
FIGURES = sorted(RECIPES.glob("*/figure*.sh"))
PAPERS = list(rows.papers())
TABLES = [table for paper in PAPERS for table in paper.tables.values()]
NAMED = {f"{table.folder.name}/{table.key}": table for table in TABLES}
PARSERS = {
    "fairseq-preprocess": options.get_preprocessing_parser,
    "fairseq-train": options.get_training_parser,
    "fairseq-generate": options.get_generation_parser,
    "fairseq-eval-lm": options.get_eval_lm_parser,
    "fairseq-interactive": lambda: options.get_generation_parser(interactive=True),
}
DATA_ROOT = Path(os.environ.get("DATA_ROOT") or "/nonexistent")
RUNS = [run for table in TABLES for run in table.runs.values()]


def name(value: object) -> str:
    """A test id for a table or another value."""
    return f"{value.folder.name}/{value.key}" if isinstance(value, rows.Table) else str(value)


def recipe(script: str | Path, *arguments: str, fails: bool = False, **settings: str) -> str:
    """Runs a recipe with these environment variables and returns what it printed."""
    return cli.run("bash", RECIPES / script, *arguments, fails=fails, env={"PATH": cli.search_path(), **settings})


def commands(script: str | Path, *arguments: str, **settings: str) -> list[list[str]]:
    """The commands that a recipe would run."""
    lines = recipe(script, *arguments, DRY_RUN="1", **settings).split("\n")
    return [shlex.split(line) for line in lines if " " in line and not line.startswith("# ")]


def needs(name: str) -> pytest.MarkDecorator:
    """Skips a test if DATA_ROOT does not have this file or folder."""
    return pytest.mark.skipif(not (DATA_ROOT / name).exists(), reason=f"DATA_ROOT names no folder that holds {name}")


@functools.cache
def parsed(*words: str) -> str:
    """Parses a command with its program's own parser, builds the model of a training on images, returns the program."""
    program, *flags = words[: words.index(">")] if ">" in words else words
    if program == "fairseq-preprocess":  # which has no architecture
        PARSERS[program]().parse_args(flags)
    elif program in PARSERS:
        options.parse_args_and_arch(PARSERS[program](), flags)
    elif program == "python" and flags[0] == TRAINER:
        model, kwargs = image_training(flags[1:])
        built(model, *kwargs.items())
        return "train_image"
    elif program == "python" and not flags[0].startswith("-"):
        assert Path(flags[0]).is_file()
    return program


@functools.cache
def built(model: str, *options: tuple) -> None:
    """Lets timm build a model, which many commands have in common."""
    timm.create_model(model, device="meta", num_classes=10, **dict(options))


def image_training(words: list[str]) -> tuple[str, dict]:
    """The model and its arguments in a call of train_image.py; asserts that the options keep the rules."""
    call = image_options.parser("").parse_args(words)
    for name, (holds, rule) in image_options.RULES.items():
        value = getattr(call, name)
        assert value is None or holds(value) or name == "teacher_checkpoint", (name, value, rule)  # in a dry run
    kwargs = dict(call.model_kwargs) | ({"img_size": call.img_size} if call.img_size else {})
    kwargs.pop("checkpoint_path", None)
    return call.model, kwargs


def requested(tmp_path: Path, *flags: str, **settings: str) -> request.Request:
    """The request that these settings make."""
    return request.read_request({"OUT": str(tmp_path), **settings}, list(flags))


def line(**values: str) -> dict:
    """A line of results.csv."""
    base = dict(table="RingFormer 4", metric="BLEU", scale="small", arch="a")
    return dict.fromkeys(results_csv.COLUMNS, "") | base | values
