"""Orders of blocks, compared with the paper's examples and algorithm and with the published code."""

import pytest

from recurrence import order
from recurrence.errors import FieldError
from tests.support.golden import golden

STRATEGY = {"sequence": "sequence", "cycle": "cycle", "cycle_reverse": "cycle_rev"}


def digits(which: tuple[int, ...]) -> str:
    return "".join(str(index + 1) for index in which)


def algorithm_box(strategy: str, m: int, n: int) -> tuple[int, ...]:
    """Figure 2 of Takase & Kiyono, line by line, with 1-based layers and `i <= M`."""
    layer = {}
    for i in range(1, n + 1):
        if strategy == "sequence":
            layer[i] = max(layer.values(), default=0) + 1 if (i - 1) % (n // m) == 0 else layer[i - 1]
        elif i <= m:
            layer[i] = i
        elif strategy == "cycle" or i <= m * (-(-n // m) - 1):
            layer[i] = layer[(i - 1) % m + 1]
        else:
            layer[i] = layer[m - (i - 1) % m]
    return tuple(layer[i] - 1 for i in range(1, n + 1))


@pytest.mark.parametrize("strategy", STRATEGY.values())
def test_algorithm_box(strategy):
    for n in range(1, 19):
        for m in range(1, n + 1):
            assert order.STRATEGIES[strategy].rule(m, n) == algorithm_box(strategy, m, n), (m, n)


@pytest.mark.parametrize("name", order.STRATEGIES)
def test_every_strategy_runs_all_its_blocks_or_rejects_the_numbers(name):
    """For all M and N: an order of N passes of all M blocks, which is found again at its depth, or a rejection.

    SEQUENCE stores more than M blocks if M does not divide N.
    """
    strategy, orders = order.STRATEGIES[name], 0
    for n in range(1, 13):
        for m in range(1, n + 1):
            if strategy.fits(m, n):
                which = strategy.order(m, n)
                blocks = -(-n // (n // m)) if name == "sequence" else m
                assert (len(which), set(which)) == (n, set(range(blocks)))
                assert strategy.at_depth(which, n) in ((which,) if blocks == m else (which, None))
                orders += 1
            else:
                with pytest.raises(ValueError, match=f"^unique_layers={m}: must "):
                    strategy.order(m, n)
    assert orders


def test_published_assignments():
    rows = golden("takase_layer_map")["outputs"]["rows"]
    compared = 0
    for row in rows:
        strategy, n = STRATEGY[row["share_type"]], row["N"]
        per_layer = n if row["share_layer_num"] == -1 else row["share_layer_num"]
        assert digits(order.STRATEGIES[strategy].rule(row["M"], n)) == "".join(map(str, row["paper"])), row
        if isinstance(row["official"], list):  # else the published code fails
            assert digits(order.published_order(strategy, per_layer, n)) == "".join(map(str, row["official"])), row
            compared += 1
    assert compared == len(rows) - 2


def test_examples():
    assert order.reuse_map([4, 2, 1, 1]) == (0, 0, 0, 0, 1, 1, 2, 3)
    assert order.block_loop(2, 3) == (0, 1, 0, 1, 0, 1)
    assert order.sandwich(3, 6) == (0, 1, 1, 1, 1, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: order.STRATEGIES["sequence"].order(0, 6), "unique_layers=0: must be >= 1 and <= layers=6"),
        (lambda: order.published_order("spiral", 2, 6), "share_layer_num=2: the published code has no spiral"),
        (lambda: order.STRATEGIES["cycle"].order(1, 0), "layers=0: must be >= 1"),
        (lambda: order.published_order("sequence", 7, 6), "share_layer_num=7: must be >= 1 and <= layers=6"),
        (lambda: order.reuse_map([]), r"reuse_map=\(\): needs at least one entry"),
        (lambda: order.block_loop(0, 2), "layers=0: must be >= 1"),
    ],
)
def test_wrong_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("text", "expected"), [("0", (0,)), ("0,1,1,1,2", (0, 1, 1, 1, 2)), ("0, 1, 0", (0, 1, 0)), ("1,0,1", (1, 0, 1))]
)
def test_an_order_as_text(text, expected):
    assert order.parse_order(text) == expected


@pytest.mark.parametrize("text", ["", "0,", "0,-1", "0 1", "0.5", "0,²", "9" * 7])
def test_a_text_that_is_no_order_is_rejected(text):
    with pytest.raises(FieldError, match="^order=.*: must be the numbers of stored blocks from 0, one per pass"):
        order.parse_order(text)
