"""Sliced attention: which tokens see each other, the permutation and its inverse, rejections."""

import pytest
import torch
from torch import Tensor

from recurrence.attention import SelfAttention
from recurrence.slicing import SliceConfig, Slices, fixed_permutation, random_permutation

TOKENS, WIDTH = 12, 6


@pytest.fixture
def attention() -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(WIDTH, heads=2, bias=True, dropout=0.0).double()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def attended(attention: SelfAttention, slices: Slices, x: Tensor) -> Tensor:
    return slices(x, lambda y: attention(y, y))


@pytest.mark.parametrize("groups", [1, 2, 3, 12])
def test_slices_of_neighbours(attention, x, groups):
    """Each chunk of consecutive tokens attends only to itself."""
    size = TOKENS // groups
    expected = torch.cat([attention(part, part) for part in x.split(size, dim=1)], dim=1)
    torch.testing.assert_close(attended(attention, Slices(groups), x), expected)


@pytest.mark.parametrize("groups", [2, 3])
def test_slices_of_a_permutation(attention, x, groups):
    """Token p[i] of the stream stands at place i; the output returns to where its token stood."""
    permutation = fixed_permutation(TOKENS, seed=7)
    expected = torch.empty_like(x)
    for places in permutation.split(TOKENS // groups):
        expected[:, places] = attention(x[:, places], x[:, places])
    slices = Slices(groups, permutation).eval()
    torch.testing.assert_close(attended(attention, slices, x), expected)
    assert not torch.allclose(attended(attention, Slices(groups), x), expected)


@pytest.mark.parametrize("always_random", [False, True])
def test_permutations_are_random_in_training_and_on_request(attention, x, always_random):
    slices = Slices(3, fixed_permutation(TOKENS, seed=7), always_random)

    def runs(training: bool) -> bool:
        slices.train(training)
        outputs = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            outputs.append(attended(attention, slices, x))
        return torch.equal(*outputs)

    assert not runs(training=True)
    assert runs(training=False) is not always_random
    neighbours = Slices(3, None, always_random).train()
    assert torch.equal(attended(attention, neighbours, x), attended(attention, neighbours, x))


def test_permutations():
    first, again, other = (fixed_permutation(100, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first.sort().values, torch.arange(100))
    state = torch.get_rng_state()
    fixed_permutation(100, 3)
    assert torch.equal(torch.get_rng_state(), state)
    drawn = [random_permutation(torch.empty(2, 100, 1)) for _ in range(2)]
    assert not torch.equal(*drawn)
    assert all(torch.equal(permutation.sort().values, torch.arange(100)) for permutation in drawn)


def test_configuration():
    config = SliceConfig(TOKENS, groups=(4, 2, 1, 2), permuted=(False, True, True, True), seed=3)
    slices = [config.of_pass(index) for index in range(4)]
    assert slices[0].permutation is None
    assert slices[2] is None
    assert [slices[index].groups for index in (0, 1, 3)] == [4, 2, 2]
    assert torch.equal(slices[1].permutation, fixed_permutation(TOKENS, 3 + 1))
    assert torch.equal(slices[3].permutation, fixed_permutation(TOKENS, 3 + 3))
    assert list(slices[1].state_dict()) == ["permutation"]
    assert not list(slices[0].state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(groups=(5,)), "groups=5: must divide the 12 tokens"),
        (dict(groups=(0,)), "groups=0: must divide the 12 tokens"),
        (dict(inference="seeded"), "inference='seeded': must be 'fixed' or 'random'"),
    ],
)
def test_wrong_arguments_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        SliceConfig(**{**dict(tokens=TOKENS, groups=(3,), permuted=(True,)), **changes})
