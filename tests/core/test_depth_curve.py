"""The depth curve of a checkpoint, and its safe depths."""

from recurrence.analysis import depth_curve


def test_safe_depths_reach_down_to_the_first_that_is_worse():
    scores = {1: 30.0, 2: 39.9, 3: 39.5, 4: 39.8, 5: 40.4, 6: 40.0}
    assert depth_curve.safe_range(scores, 0.3) == (4, 6)
    assert depth_curve.safe_range(scores, 0.5) == (2, 6)
    assert depth_curve.safe_range(scores, 0) == (5, 6)
    losses = {depth: -score for depth, score in scores.items()}
    assert depth_curve.safe_range(losses, 0.3, higher_is_better=False) == (4, 6)


def test_a_curve_is_written(tmp_path):
    points = [depth_curve.Point("1", 12.5, 0.01, 0.25), depth_curve.Point("2", 30.0, 0.02, 1.0)]
    depth_curve.save(points, tmp_path / "curve.csv")
    assert (tmp_path / "curve.csv").read_text() == "depth,score,seconds,agreement\n1,12.5,0.01,0.25\n2,30.0,0.02,1.0\n"
    assert depth_curve.table(points, "bleu").splitlines()[1].split() == ["1", "12.50", "10.0", "25.0%"]
