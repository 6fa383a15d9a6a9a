"""Time and memory over the length of a text: what is measured, and the picture."""

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "recipes" / "kausik"))

import linear_time  # noqa: E402


@pytest.fixture(scope="module")
def found() -> dict:
    return {(name, length): linear_time.measure(name, length) for length in (32, 64) for name in linear_time.MODELS}


def test_what_a_recurrent_layer_holds_does_not_grow(found):
    assert found["recurrent", 32]["cached_mib"] == found["recurrent", 64]["cached_mib"] > 0
    assert found["regular", 64]["cached_mib"] > found["regular", 32]["cached_mib"]


def test_the_table_has_a_line_for_each_quantity(found):
    head, _, *lines = linear_time.table(found).splitlines()
    assert [cell.strip() for cell in head.split("|")[3:-1]] == ["32", "64"]
    assert len(lines) == 2 * len(linear_time.QUANTITIES) - 1  # only the regular layer works without a cache
    assert lines[0].split("|")[1].strip() == "recurrent"


def test_the_picture_has_every_quantity(found, tmp_path):
    linear_time.draw(tmp_path / "time.svg", found)
    assert (tmp_path / "time.svg").stat().st_size > 10_000
    rows = list(csv.DictReader((tmp_path / "time.csv").open()))
    assert {row["quantity"] for row in rows if row["model"] == "regular"} == set(linear_time.QUANTITIES)
    assert {row["quantity"] for row in rows if row["model"] == "recurrent"} == set(linear_time.QUANTITIES) - {
        "uncached"
    }
    assert all(float(row["value"]) >= 0 for row in rows)
