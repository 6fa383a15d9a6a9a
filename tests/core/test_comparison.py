"""recurrence.comparison: sizes of controls, command lines, paired statistics, the report, which rows are trained."""

import argparse
import dataclasses
import json
import math
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn

from recurrence.block import Shape
from recurrence.comparison import report
from recurrence.comparison.command import Comparison, add_options, compare, with_rate, without
from recurrence.comparison.controls import as_large
from recurrence.comparison.report import gain, headroom
from recurrence.comparison.rows import TIMED, Row, Score, counted
from recurrence.papers.takase import shared_layers
from tests.core.test_comparison_runs import appends, step

BLEU, PERPLEXITY = Score("BLEU", True, "a sentence", "decoding"), Score("perplexity", False, "a text", "decoding")
PYTHON = (sys.executable, "-c")


def parameters(heads: int, ffn: int) -> int:
    """Of a layer with heads of 8 columns."""
    return 4 * (8 * heads) ** 2 + 16 * heads * ffn + ffn


@pytest.mark.parametrize("target", [100, 1_000, 10_000, 123_456, 5_000_000])
@pytest.mark.parametrize("ffn", [128, 129])  # in proportion, 129 is rounded
def test_six_models_tell_the_size_of_the_largest_that_fits(target, ffn):
    """It has as many whole heads as fit, and then as many hidden units."""
    built = []

    def stored(steps: int, hidden: int) -> int:
        built.append((steps, hidden))
        if steps <= -4:
            raise ValueError("heads=0: must be >= 1")
        return parameters(4 + steps, ffn * (4 + steps) // 4 + hidden)

    if target < stored(-3, 0):
        with pytest.raises(ValueError, match="--rows: narrow: no model with as many heads is small enough"):
            as_large("narrow", stored, target)
        return
    built.clear()
    steps, hidden = as_large("narrow", stored, target)
    assert len(built) == len(set(built)) <= 6
    assert stored(steps, hidden) <= target < stored(steps, hidden + 1)
    assert target < stored(steps + 1, 0)


def test_a_model_of_exactly_the_size_is_found():
    """However the root of its polynomial is rounded."""

    def stored(steps: int, hidden: int) -> int:
        return parameters(4 + steps, 128 * (4 + steps) // 4 + hidden)

    assert [as_large("narrow", stored, stored(steps, 0)) for steps in range(60)] == [(steps, 0) for steps in range(60)]


def test_options_are_taken_out_of_a_command_line_with_their_values():
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--one")
        parser.add_argument("--flag", action="store_true")
        parser.add_argument("--some", nargs="*")

    words = ["data", "--one=1", "--other", "2", "-s", "--flag", "more", "--some", "a", "b", "--rest", "--one", "-3"]
    assert without(words, add) == ["data", "--other", "2", "-s", "more", "--rest"]


def scores(**rows):
    return pd.DataFrame(rows, index=range(1, 1 + len(next(iter(rows.values())))), dtype=float)


def test_differences_are_paired_over_seeds():
    found = gain(scores(looped=[1.47, 3.5, 2.0], once=[0.01, 2.14, 0.66]), "looped", "once", True)
    differences = np.array([1.46, 1.36, 1.34])
    expected = stats.t.interval(0.95, 2, loc=differences.mean(), scale=stats.sem(differences))
    assert [found.mean, found.low, found.high] == pytest.approx([differences.mean(), *expected])
    assert (round(found.low, 2), round(found.high, 2), found.seeds) == (1.23, 1.55, 3)


def test_a_failed_seed_leaves_its_pair_out():
    found = gain(scores(looped=[1, 2, 3], once=[0, np.nan, 1]), "looped", "once", True)
    assert (found.mean, found.seeds) == (1.5, 2)
    assert gain(scores(looped=[1], once=[np.nan]), "looped", "once", True) is None
    equal = gain(scores(looped=[1, 2], once=[0, 1]), "looped", "once", True)
    assert (equal.mean, equal.low, equal.high, equal.error) == (1, 1, 1, 0)


def test_headroom_needs_three_standard_errors():
    noisy = scores(once=[10, 10, 10], looped=[10, 10, 10], deep=[10.0, 11.0, 10.2])
    said = "No headroom: depth itself gains nothing here beyond three standard errors (`deep` over `once`: 0.40"
    assert headroom(noisy, True, 4).startswith(said)
    clear = scores(once=[10, 20, 30], looped=[11, 21, 31], deep=[12, 22.1, 31.9])
    assert headroom(clear, True, 4).startswith("Iso-depth exponent 0.50: 4 loops are worth 4^0.50 = 2 layers")
    assert headroom(-clear, False, 4) == headroom(clear, True, 4)
    equal = scores(once=[10, 20], looped=[10, 20], deep=[10, 20])
    assert headroom(equal, True, 4).startswith("No headroom")
    assert headroom(clear[:1], True, 4).endswith("needs two seeds.")
    assert headroom(clear.drop(columns="deep"), True, 4).endswith("looped, once and deep have finished.")
    failed = scores(once=[10, 20, 30], looped=[11, 21, None], deep=[12, 22.1, 39.9])
    assert headroom(failed, True, 4).startswith("Iso-depth exponent 0.49")


def row(name, parameters=1000):
    return Row(name, (f"--{name}",), 2, 8, parameters, 10**6, 4.0)


def results(**values):
    """Results by row and seed, from one score per seed; None for a failure."""
    return {
        (name, seed): {"failure": "loss nan", "diverged": True}
        if score is None
        else {"updates": 5, "seconds": 2.0, "score": score, "decoding": 1.0}
        for name, of_seeds in values.items()
        for seed, score in reversed([*enumerate(of_seeds, start=1)])  # they end in any order
    }


def page(tmp_path, score=BLEU, **values):
    rows = [row("looped"), *(row(name, 990) for name in values if name != "looped")]
    return report.write(tmp_path, rows, report.table_of(rows, results(**values)), score)


def test_the_report_has_a_sentence_for_each_control(tmp_path):
    text = page(tmp_path, looped=[31.47, 33.5, 32.0], storage=[30.01, 32.14, 30.66], storage_time=[32, 33, 31])
    assert "At equal storage looping gains 1.39 BLEU (1.23 to 1.55, three seeds). It stores 1.00% less." in text
    longer = r"At equal storage and training time looping gains 0.32 BLEU \(.* to .*; the interval includes zero"
    assert re.search(longer, text)
    (line,) = (line for line in text.splitlines() if line.startswith("| storage "))
    sizes, found = ["2", "8", "990", "4.00", "1.0"], ["2", "1.00", "30.94 ± 1.09", "3", "+1.39 (+1.23 to +1.55)"]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == ["storage", *sizes, *found]
    assert "failed" not in text
    assert (tmp_path / "comparison.md").read_text() == text
    assert "<svg" in (tmp_path / "comparison.svg").read_text()
    table = pd.read_csv(tmp_path / "runs.csv")
    assert list(table["row"]) == ["looped"] * 3 + ["storage"] * 3 + ["storage_time"] * 3
    assert list(table["seed"]) == [1, 2, 3] * 3


def test_the_picture_has_a_mark_for_each_row_over_its_bytes_and_its_seconds():
    values = results(looped=[31, 33], storage=[30, 30], deep=[None, None])
    values["looped", 2]["seconds"] = 4.0
    runs = report.table_of([row("looped"), row("storage"), row("deep")], values)
    bytes_, seconds = report.picture(runs, BLEU).axes
    assert [bytes_.get_xlabel(), seconds.get_xlabel(), bytes_.get_ylabel()] == ["MB", "training, s", "BLEU"]
    marks = {
        mark.get_label(): [points.lines[0].get_xydata().tolist() for points in (mark, beside)]
        for mark, beside in zip(bytes_.containers, seconds.containers)
    }
    assert marks == {"looped": [[[4, 32]], [[3, 32]]], "storage": [[[4, 30]], [[2, 30]]]}
    across, up = (bar.get_segments()[0] for bar in seconds.containers[0].lines[2])
    assert np.allclose([across[:, 0], up[:, 1]], [[3 - 2**0.5, 3 + 2**0.5], [32 - 2**0.5, 32 + 2**0.5]])


@pytest.mark.parametrize(
    ("seconds", "said"), [(86, " It trained 14% shorter."), (110, " It trained 10% longer."), (99, "")]
)
def test_the_report_says_whether_a_timed_row_trained_as_long(tmp_path, seconds, said):
    found = results(looped=[30, 31], storage_time=[29, 30])
    for (name, _), values in found.items():
        values["seconds"] = 100 if name == "looped" else seconds
    rows = [row("looped"), row("storage_time")]
    text = report.write(tmp_path, rows, report.table_of(rows, found), BLEU)
    assert f"At equal storage and training time looping gains 1.00 BLEU (1.00 to 1.00, two seeds).{said}\n" in text


def test_the_exponent_is_that_of_the_passes_of_a_block(tmp_path):
    text = page(tmp_path, looped=[11, 21, 31], once=[10, 20, 30], deep=[12, 22.1, 31.9])
    assert "Iso-depth exponent 0.50: 4 loops are worth 4^0.50 = 2 layers" in text


def test_lower_scores_may_be_better(tmp_path):
    text = page(tmp_path, PERPLEXITY, looped=[20, 21, 22.1], once=[25, 26, 27])
    assert "Against the same blocks run once looping lowers perplexity by 4.97 (4.82 to 5.11, three seeds)." in text


def test_looping_may_be_worse(tmp_path):
    values = {"looped": [20, 21, 22.1], "narrow": [25, 26, 27]}
    said = "At equal storage and depth looping loses 4.97 BLEU (4.82 to 5.11, three seeds). It stores 1.00% less."
    assert said in page(tmp_path, **values)
    worse = {name: [-score for score in scores] for name, scores in values.items()}
    assert "looping raises perplexity by 4.97 (4.82 to 5.11, three seeds)." in page(tmp_path, PERPLEXITY, **worse)


def test_one_seed_has_no_interval(tmp_path):
    text = page(tmp_path, looped=[2], once=[0.8])
    assert "Against the same blocks run once looping gains 1.20 BLEU (one seed, so no interval)." in text
    assert "| +1.20 (one seed) |" in text


def test_a_control_that_diverges_is_a_result(tmp_path):
    text = page(tmp_path, looped=[30, 31], deep=[None, None])
    assert "Against a separate block for every pass: no pair of runs has finished." in text
    assert text.count("seed 1: loss nan; seed 2: loss nan") == 1  # in its own row
    table = pd.read_csv(tmp_path / "runs.csv")
    assert table["score"].dropna().tolist() == [30, 31]
    assert table["failure"].dropna().tolist() == ["loss nan"] * 2


def test_a_plan_says_how_much_more_a_control_stores():
    looped, once = report.planned([row("looped"), row("once", 990)], BLEU).splitlines()[2:]
    assert "+0.00%" in looped
    assert "-1.00%" in once


class Counting(Comparison):
    """Rows that only write their name; the time of a row is its number of letters."""

    length, diverged, score = "updates", re.compile("FloatingPointError"), BLEU
    too_high = math.inf  # validation at a rate above 3
    controls = SimpleNamespace(flags=lambda names: {name: (f"--{name}",) for name in names})

    def row(self, name, words):
        return dataclasses.replace(row(name), flags=tuple(words))

    def seconds(self, row):
        return 60.0 * len(row.name)

    def steps(self, row, seed, folder, length=None):
        values = {
            "updates": length.total if length else 10,
            "seconds": 10.0 * len(row.name) * (seed if row.name == "looped" else 1),
            "score": float(seed),
            "decoding": 1.0,
        }
        if not math.isnan(row.rate):  # the shorter its name, the higher the rate that suits a row
            values["validation"] = self.too_high if row.rate > 3 else abs(row.rate * len(row.name) - 10)
        said = appends(folder.parent.parent / "order", f"{folder.relative_to(folder.parent.parent)} ")
        return [step(said if row.rate != 3 else "raise OSError", flags=row.flags, values=values)]


def options(*words):
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(words)


def test_what_a_killed_comparison_leaves_running_holds_its_folder(tmp_path):
    child = "import os, pathlib, sys, time; os.kill(int(sys.argv[1]), 9)\n"
    child += "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)"
    code = f"""
import os, sys
from pathlib import Path
from recurrence.comparison.runs import Command, Runner, locked
folder = Path({str(tmp_path)!r})
with locked(folder / ".lock"):
    Runner().run(Command.of(sys.executable, "-c", {child!r}, os.getpid(), folder / "end"), folder / "log")
"""
    assert subprocess.run([*PYTHON, code]).returncode == -9
    try:
        with pytest.raises(ValueError, match="another comparison is running there"):
            compare(Counting(), options("--output", str(tmp_path)))
    finally:
        (tmp_path / "end").touch()


@pytest.mark.parametrize("name", TIMED)
def test_timed_rows_train_for_as_long_as_looped(name, tmp_path, capsys):
    words = ["--output", str(tmp_path), "--seeds", "1,2", "--rows", f"once,{name}"]
    compare(Counting(), options(*words))
    order = (tmp_path / "order").read_text().split()
    first = [f"{row}/seed{seed}" for seed in (1, 2) for row in ("looped", "once", TIMED[name])]
    assert order == [*first, f"{name}/seed1", f"{name}/seed2"]
    for seed in (1, 2):
        updates = round(10 * seed * len("looped") / len(TIMED[name]))
        assert json.loads((tmp_path / name / f"seed{seed}" / "train.json").read_text())["updates"] == updates
    before = capsys.readouterr().out
    compare(Counting(), options(*words))
    assert (tmp_path / "order").read_text().split() == order
    assert capsys.readouterr().out[-300:] == before[-300:]


def test_each_row_trains_at_the_rate_that_suits_it(tmp_path):
    rows, best = ("looped", "once", "storage"), {"looped": "2", "once": "2.5", "storage": "2", "storage_time": "2"}
    words = ["--output", str(tmp_path), "--seeds", "1,2", "--rows", "once,storage,storage_time", "--rates", "2,2.5,4"]
    compare(Counting(), options(*words))
    tried = [f"{name}/seed1-lr{rate}" for rate in ("2", "2.5", "4") for name in rows]
    then = [f"{name}/seed2-lr{best[name]}" for name in rows] + [f"storage_time/seed{seed}-lr2" for seed in (1, 2)]
    assert (tmp_path / "order").read_text().split() == tried + then
    used = pd.read_csv(tmp_path / "runs.csv").groupby("row").rate.mean()
    assert {name: f"{rate:g}" for name, rate in used.items()} == best
    assert re.search(r"\| once .*\| +2.5 \|", (tmp_path / "comparison.md").read_text())


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (["data", "--seeds", "1,2"], []),
        (["data", "--rates", "1e-3,2e-3", "--lr", "1"], ["--lr", "1e-3"]),
        (["data", "--rates=4e-3"], ["--lr", "4e-3"]),
        (["data", "--help", "--rates"], []),
    ],
)
def test_the_trainer_is_checked_and_timed_at_the_first_rate(words, added):
    assert with_rate(words) == words + added


