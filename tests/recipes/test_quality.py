"""The report's first figures: they draw the recorded results, with operations counted on the real models."""

import re

import pictures
import pytest
import quality
from experiments import EXPERIMENTS

from recurrence.count import stored

TRAINED = [
    pytest.param(experiment, row, id=f"{experiment.task}-{row}")
    for experiment in EXPERIMENTS
    for row in experiment.rows
    if experiment.symbols
]


def test_the_table_has_every_row_as_recorded():
    for experiment in EXPERIMENTS:
        lines = quality.recorded(experiment)
        assert tuple(line["row"] for line in lines) == experiment.rows, "run: python recipes/figures/quality.py"
        for line in lines:
            told = [float(line[name]) for name in ("quality", "low", "high", "stored parameters", "seeds")]
            row = line["row"]
            seen = [experiment.quality(row), *experiment.interval(row), experiment.parameters(row)]
            assert told == pytest.approx([*seen, len(experiment.values(row))], rel=1e-5), row


def test_every_picture_is_there_for_light_and_dark_pages():
    for experiment in EXPERIMENTS:
        for axis in quality.AXES:
            text = (quality.FOLDER / f"{experiment.task}-{axis}.svg").read_text(encoding="utf-8")
            names = re.findall(r"<!-- (.+) -->", text)
            assert set(experiment.rows) <= set(names)
            assert "@media (prefers-color-scheme: dark)" in text


@pytest.mark.parametrize(("experiment", "row"), TRAINED)
def test_operations_are_counted_of_the_model_that_was_trained(experiment, row):
    assert stored(quality.model(experiment, row)) == experiment.parameters(row)


def test_operations_are_a_third_of_those_that_a_training_recorded():
    experiment = next(one for one in EXPERIMENTS if one.recipe == "ilr")
    settings = experiment.run("2,2,2,2-rope").settings(experiment.scale).keys
    [record] = experiment.records("2,2,2,2-rope", "training FLOPs")
    tokens = int(record["updates"]) * settings["batch"] * settings["text"]
    forward = float(record["value"]) / tokens / 3 / 2e6
    assert quality.operations(experiment, "2,2,2,2-rope") == pytest.approx(forward)


def test_a_row_without_results_is_named():
    with pytest.raises(ValueError, match="no BLEU of row sequence at scale small"):
        EXPERIMENTS[0].records("sequence")


def test_labels_that_would_overlap_move_up():
    assert quality.apart([0.5, 0.1, 0.52, 0.9], 0.1) == [0.5, 0.1, 0.6, 0.9]
    assert quality.apart([], 0.1) == []


def test_dark_pages_change_what_is_black_or_white(tmp_path):
    figure = pictures.page(1, width=1)
    figure.text(0.5, 0.5, "on a bright surface", color=pictures.BLACK)
    pictures.save_picture(figure, tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text(encoding="utf-8")
    assert text.index("prefers-color-scheme") < text.index("fill: #010101")
    pictures.save_picture(figure, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
