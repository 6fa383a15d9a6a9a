"""Greys of 16 bits as the nearest of 8; Pillow's own `convert` turns all above 255 white."""

from typing import Any

import numpy as np


def has_16_bits(image: Any) -> bool:
    """Whether an opened image has greys of 16 bits, which Pillow takes for 32 in PGM and, in old versions, in PNG."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))


def eight_bits(image: Any) -> np.ndarray:
    """The greys of such an image in 8 bits, (height, width)."""
    return ((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8)
