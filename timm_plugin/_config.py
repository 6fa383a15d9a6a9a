"""The options that all image models share, and their rules. A family derives its own from them."""

import inspect
import math
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from recurrence.errors import FieldError, shown
from timm_plugin.elastic import DEPTH_OPTIONS, ElasticConfig


def option(default: Any, choices: Sequence[str] = (), least: int | None = None) -> Any:
    """A field of a configuration: its default, the allowed values (any if there are none), the smallest number."""
    return field(default=default, metadata=dict(choices=tuple(choices), least=least))


@dataclass(frozen=True)
class ImageConfig(ElasticConfig, ABC):
    """Base of the families' configurations; the options of depth in training are those of :class:`ElasticConfig`.

    A family adds fields, rules (:meth:`check`) and the parts that it builds. A value that breaks a rule of
    :mod:`recurrence` is rejected there, under the core's name for it; :meth:`arguments_in_errors` gives it ours.

    Args:
        img_size: height and width of the images, or one number for both.
        in_chans: channels of the images.
        num_classes: classes; 0 returns pooled features.
        drop_rate: dropout before the classifier.
        pos_drop_rate: dropout on the embedded image.
        proj_drop_rate: dropout on the output of attention.
        attn_drop_rate: dropout on the attention weights.
        drop_path_rate: of the last pass; it rises linearly from 0.

    Attributes:
        model: the class of its models.
        fixed: inherited options that must have the family's defaults.
        names: options by their names in the core.
        undecayed: words in the names of parameters that have no weight decay.
        unlike_upstream: what timm's `VisionTransformer` has no place for, if that is known before weights are folded.

    Raises:
        ValueError: if a value breaks its rule.
    """

    img_size: int | Sequence[int] = 224
    in_chans: int = option(3, least=1)
    num_classes: int = 1000
    drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0

    model: ClassVar[Any]
    fixed: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[dict[str, str]] = {
        "width": "embed_dim",
        "ffn_width": "mlp_ratio * embed_dim",
        "heads": "num_heads",
        "unique_layers": "depth",
        "layers": "depth * loops",
    }
    undecayed: ClassVar[tuple[str, ...]] = ("cls_token", "pos_embed")
    unlike_upstream: ClassVar[str | None] = None

    def __post_init__(self):
        with self.arguments_in_errors():
            self.check()

    def check(self) -> None:
        """Raises ValueError for a value that breaks its rule; a family adds its rules."""
        check_size(self.img_size)
        hints = get_type_hints(type(self))
        for spec in fields(self):
            value, about = getattr(self, spec.name), spec.metadata
            if spec.name != "img_size" and not fits(value, hints[spec.name]):
                kind = inspect.formatannotation(hints[spec.name]).replace("collections.abc.", "")
                raise ValueError(f"{spec.name}={value!r}: must be of type {kind}")
            if spec.name in self.fixed and value != spec.default:
                raise ValueError(f"{spec.name}={value!r}: must be {spec.default!r} in this family")
            if about.get("choices") and value not in about["choices"]:
                raise ValueError(f"{spec.name}={value!r}: must be one of {about['choices']}")
            if about.get("least") is not None and value < about["least"]:
                raise ValueError(f"{spec.name}={value}: must be >= {about['least']}")
            if spec.name.endswith("_rate") and not 0 <= value <= 1:
                raise ValueError(f"{spec.name}={value}: must be a rate within [0, 1]")
        self.check_depth()

    @contextmanager
    def arguments_in_errors(self) -> Iterator[None]:
        """Turns the core's `heads=3: must divide width=16` into `num_heads=3: must divide embed_dim=16`."""
        try:
            yield
        except FieldError as error:
            raise ValueError(error.message(lambda name, value: shown(self.names.get(name, name), value))) from None

    @classmethod
    def options(cls) -> list[str]:
        """The arguments that the family takes."""
        return [spec.name for spec in fields(cls) if spec.name not in cls.fixed]

    @classmethod
    def merged(cls, preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a preset that the given ones leave."""
        return {name: value for name, value in preset.items() if name not in given}

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """Options of the same model without loops, for :mod:`timm_plugin.compare`; its `model` if of another family.

        Args:
            blocks: number of blocks of each stage, each run once.

        Raises:
            ValueError: if there is no such model.
        """
        return dict(DEPTH_OPTIONS)

    @abstractmethod
    def more_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """Options of a wider model with heads of the same width.

        Args:
            steps: more heads, as a multiple of the smallest numbers in the same proportion.
            hidden: hidden units of each MLP (of a pyramid: in its first stage) beyond the proportion.
        """

    @abstractmethod
    def narrower_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        """Options of a narrower model with as many heads.

        Args:
            steps: of the width, by which it is narrower; negative.
            hidden: see :meth:`more_heads`.

        Raises:
            ValueError: if a head would have no column.
        """


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has a declared type; an int is also a float, a bool is neither, and a number is finite."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(fits(value, option) for option in get_args(hint))
    if get_origin(hint) is Sequence:
        return isinstance(value, list | tuple) and all(fits(entry, *get_args(hint)) for entry in value)
    if hint in (int, float):
        number = isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
        return number and math.isfinite(value)
    return isinstance(value, hint)


def check_size(value: Any) -> None:
    """Rejects an image size that is neither one side nor two, in whole numbers >= 1; raises ValueError."""
    sides = value if isinstance(value, list | tuple) else (value, value)
    if len(sides) != 2 or not all(fits(side, int) and side >= 1 for side in sides):
        raise ValueError(f"img_size={value!r}: must be one side or two, in whole numbers >= 1")
