"""The options that all image models share, and their rules."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from timm_plugin._types import check_types
from timm_plugin.elastic import ElasticConfig


@dataclass(frozen=True)
class ImageConfig(ElasticConfig, ABC):
    """Base of the families' configurations; the options of depth in training are those of :class:`ElasticConfig`.

    Args:
        img_size: height and width of the images, or one number for both.
        in_chans: channels of the images.
        num_classes: classes; 0 returns pooled features.
        drop_rate: dropout before the classifier.
        pos_drop_rate: dropout on the embedded image.
        attn_drop_rate: dropout on the attention weights.
        drop_path_rate: of the last pass; it rises linearly from 0.
    """

    img_size: int | Sequence[int] = 224
    in_chans: int = 3
    num_classes: int = 1000
    drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """Arguments of the same model without loops, with which :mod:`timm_plugin.compare` compares it.

        Args:
            blocks: number of blocks of each stage, each run once.

        Raises:
            ValueError: if there is no such model.
        """
        return {field.name: field.default for field in fields(ElasticConfig)}

    @abstractmethod
    def sized(self, units: int, hidden: int) -> dict[str, Any]:
        """Arguments of a wider or narrower model with heads of the same width.

        Args:
            units: heads, as a multiple of the smallest numbers in the same proportion.
            hidden: hidden units of each MLP (of a pyramid: in its first stage) beyond the proportion.
        """

    def check(self, at_least_one: Sequence[str], **choices: Sequence[str]) -> None:
        """Checks each option by itself.

        Args:
            at_least_one: options that must be >= 1.
            **choices: allowed values of other options.

        Raises:
            ValueError: naming the option, its value and the rule.
        """
        check_types(self)
        self.check_depth()
        for name, values in choices.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {tuple(values)}")
        for name in ("in_chans", *at_least_one):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be >= 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_rate") and not 0 <= value <= 1:
                raise ValueError(f"{field.name}={value}: must be a rate within [0, 1]")
