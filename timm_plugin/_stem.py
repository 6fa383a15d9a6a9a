"""SReT's stems: three 3x3 convolutions of stride 2 or, for its ablation, PiT's overlapping patches.

Source: SReT (arXiv:2111.05297) and its published code, which takes a patch size and a stride and ignores both; PiT
(arXiv:2103.16302), section 3.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from timm.layers import to_2tuple
from torch import Tensor, nn

from recurrence.private_torch import is_plain


class Stem(nn.Module):
    """Base of the stems, which turn images into a map of about an eighth of their height and width.

    Args:
        img_size: height and width of the images.
    """

    grid: Callable[[int], int]  # side of the map for images with this side in pixels

    def __init__(self, img_size: int | Sequence[int]):
        super().__init__()
        self.set_input_size(img_size)

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
        widths = (in_chans, embed_dim // 2, embed_dim, embed_dim)
        for number in (1, 2, 3):
            setattr(self, f"conv{number}", nn.Conv2d(widths[number - 1], widths[number], 3, stride=2, padding=1))
            setattr(self, f"bn{number}", nn.BatchNorm2d(widths[number]))

    @staticmethod
    def grid(side: int) -> int:
        return -(-side // 8)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> (B, C, height / 8, width / 8)."""
        self.check(x)
        x = F.relu(self.conv_bn(x, self.conv1, self.bn1))
        x = F.relu(self.conv_bn(x, self.conv2, self.bn2))
        return F.relu(self.conv_bn(x, self.conv3, self.bn3))

    def conv_bn(self, x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d) -> Tensor:
        """Convolution and batch norm of a map (B, channels, height, width); at inference they are one convolution."""
        plain = is_plain(conv, nn.Conv2d) and is_plain(bn, nn.BatchNorm2d) and bn.running_var is not None
        if bn.training or not plain or not isinstance(x, Tensor):  # fx records modules, which TorchScript can compile
            return bn(conv(x))
        scale = bn.weight * torch.rsqrt(bn.running_var + bn.eps)
        bias = (conv.bias - bn.running_mean) * scale + bn.bias
        return F.conv2d(x, conv.weight * scale[:, None, None, None], bias, conv.stride, conv.padding)


STEMS: dict[str, type[ConvStem | PatchStem]] = {"conv": ConvStem, "patch": PatchStem}


class StemEmbed(nn.Module):
    """Patches of 16 pixels by SReT's stem and a 2x2 convolution, instead of timm's `PatchEmbed`."""

    first_conv = "stem.conv1"  # which timm adapts to other in_chans

    def __init__(self, img_size: int | Sequence[int], patch_size: int, in_chans: int, embed_dim: int):
        super().__init__()
        self.patch_size = to_2tuple(patch_size)
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
