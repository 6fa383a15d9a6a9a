"""The speed of Takase & Kiyono's tables: complete training steps of two models in turn."""

import pytest
import speed  # noqa: E402
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
