"""Time and memory over the length of a text: what is measured, and the picture."""

import csv

import linear_time
import pytest


@pytest.fixture(scope="module")
def found() -> dict:
    return {(name, length): linear_time.measure(name, length) for length in (32, 64) for name in linear_time.MODELS}


def test_what_a_recurrent_layer_holds_does_not_grow(found):
    assert found["recurrent", 32]["cached_mib"] == found["recurrent", 64]["cached_mib"] > 0
    assert found["regular", 64]["cached_mib"] > found["regular", 32]["cached_mib"]


def test_table_and_picture_have_every_quantity(found, tmp_path):
    """Without a cache, of the regular layer alone."""
    assert len(linear_time.table(found).splitlines()) == 2 + 2 * len(linear_time.QUANTITIES) - 1
    linear_time.draw(tmp_path / "time.svg", found)
    assert (tmp_path / "time.svg").stat().st_size > 10_000
    rows = list(csv.DictReader((tmp_path / "time.csv").open()))
    for model, missing in (("regular", set()), ("recurrent", {"uncached"})):
        measured = {row["quantity"] for row in rows if row["model"] == model}
        assert measured == linear_time.QUANTITIES.keys() - missing
    assert all(float(row["value"]) >= 0 for row in rows)