def test_a_rate_without_a_finite_validation_is_not_chosen(tmp_path):
    comparison = Counting()
    comparison.too_high = math.nan  # neither less nor more than that at another rate
    compare(comparison, options("--output", str(tmp_path), "--rows", "once", "--rates", "4,2"))
    assert set(pd.read_csv(tmp_path / "runs.csv").rate) == {2}


class Alike(Counting):
    """`once` stores as much as `looped`, and so is `storage`, too; of two passes, `half` is the same."""

    alike = dict.fromkeys(("once", "storage", "half", "storage_time", "half_time"), ("--once",))
    controls = SimpleNamespace(flags=lambda names: Counting.controls.flags(names) | Alike.alike)


@pytest.mark.parametrize(("rates", "rate"), [([], ""), (["--rates", "2,2.5"], "-lr2.5")])
def test_storage_that_is_once_is_trained_once(tmp_path, rates, rate):
    compare(Alike(), options("--output", str(tmp_path), "--rows", ",".join(Alike.alike), *rates))
    scores = pd.read_csv(tmp_path / "runs.csv").set_index("row").score
    assert list(scores.index) == ["looped", *Alike.alike]
    assert scores.notna().all()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"looped", "once", "storage_time"}
    assert (tmp_path / "storage_time" / f"seed1{rate}").is_dir()


