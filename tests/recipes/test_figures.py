"""The recipes of figures: what they train, and every command that draws."""

import argparse
import importlib
import sys
from pathlib import Path

import pytest

from tests.support.recipes import FIGURES, PAPERS, RECIPES, commands, recipe

# At scale small, it is enough that every row has it, unless it is a paper's largest.
SCALES = ("smoke", pytest.param("largest", marks=pytest.mark.slow))
TABLES = {(paper.folder.name, key): table for paper in PAPERS for key, table in paper.tables.items()}
# Arguments, and how many pictures a script draws.
ARGUMENTS = {"ringformer/figures2_4": [("base",), ("large",)], "kausik/figure2": [("june",), ("july",)]}
PICTURES = {
    "ringformer/figures2_4": 3,
    "ringformer/figure3": 1,
    "sret/figure1": 1,
    "sret/figure5": 2,
    "sret/figure6": 2,
    "sret/figure7": 3,
    "sret/figure9": 1,
    "sret/figure10": 2,
    "kausik/figure2": 2,
    "kausik/figure3": 2,
    "kausik/figure4": 2,
    "takase/figure3": 1,
    "pronounce/figure": 1,
    "pronounce/figure_lead": 1,
}
RECORDED = {"sret/figure1", "pronounce/figure"}  # draw what is printed or recorded, and train nothing


def name(script: Path) -> str:
    return f"{script.parent.name}/{script.stem}"


CASES = [(script, words) for script in FIGURES for words in ARGUMENTS.get(name(script), [()])]
every_figure = pytest.mark.parametrize(
    ("script", "words"),
    [CASES[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1:])],
    ids=lambda value: name(value) if isinstance(value, Path) else " ".join(value),
)


def options(tool: Path, words: list[str], monkeypatch) -> argparse.Namespace:
    """What a drawing tool makes of its command line, without drawing."""
    parse, taken = argparse.ArgumentParser.parse_args, []
    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", lambda *given: taken.append(parse(*given)) or sys.exit())
        with pytest.raises(SystemExit):
            importlib.import_module(tool.stem).main(words)
    return taken[0]


@pytest.mark.parametrize("scale", SCALES)
@every_figure
def test_the_tools_take_every_command(script, words, scale, tmp_path, monkeypatch):
    if scale == "largest":
        scale = "small" if script.parent.name == "pronounce" else "paper"
    found = commands(script, *words, SCALE=scale, GPUS="8" if scale == "paper" else "1", OUT=str(tmp_path))
    drawn = [line for line in found if Path(line[1]).parent == RECIPES / "figures" and "--output" in line]
    assert len(drawn) == PICTURES[name(script)]
    assert len({line[line.index("--output") + 1] for line in drawn}) == len(drawn)
    runs = [line[line.index(flag) + 1] for line in found for flag in ("--save-dir", "--output") if flag in line]
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"
    (tmp_path / "data" / "imagenet_small").mkdir(parents=True)  # a tool's --data
    for _, tool, *rest in drawn:
        taken = options(Path(tool), rest, monkeypatch)
        assert taken.output.suffix == ".svg"
        read = {word.rpartition("=")[2] for word in rest} - {str(taken.output)}
        for path in (Path(word) for word in read if word.startswith(str(tmp_path))):
            of_a_run = any(run.startswith(str(path.parent)) for run in runs)
            assert of_a_run or tmp_path / "data" in path.parents, f"{path}: of no run"
    folders = [Path(run).relative_to(tmp_path).parts for run in runs if "s1" in Path(run).parts]
    assert bool(folders) == (name(script) not in RECORDED)
    assert all("small" in TABLES[paper, table].find(row).scales for paper, table, _, row, *_ in folders)


@pytest.mark.parametrize("script", ARGUMENTS)
def test_a_figure_that_comes_twice_needs_a_name(script):
    assert "usage: " in recipe(f"{script}.sh", "speech", fails=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("kausik/figure4 list", "error: list: must be an option of curves.py"),
        ("kausik/figure2 june --scale small", "error: --scale: must be an option of curves.py"),
        ("takase/significance --unknown=1", "error: --unknown=1: must be an option of sacrebleu"),
        ("sret/figure5 --out=x.svg", "error: --out=x.svg: must be an option of curves.py"),
        ("takase/figure3 --x epoch --y loss", "error: --y: must be an option of curves.py, not --output, --"),
        ("sret/figure9 --steps 4", "landscape.py: error: argument --steps: 4: must be odd and >= 3"),
        ("ringformer/figures2_4 base --data /no", "cka.py: error: argument --data: '/no': must be a folder"),
    ],
)
def test_words_that_the_program_does_not_take_are_rejected_before_any_training(words, message, tmp_path):
    script, *words = words.split()
    said = recipe(f"{script}.sh", *words, fails=True, DRY_RUN="1", OUT=str(tmp_path))
    assert said.splitlines()[-1].startswith(message)
