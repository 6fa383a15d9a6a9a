"""Layers of more than one family: SReT's stems, and timm's drop path in a form that compiles once.

Source of the stems: SReT (arXiv:2111.05297) and its published code, which takes a patch size and a stride and ignores
both; PiT (arXiv:2103.16302), section 3, for the overlapping patches of SReT's ablation.
"""

import abc
from collections.abc import Sequence

import timm.layers
import torch
import torch.nn.functional as F
from timm.layers import to_2tuple
from torch import Tensor, nn


class DropPath(timm.layers.DropPath):
    """timm's module for branches (B, T, C), with the rate as a tensor, so that blocks compile one graph for all rates.

    Source: Huang et al. (arXiv:1603.09382), section 3.
    """

    @property
    def drop_prob(self) -> float:
        """The rate, which may be changed."""
        return self._rate

    @drop_prob.setter
    def drop_prob(self, rate: float) -> None:
        self._rate, self._drops = rate, rate > 0
        # No buffer, which checkpoints would hold.
        self._keeps = torch.tensor(1 - rate, dtype=torch.float64, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        """In training, drops x for entire samples and scales the others by 1 / (1 - rate): (B, T, C) -> the same."""
        if not (self.training and self._drops):
            return x
        keeps = self._keeps if isinstance(x, Tensor) else 1 - self._rate  # a traced graph would store the tensor
        chance = x.new_ones(x.shape[0], 1, 1) * keeps  # one draw per sample
        kept = chance.bernoulli()
        if self.scale_by_keep:
            kept = kept / chance.clamp(min=1e-6)  # at a rate of 1, nothing is kept
        return x * kept


class Stem(nn.Module, abc.ABC):
    """Base of the stems, which turn images into a map of about an eighth of their height and width.

    Args:
        img_size: height and width of the images.
    """

    def __init__(self, img_size: int | Sequence[int]):
        super().__init__()
        self.set_input_size(img_size)

    @staticmethod
    @abc.abstractmethod
    def grid(side: int) -> int:
        """The side of the map for images with this side in pixels."""

    def set_input_size(self, img_size: int | Sequence[int]) -> None:
        """Changes the image size."""
        self.img_size = to_2tuple(img_size)
        self.grid_size = tuple(map(self.grid, self.img_size))

    def check(self, x: Tensor) -> None:
        """Raises AssertionError if images have another height or width."""
        height, width = self.img_size
        torch._assert(x.shape[2] == height, f"images must be {height} pixels high, as the model's img_size says")
        torch._assert(x.shape[3] == width, f"images must be {width} pixels wide, as the model's img_size says")


class PatchStem(Stem):
    """PiT's patches: a convolution of 16x16 pixels, 8 apart."""

    def __init__(self, in_chans: int, embed_dim: int, img_size: int | Sequence[int]):
        super().__init__(img_size)
        self.proj = nn.Conv2d(in_chans, embed_dim, 16, stride=8)

    @staticmethod
    def grid(side: int) -> int:
        return side // 8 - 1

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> (B, C, height / 8 - 1, width / 8 - 1)."""
        self.check(x)
        return self.proj(x)


class ConvStem(Stem):
    """Three convolutions of stride 2, each with batch norm and ReLU: an eighth of height and width, rounded up."""

    def __init__(self, in_chans: int, embed_dim: int, img_size: int | Sequence[int]):
        super().__init__(img_size)
        self.conv1 = nn.Conv2d(in_chans, embed_dim // 2, 3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(embed_dim // 2)
        self.conv2 = nn.Conv2d(embed_dim // 2, embed_dim, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(embed_dim)
        self.conv3 = nn.Conv2d(embed_dim, embed_dim, 3, stride=2, padding=1)
        self.bn3 = nn.BatchNorm2d(embed_dim)

    @staticmethod
    def grid(side: int) -> int:
        return -(-side // 8)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> (B, C, height / 8, width / 8)."""
        self.check(x)
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.relu(self.bn3(self.conv3(x)))


STEMS: dict[str, type[ConvStem | PatchStem]] = {"conv": ConvStem, "patch": PatchStem}


class StemEmbed(nn.Module):
    """Patches of 16 pixels by SReT's stem and a 2x2 convolution, instead of timm's `PatchEmbed`."""

    def __init__(self, img_size: int | Sequence[int], in_chans: int, embed_dim: int):
        super().__init__()
        self.patch_size = (16, 16)
        self.stem = ConvStem(in_chans, embed_dim, img_size)
        self.proj = nn.Conv2d(embed_dim, embed_dim, kernel_size=2, stride=2)
        self.set_input_size(img_size)

    def set_input_size(self, img_size: int | Sequence[int]) -> None:
        """Changes the image size."""
        self.stem.set_input_size(img_size)
        self.img_size = self.stem.img_size
        rows, columns = self.stem.grid_size
        self.grid_size = (rows // 2, columns // 2)
        self.num_patches = (rows // 2) * (columns // 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> (B, N, C)."""
        return self.proj(self.stem(x)).flatten(2).transpose(1, 2)