def test_no_rate_is_chosen_before_all_have_been_tried(tmp_path):
    with pytest.raises(SystemExit, match="2 of 4 runs failed; the same command tries them again"):
        compare(Counting(), options("--output", str(tmp_path), "--rows", "once", "--rates", "2,3"))
    assert len((tmp_path / "order").read_text().split()) == 2


@pytest.mark.parametrize("missing", ["pandas", "scipy", "matplotlib.figure", "tabulate"])
def test_what_the_report_needs_is_missed_before_anything_is_trained(missing, tmp_path, monkeypatch):
    monkeypatch.delattr("recurrence.comparison.report")
    monkeypatch.delitem(sys.modules, "recurrence.comparison.report")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ValueError, match="pip install"):
        compare(Counting(), options("--output", str(tmp_path)))


def test_a_dry_run_prints_rows_and_commands_and_runs_nothing(tmp_path, capsys):
    compare(Counting(), options("--output", str(tmp_path), "--rows", "deep", "--dry-run"))
    said = capsys.readouterr().out
    assert "# deep, seed 1" in said
    assert "storage" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_estimates_all_trainings(tmp_path, capsys):
    compare(Counting(), options("--output", str(tmp_path), "--dry-run", "--seeds", "1,2", "--rates", "1,2,4"))
    said = capsys.readouterr().out
    assert "# 26 trainings, logged in ROW/seedN/train.log and score.log" in said
    rows = "looped 4 x 6.0, once 4 x 4.0, storage 4 x 7.0, half 4 x 4.0, narrow 4 x 6.0, deep 4 x 4.0"
    assert f"# about 136 minutes ({rows}, half_time 2 x as long as looped), estimated from a few updates" in said


