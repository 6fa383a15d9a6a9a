"""The papers' tables as data: every printed cell, every count, and the table files that are rejected."""

import csv
import re
import sys
from decimal import ROUND_DOWN, ROUND_HALF_UP

import count
import pandas as pd
import pytest
import render
import rows
import run as program
import timm
from fairseq.models import ARCH_MODEL_REGISTRY

import fairseq_plugin  # noqa: F401  (registers its models)
import timm_plugin  # noqa: F401  (registers its models)
from tests.support import cli
from tests.support.recipes import PAPERS, RUNS, SCRIPTS, TABLES, name

PUBLISHED = cli.REPOSITORY.parent / "shared" / "papers"
# Where else a paper prints numbers.
NO_TABLE = re.compile(r"\b(text|caption|fig|figure|section|appendix|footnote)\b", re.IGNORECASE)


def test_every_table_has_its_script():
    assert set(SCRIPTS) == {table.folder / f"{table.key}.sh" for table in TABLES if table.runs}
    names = [table.name for table in TABLES]
    assert len(set(names)) == len(names)


def test_rows_are_of_registered_models():
    for run in RUNS:
        assert run.row.arch in ARCH_MODEL_REGISTRY or timm.is_model(run.row.arch), (run.table.name, run.name)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="needs the printed numbers as CSV beside the checkout")
@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.folder.name)
def test_every_published_cell_is_there_or_left_out_with_a_reason(paper):
    path = PUBLISHED / f"{paper.folder.name}.csv"
    if not path.exists():
        pytest.skip("a corpus, no paper")
    data = {
        (table.source, row.label, title): value
        for table in paper.tables.values()
        for row in table.rows.values()
        for title, value in row.paper.items()
    }
    left_out = [(one.table, one.row, one.column) for one in paper.left_out]
    assert all(one.reason for one in paper.left_out)
    missing = []
    with path.open(encoding="utf-8", newline="") as file:
        for cell in csv.DictReader(file):
            key = cell["table"], cell["row"], cell["column"]
            out = any(all(pattern in ("*", part) for pattern, part in zip(one, key)) for one in left_out)
            if not NO_TABLE.search(cell["table"]) and data.get(key) != cell["value"] and not out:
                missing.append((*key, cell["value"], data.get(key)))
    assert not missing


@pytest.mark.parametrize(
    ("count", "cell", "title", "rounds", "cut"),
    [
        (21_091_212, "21.0", "#Params (M)", False, True),
        (4_755_979, "4.8", "#Params (M)", True, False),
        (4_755_979, "4.7", "#Params (M)", False, True),
        (7_345_152, "7.34M", "P*", False, True),
        (1_180_800, "1.2M", "Params", True, False),
        (90_720, "~90K", "Parameters", False, True),
        (28_288_354, "29.0", "#Params (M)", False, False),
        (4_755_979, "4,755,979", "", True, True),
    ],
)
def test_a_count_is_the_printed_one_if_it_rounds_to_it(count, cell, title, rounds, cut):
    assert render.prints_as(count, cell, title, ROUND_HALF_UP) == rounds
    assert render.prints_as(count, cell, title, ROUND_DOWN) == cut


@pytest.mark.parametrize("table", TABLES, ids=name)
def test_parameters_are_the_papers(table):
    """They round to the printed digits, or else the row says what they are, or the page that digits are cut off."""
    told = render.cut_off(table, table.rows)
    for key, row in table.rows.items():
        for title, column in table.columns.items():
            if column.metric not in rows.COUNTED or not row.arch:
                continue
            number = count.parameters(render.run_shown(table, key, row, column))[column.metric]
            assert number > 0
            paper = row.paper.get(title)
            if row.count_differs:
                assert f"{number:,}" in row.count_differs, (key, number)
                assert not render.prints_as(number, paper, title, ROUND_HALF_UP)
            elif paper and not render.prints_as(number, paper, title, ROUND_HALF_UP):
                assert render.prints_as(number, paper, title, ROUND_DOWN), (key, number, paper)
                assert re.search(rf"{re.escape(title)} of [^;]*`{re.escape(key)}`", told)


