"""Position tables against their formulas in plain Python."""

import math

import pytest
import torch

from recurrence import attention, position
from recurrence.position import Table


def interleaved(p: int, i: int, width: int) -> float:
    angle = p / 10000 ** ((i - i % 2) / width)
    return math.cos(angle) if i % 2 else math.sin(angle)


def halved(p: int, i: int, width: int) -> float:
    half = width // 2
    if i >= 2 * half:
        return 0.0
    angle = p * math.exp(-(i % half) * math.log(10000) / max(half - 1, 1))
    return math.sin(angle) if i < half else math.cos(angle)


def depth_time(p: int, i: int, width: int) -> float:
    k = i + 1
    angle = (p + 1) / 10000 ** (2 * k / width)
    return math.cos(angle) if k % 2 else math.sin(angle)


@pytest.mark.parametrize("width", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("formula", [interleaved, halved, depth_time])
def test_formula(formula, width):
    expected = [[formula(p, i, width) for i in range(width)] for p in range(11)]
    table = getattr(position, formula.__name__)(11, width)
    assert table.dtype == torch.float64
    torch.testing.assert_close(table, torch.tensor(expected, dtype=torch.float64).view(11, width), rtol=0, atol=1e-12)


def test_levels_are_those_of_their_pass_and_place():
    like = torch.zeros(1, dtype=torch.float64)
    placed, plain = (position.LevelTable(6, which).levels(3, 4, None, 1, like) for which in (True, False))
    for level in range(3):
        depth = torch.tensor([depth_time(level, i, 6) for i in range(6)], dtype=torch.float64)
        places = torch.tensor([[depth_time(p, i, 6) for i in range(6)] for p in (1, 2, 3)], dtype=torch.float64)
        torch.testing.assert_close(plain[level], depth)
        torch.testing.assert_close(placed[level], places + depth)


def test_positions_number_the_sentence_wherever_it_is_padded():
    padding = torch.tensor([[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 1]]).bool()
    expected = [[0, 1, 2, 3], [0, 0, 0, 1], [0, 1, 2, 3], [0, 0, 1, 2]]
    assert position.positions(padding).tolist() == expected


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("blank", [False, True])
def test_table_gives_each_token_the_row_of_its_place_in_the_sentence(offset, blank):
    table = Table(position.interleaved, 6, offset, blank_padding=blank)
    padding = torch.tensor([[0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()
    like, rows = torch.zeros(1, dtype=torch.float64), position.interleaved(5 + offset, 6)[offset:]
    whole = table(5, padding, 0, like)
    torch.testing.assert_close(whole[0], rows)
    torch.testing.assert_close(whole[1, 2:], rows[:3])
    torch.testing.assert_close(whole[2, :3], rows[:3])
    assert (whole[padding] == 0).all().item() == blank
    torch.testing.assert_close(table(5, None, 0, like), rows)
    torch.testing.assert_close(table(5, padding, 3, like), whole[:, 3:])
    torch.testing.assert_close(table(5, None, 4, like), rows[4:])


def test_table_grows_and_follows_the_models_type():
    table = Table(position.interleaved, 4)
    for length, dtype in [(3, torch.float64), (300, torch.float64), (200, torch.float32), (5, torch.bfloat16)]:
        rows = table(length, None, 0, torch.zeros(1, dtype=dtype))
        # Evaluated in float64 and rounded once.
        assert torch.equal(rows, position.interleaved(length, 4).to(dtype))
    assert not table.state_dict()


def test_a_table_first_asked_for_in_inference_mode_can_be_trained_with():
    table, x = Table(position.rotary, 4), torch.randn(2, 2, 3, 4, requires_grad=True)
    with torch.inference_mode():
        table(3, None, 0, like=x)
    attention.rotate(x, *table(3, None, 0, like=x).chunk(2, dim=-1)).sum().backward()
    assert x.grad.isfinite().all()


def test_a_compiled_graph_keeps_no_table():
    table, x = Table(position.rotary, 4), torch.randn(2, 3, 4)
    compiled = torch.compile(lambda x: x + table(3, None, 0, like=x), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), x + position.rotary(3, 4).float())
    assert len(table._rows) == 0


def test_halves_of_a_head_turn_as_complex_numbers():
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    angles = torch.tensor([[p * 10000 ** (-2 * m / 8) for m in range(4)] for p in range(5)], dtype=torch.float64)
    turned = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
    found = attention.rotate(x, *position.rotary(5, 8).chunk(2, dim=-1))
    torch.testing.assert_close(found, torch.cat([turned.real, turned.imag], dim=-1))


def test_rotated_tensors_keep_their_dtype():
    x, angles = torch.randn(2, 2, 3, 4), position.rotary(3, 4).float().chunk(2, dim=-1)
    turned = attention.rotate(x.bfloat16(), *angles)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, attention.rotate(x.bfloat16().float(), *angles).bfloat16())


def test_linear_biases_are_rounded_once():
    exact = position.alibi(3, 700, 0, like=torch.empty(0, dtype=torch.float64))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = position.alibi(3, 700, 0, like=torch.empty(0, dtype=dtype))
        torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-7)