def test_what_is_left_is_said_after_each_training(tmp_path, capsys):
    words = ["--output", str(tmp_path), "--rows", "once", "--rates", "1,2"]
    compare(Counting(), options(*words))
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [
        f"looped, seed 1: train, logged in {tmp_path}/looped/seed1-lr1/train.log ...",
        "looped, seed 1: train: 10 updates, 60.00 seconds, score 1.00, decoding 1.00 s, validation 4.00 "
        "(training 1 of 4; about 0 minutes left)",
    ]
    assert [re.search(r"training (\d of \d)", line)[1] for line in said[1::2]] == [
        "1 of 4",
        "2 of 4",
        "3 of 4",
        "4 of 4",
    ]
    compare(Counting(), options(*words, "--seeds", "1,2"))
    assert "training 5 of 6" in capsys.readouterr().err


def test_a_warning_tells_that_most_parameters_are_embeddings(tmp_path, capsys):
    class Embedded(Counting):
        def row(self, name, words):
            return dataclasses.replace(super().row(name, words), embedded=970)

    for comparison in (Counting(), Embedded()):
        compare(comparison, options("--output", str(tmp_path), "--dry-run"))
        told = "Warning: 970 of the 1,000 parameters of `looped` (97%) are embeddings" in capsys.readouterr().out
        assert told == isinstance(comparison, Embedded)