def test_a_failed_run_is_shown_until_one_succeeds():
    (ilr,) = (paper for paper in PAPERS if paper.folder.name == "ilr")
    run = ilr.tables["table1"].find("1,1,1,1-rope")
    failed = dict(row=run.name, scale="long", seed="1", metric="perplexity", value="")
    assert render.measured(run, "perplexity", "long", pd.DataFrame([failed])) == "failed"
    lines = pd.DataFrame([failed, {**failed, "metric": "perplexity at 256", "value": "20"}])
    assert render.measured(run, "perplexity", "long", lines) == "20.00"


@pytest.mark.skipif(cli.is_official(), reason="fairseq 0.12.2 stores some weights of its own transformer twice")
def test_generated_files_are_up_to_date(monkeypatch, capsys):
    monkeypatch.setattr(render, "papers", lambda: PAPERS)  # whose parameters have been counted above
    monkeypatch.setattr(sys, "argv", ["render.py", "--check"])
    assert render.main() == 0, capsys.readouterr().err


GOOD = """
paper = "P"
[settings.s]
count = "images"
[t]
title = "T"
name = "P T"
kind = "count"
settings = "s"
columns = { A = "gmac" }
[t.rows.r]
label = "R"
arch = "sret_t"
paper = { A = "1" }
"""


def test_a_row_takes_the_settings_of_another_but_nothing_printed(tmp_path):
    more = '[t.rows.q]\nlike = "r"\nsmall = { flags = "loops=1" }\nnote = "narrower"\n'
    (tmp_path / "tables.toml").write_text(GOOD + 'flags = "depths=(1,1,1)"\n' + more)
    runs = rows.read(tmp_path).tables["t"].runs
    assert runs["q"].row.model_dump(exclude_defaults=True) == {
        "arch": "sret_t",
        "flags": "depths=(1,1,1)",
        "small": {"flags": "loops=1"},
        "note": "narrower",
    }
    assert runs["q"].settings("small").kwargs == ["depths=(1,1,1)", "loops=1"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "T"\n', "", "t.title: missing key"),
        ('title = "T"', 'titel = "T"\ntitle = "T"', "t.titel: unknown key"),
        ('arch = "sret_t"', 'arch = "sret_t"\narchs = "x"', "t.rows.r.archs: unknown key"),
        ('label = "R"\n', "", "t.rows.r: missing key 'note'"),
        ('paper = { A = "1" }', "", "t.rows.r: missing key 'paper'"),
        ('{ A = "1" }', '{ B = "1" }', "t: rows.r: unknown column 'B'"),
        ('count = "images"', "", "t.rows.r.count: missing key"),
        ('count = "images"', 'count = "images"\nrate = 1', "t.rows.r.rate: unknown key"),
        (
            'count = "images"',
            'count = "images"\nthroughput = "1"',
            "t.rows.r.throughput: Input should be a valid integer",
        ),
        ('settings = "s"', 'settings = "z"', "t: rows.r: settings 'z': must be one of s"),
        ('{ A = "gmac" }', '{ A = { metric = "gmac", table = "z" } }', "t: table 'z': no such"),
        ('kind = "count"', 'kind = "sums"', "t: kind 'sums': must be one of "),
        ('arch = "sret_t"', 'like = "q"', "t: r: like 'q': no such entry above it"),
        ('count = "images"', 'like = "q"', "settings.s: like 'q': no such entry above it"),
        ('paper = "P"', "paper = ", "Invalid value"),
    ],
)
def test_a_broken_table_file_is_rejected_in_one_line(old, new, message, tmp_path, capsys):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "tables.toml").write_text(GOOD)
    assert list(rows.read(tmp_path / "p").tables) == ["t"]
    assert old in GOOD
    (tmp_path / "p" / "tables.toml").write_text(GOOD.replace(old, new, 1))
    assert program.main([str(tmp_path / "p" / "t.sh"), "r"]) == 1
    output = capsys.readouterr()
    assert output.err.startswith(f"error: p/tables.toml: {message}")
    assert output.err.count("\n") == 1
    assert output.out == ""
