"""The tables of recipes/README.md: every row of every table, beside what the paper says of it."""

import sys
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal

import pytest

from tests import cli

TOOLS = cli.REPOSITORY / "recipes" / "tools"
sys.path.insert(0, str(TOOLS))

import overview  # noqa: E402
import results  # noqa: E402

SCRIPTS = [script for paper in overview.PAPERS for script in overview.scripts(paper)]
every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
# Rows whose counts do not follow from their description in the paper, and what the description gives.
DEVIATE = {("RingFormer 4", "no_ffn_signal"): 540_160, ("RingFormer 4", "ffn_signal_inside"): 601_600}


def agrees(count: int, paper: str) -> bool:
    """Whether a count is the paper's, which rounds or truncates it."""
    number, unit = Decimal(paper[:-1]), {"K": 1000, "M": 1_000_000}[paper[-1]]
    exact = Decimal(count) / unit
    return number in {exact.quantize(number, rounding) for rounding in (ROUND_DOWN, ROUND_HALF_UP)}


def test_no_paper_is_left_out():
    tables = {row.table for script in SCRIPTS for row in overview.rows(script)}
    assert {table.split()[0] for table in tables} == {"RingFormer", "SReT", "Kausik", "Takase", "ILR"}
    homes = {
        path.parent.name for path in (cli.REPOSITORY / "recipes").glob("*/*.sh") if 'table "$@"' in path.read_text()
    }
    assert homes == {*overview.PAPERS, *(name for names in overview.APART.values() for name in names)}


@every_script
def test_parameters_are_the_papers(script):
    for row in overview.rows(script):
        count = overview.parameters(row)
        assert count > 0
        if (row.table, row.row) in DEVIATE:
            assert count == DEVIATE[row.table, row.row]
            assert not agrees(count, row.parameters)
        elif row.parameters != "-":
            assert agrees(count, row.parameters), (row, count)


def test_the_tables_are_up_to_date():
    cli.python(TOOLS / "overview.py", "--check")


def recorded(**values: str) -> dict:
    """A row of results."""
    return (
        dict.fromkeys(results.COLUMNS, "")
        | dict(table="T 1", row="r", metric="BLEU", value="20", scale="small")
        | values
    )


def test_the_largest_scale_counts():
    row = overview.Row("T 1", "r", "arch", "-", "-", [])
    assert overview.result(row, []) is None
    assert overview.result(row, [recorded(row="other"), recorded(table="T 2"), recorded(scale="smoke")]) is None
    runs = [recorded(), recorded(value="22"), recorded(metric="chrF", value="50"), recorded(value="")]
    assert overview.result(row, runs) == ("small", "21.00 BLEU")
    assert overview.result(row, [*runs, recorded(scale="paper", value="30")]) == ("paper", "30.00 BLEU")
    assert overview.result(row, [recorded(value="")]) == ("small", "failed")
    assert overview.result(row, [recorded(scale="small-5000")]) == ("small-5000", "20.00 BLEU")


def test_runs_of_scale_smoke_are_noted_once(tmp_path, monkeypatch):
    monkeypatch.setattr(overview, "RECIPES", tmp_path / "recipes")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "smoke.csv").write_text("table,row\n")
    paper = tmp_path / "out" / "ilr" / "results.csv"
    runs = [
        recorded(scale="smoke"),
        recorded(scale="smoke", metric="chrF"),
        recorded(row="failed", scale="smoke", value=""),
    ]
    results.append(paper, [*runs, recorded(row="big")])
    results.append(tmp_path / "out" / "librispeech" / "results.csv", [recorded(row="apart", scale="smoke")])
    for _ in range(2):
        overview.add_smoke(tmp_path / "out")
        assert overview.smoked() == {("T 1", "r"), ("T 1", "apart")}
    lines = (tmp_path / "recipes" / "smoke.csv").read_text().splitlines()
    assert sorted(lines) == ["T 1,apart", "T 1,r", "table,row"]