def test_symbols_are_counted_as_embeddings_unless_both_sides_share_them():
    model = nn.ModuleDict({"tokens": nn.Embedding(10, 4), "output_projection": nn.Linear(4, 10, bias=False)})
    model["output_projection"].weight = model["tokens"].weight
    assert counted("looped", [], model, lambda: None).embedded == 40
    model["output_projection"] = nn.Linear(4, 10, bias=False)
    assert counted("looped", [], model, lambda: None).embedded == 80


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("--rows wide", "wide: must be one of looped, once, storage, half, narrow, deep, storage_time"),
        ("--seeds 1,01", "1,01: must be different whole numbers"),
        ("--seeds one", "one: must be different whole numbers"),
        ("--rates 1e-3,0.001", "1e-3,0.001: must be different positive numbers"),
        ("--rates low", "low: must be different positive numbers"),
        ("--jobs 0", "0: must be a whole number >= 1"),
    ],
)
def test_wrong_options_are_rejected(words, rule, rejected):
    assert rule in rejected(lambda: options("--output", "x", *words.split()))


def test_a_row_counts_stored_blocks_their_runs_and_the_products_of_all_runs():
    loop = shared_layers(Shape(8, 16, 2), (0, 0, 1)).eval()
    row = counted("looped", [], loop, lambda: loop(torch.zeros(1, 5, 8)))
    assert (row.blocks, row.passes) == (2, 3)
    assert row.operations == 3 * (5 * (4 * 8 * 8 + 2 * 8 * 16) + 2 * 5 * 5 * 8)


def test_megabytes():
    model = nn.Linear(8, 16)
    assert counted("looped", [], model, lambda: None).megabytes == 4 * (8 * 16 + 16) / 1e6
