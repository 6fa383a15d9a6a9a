"""Permutations of slices, and rejections; tests/timm/test_slices.py and test_published.py are of what they compute."""

import pytest
import torch

from recurrence.papers.slices import SliceConfig, fixed_permutation, random_permutation


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


@pytest.mark.parametrize("groups", [0, 5])
def test_numbers_of_slices_that_do_not_divide_the_tokens_are_rejected(groups):
    with pytest.raises(ValueError, match=f"groups={groups}: must divide the 12 tokens"):
        SliceConfig(tokens=12, groups=(groups,), permuted=(True,))
