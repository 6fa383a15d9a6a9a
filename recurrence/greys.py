"""Greys of 16 bits as the nearest of 8; Pillow's own `convert` turns all above 255 white."""

from typing import Any

import numpy as np


def has_16_bits(image: Any) -> bool:
    """Whether an image that Pillow has opened has greys of 16 bits; those of PGM, and once of PNG, it calls 32."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))


def eight_bits(image: Any) -> np.ndarray:
    """The greys of such an image in 8 bits, (height, width)."""
    return ((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8)
