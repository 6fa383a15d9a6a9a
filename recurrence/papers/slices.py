"""Sliced group attention: each token attends within its slice, and permutations mix the slices between passes.

Source: SReT (arXiv:2111.05297), section 4: global attention approximated by that of several groups.
Differs from the published code, which derives the permuted passes from positions in a flat list and draws a new
permutation at every call: here each pass says whether it is permuted, so that a block may run any number of times, and
the permutations for inference are fixed and stored in the checkpoint.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class SliceConfig:
    """The slices of every pass.

    Raises:
        ValueError: if a value breaks its rule.
    """

    tokens: int  # N, the number of tokens
    groups: tuple[int, ...]  # number of slices in each pass; each must divide N
    permuted: tuple[bool, ...]  # for each pass, whether its slices come from a permutation of the tokens
    always_random: bool = False  # draw a permutation for each call at inference too, as published
    seed: int = 0  # of the fixed permutations

    def __post_init__(self):
        for groups in self.groups:
            if groups < 1 or self.tokens % groups:
                raise ValueError(f"groups={groups}: must divide the {self.tokens} tokens")

    def of_pass(self, index: int) -> "Slices | None":
        """The slices of one pass; None if it attends globally."""
        if self.groups[index] == 1:
            return None
        seed = self.seed + index
        permutation = fixed_permutation(self.tokens, seed) if self.permuted[index] else None
        return Slices(self.groups[index], permutation, self.always_random, seed)


class Slices(nn.Module):
    """Runs an attention within the slices of one pass.

    Args:
        groups: number of slices.
        permutation: (N,), order of the tokens at inference before slicing; None for slices of neighbours.
        always_random: draw a new permutation at inference, too.
        seed: of the permutation, which is drawn again where a checkpoint has none for as many tokens.
    """

    def __init__(self, groups: int, permutation: Tensor | None, always_random: bool, seed: int):
        super().__init__()
        self.groups, self.always_random, self.seed = groups, always_random, seed
        self.register_buffer("permutation", permutation)

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        """Stores a copy of the permutation: averages of weights write into a state dict and would round it."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.permutation is not None:
            destination[f"{prefix}permutation"] = self.permutation.clone()

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *rest: Any) -> None:
        """Also loads weights that were trained with other slices or images."""
        key, own = f"{prefix}permutation", self.permutation
        if own is None:
            state_dict.pop(key, None)
        elif key not in state_dict or state_dict[key].shape != own.shape:
            drawn = fixed_permutation(len(own), self.seed)  # not the buffer, which may still be uninitialised
            state_dict[key] = drawn if own.is_meta else drawn.to(own)
        elif not state_dict[key].is_meta and len(state_dict[key].unique()) < len(own):
            cause = "an average of buffers (use_buffers=True) has rounded it"
            rest[-1].append(f"{key}: must be a permutation; {cause}")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """x: (B, N, C), attend: (B * groups, N / groups, C) to the same shape -> (B, N, C)."""
        batch, tokens, width = x.shape
        permutation = self.permutation
        if permutation is not None and (self.training or self.always_random):
            permutation = random_permutation(x)
        if permutation is not None:
            x = x.index_select(1, permutation)
        x = attend(x.reshape(batch * self.groups, tokens // self.groups, width)).reshape(batch, tokens, width)
        return x if permutation is None else put_back(x, permutation)


@torch.fx.wrap
def put_back(x: Tensor, permutation: Tensor) -> Tensor:
    """Permuted tokens (B, N, C) in their own order; permutation: (N,). Traced graphs do not store its inverse."""
    return x.index_select(1, permutation.argsort())


@torch.fx.wrap
def random_permutation(x: Tensor) -> Tensor:
    """A random permutation of the tokens of a batch: (B, N, C) -> (N,). Traced graphs draw one at each call."""
    return torch.randperm(x.size(1), device=x.device)


def fixed_permutation(tokens: int, seed: int) -> Tensor:
    """The permutation drawn with this seed: (N,)."""
    permutation = torch.randperm(tokens, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return permutation.to(torch.get_default_device())
