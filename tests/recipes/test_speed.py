"""Measurements of time: training steps of two models in turn, and a layer over the length of a text."""

import csv

import linear_time
import pytest
import speed
import torch

TINY = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in dict(embed_dim=8, ffn_embed_dim=8, attention_heads=2, layers=2, unique_layers=1).items()
}


@pytest.mark.parametrize(
    ("pair", "same"), [(("cycle", "universal_wide"), {"init": "admin"}), (("s2t_cycle", "s2t_universal"), {})]
)
def test_a_step_trains_and_is_timed_beside_another_model(pair, same, monkeypatch):
    full, given, built, before = speed.build, [], [], []

    def build(arch, **options):
        given.append(options)
        built.append(full(arch, **{**TINY, **options}))
        before.append([parameter.detach().clone() for parameter in built[-1].parameters()])
        return built[-1]

    monkeypatch.setattr(speed, "build", build)
    monkeypatch.setattr(speed, "FRAMES", 20)
    found = speed.measure(*pair, tokens=60, rounds=1, options={"encoder_layers": 3, **same})
    assert given == [{"encoder_layers": 3, **same}, same], "both have the same initialisation"
    assert found.keys() == {"speed", "tokens_per_s"}
    assert min(found.values()) > 0
    assert [model.encoder.loop.passes for model in built] == [3, 2]
    for model, start in zip(built, before):
        assert not any(torch.equal(old, new) for old, new in zip(start, model.parameters()) if old.abs().sum())


def test_speech_is_not_timed_beside_text():
    with pytest.raises(ValueError, match="--beside cycle: must read what s2t_cycle reads"):
        speed.measure("s2t_cycle", "cycle", 28, 1, {})


# Over the length of a text, with memory


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
