"""The depth curve of a checkpoint, and its safe depths."""

import argparse

import pytest

from recurrence.analysis import depth_curve


def test_safe_depths_reach_down_to_the_first_that_is_worse():
    scores = {1: 30.0, 2: 39.9, 3: 39.5, 4: 39.8, 5: 40.4, 6: 40.0}
    assert depth_curve.safe_range(scores, 0.3) == (4, 6)
    assert depth_curve.safe_range(scores, 0.5) == (2, 6)
    assert depth_curve.safe_range(scores, 0) == (5, 6)
    losses = {depth: -score for depth, score in scores.items()}
    assert depth_curve.safe_range(losses, 0.3, higher_is_better=False) == (4, 6)


@pytest.mark.parametrize(
    ("examples", "said"),
    [(295, "may be safe from 2 passes; too few examples"), (200_000, "loop: safe from 2 to 3 passes")],
)
def test_a_verdict_needs_as_many_examples_as_can_show_it(examples, said, capsys):
    """At two passes one in a hundred outputs is wrong that was right, and one the other way; at one pass, half are."""

    def evaluate(passes):
        wrong = {1: range(50), 2: range(1), 3: range(1, 2)}[passes["loop"]]
        right = [number % 100 not in wrong for number in range(examples)]
        return depth_curve.Evaluation(100 * sum(right) / examples, 0.01, right, right)

    settings = [depth_curve.Setting(str(passes), {"loop": passes}) for passes in (1, 2, 3)]
    args = argparse.Namespace(output=None, tolerance=0.3)
    depth_curve.report(args, settings, evaluate, "top-1", higher_is_better=True)
    assert said in capsys.readouterr().out


def test_the_margin_is_that_of_matched_proportions():
    """By hand: of 98 + 2 examples, 4 better and 2 worse: 1.96 sqrt(7 - 4 / 100) / 100."""
    full = [True] * 2 + [False] * 96
    right = [False] * 2 + [True] * 4 + [False] * 92
    assert depth_curve.margin_of(right, full) == pytest.approx(196 * (7 - 0.04) ** 0.5 / 100)
    assert depth_curve.margin_of(full, full) == pytest.approx(1.96)


def test_a_curve_is_written(tmp_path):
    points = [depth_curve.Point("1", 12.5, 0.01, 0.25), depth_curve.Point("2", 30.0, 0.02, 1.0)]
    depth_curve.save(points, tmp_path / "curve.csv")
    assert (tmp_path / "curve.csv").read_text() == (
        "depth,score,seconds,agreement,margin\n1,12.5,0.01,0.25,\n2,30.0,0.02,1.0,\n"
    )
    assert depth_curve.table(points, "bleu").splitlines()[1].split() == ["1", "12.50", "10.0", "25.0%"]


def test_the_default_tolerance():
    parser = argparse.ArgumentParser()
    depth_curve.add_options(parser)
    assert parser.parse_args([]).tolerance == 0.3
