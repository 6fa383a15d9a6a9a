"""The options that all image models share, and their rules. A family derives its own from them."""

import difflib
import inspect
import math
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from recurrence.elastic import TrainingDepth, check_options, training_depth
from recurrence.errors import FieldError, shown
from recurrence.order import Order


def option(default: Any, choices: Sequence[str] = (), least: int | None = None) -> Any:
    """A field of a configuration: its default, the allowed values (any if there are none), the smallest number."""
    return field(default=default, metadata=dict(choices=tuple(choices), least=least))


@dataclass(frozen=True)
class ImageConfig:
    """The options of all families. A family adds fields and rules (:meth:`check`).

    A value that breaks a rule of :mod:`recurrence` is rejected there, under the core's name for it;
    :meth:`arguments_in_errors` gives it ours.

    Args:
        img_size: height and width of the images, or one number for both.
        in_chans: channels of the images.
        num_classes: classes; 0 returns pooled features.
        global_pool: "avg", "max", "avgmax", with a class token "token", or "" for `forward_features` as it is.
        drop_rate: dropout before the classifier.
        pos_drop_rate: dropout on the embedded image.
        proj_drop_rate: dropout on the output of attention.
        attn_drop_rate: dropout on the attention weights.
        drop_path_rate: of the last pass; it rises linearly from 0.
        depth_range: smallest and largest number of passes (for SReT, of `loops`) that an update may draw.
        depth_seed: seed of the draws (default 0).
        depth_warmup_updates: updates during which the smallest depth that is drawn, or has a loss by `pass_loss`, falls
            linearly from the full depth.
        mixed_depth: train at two depths in every update: all passes, and the drawn depth or, without `depth_range`, one
            run of each stored block. Needs :class:`timm_plugin.task.DeepSupervisionTask`, as `pass_loss` does.
        pass_loss: weight of the mean loss of the earlier passes at which a shallower model would end; 0 for none.

    Attributes:
        fixed: inherited options that must have the family's defaults.
        names: options by their names in the core.

    Raises:
        ValueError: if a value breaks its rule.
    """

    img_size: int | Sequence[int] = 224
    in_chans: int = option(3, least=1)
    num_classes: int = 1000
    global_pool: str = "avg"
    drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    depth_range: Sequence[int] | None = None
    depth_seed: int | None = None
    depth_warmup_updates: int = 0
    mixed_depth: bool = False
    pass_loss: float = 0.0

    fixed: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[dict[str, str]] = {}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Any:
        """The configuration with these options.

        Raises:
            TypeError: for an option that the family does not have.
            ValueError: if a value breaks its rule.
        """
        for name in sorted(options.keys() - {spec.name for spec in fields(cls)}):
            raise TypeError(f"{cls.__name__} got an unexpected keyword argument {name!r}{near(name, cls.options())}")
        return cls(**options)

    @classmethod
    def options(cls) -> list[str]:
        """The arguments that the family takes."""
        return [spec.name for spec in fields(cls) if spec.name not in cls.fixed]

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
            if value is None:  # of an allowed type, see above
                continue
            if about.get("choices") and value not in about["choices"]:
                raise ValueError(f"{spec.name}={value!r}: must be one of {about['choices']}")
            if about.get("least") is not None and value < about["least"]:
                raise ValueError(f"{spec.name}={value}: must be >= {about['least']}")
            if spec.name.endswith("_rate") and not 0 <= value <= 1:
                raise ValueError(f"{spec.name}={value}: must be a rate within [0, 1]")
        if self.depth_range is not None and len(self.depth_range) != 2:
            raise ValueError(f"depth_range={self.depth_range}: must be two numbers of passes")
        if self.depth_seed is not None and self.depth_range is None:
            raise ValueError(f"depth_seed={self.depth_seed}: needs depth_range")
        depth = {name: getattr(self, name) for name in DEPTH_OPTIONS}
        check_options({name: value for name, value in depth.items() if value != DEPTH_OPTIONS[name]})

    @contextmanager
    def arguments_in_errors(self) -> Iterator[None]:
        """Turns the core's `heads=3: must divide width=16` into `num_heads=3: must divide embed_dim=16`."""
        try:
            yield
        except FieldError as error:
            raise ValueError(error.message(lambda name, value: shown(self.names.get(name, name), value))) from None

    def training_depth(self, order: Order, **rules: Any) -> TrainingDepth:
        """How many passes of a loop each update trains.

        Args:
            order: of the loop.
            **rules: `step`, `unit` and `prefix_only`, see :func:`recurrence.elastic.training_depth`.

        Raises:
            FieldError: where an option conflicts with the order.
        """
        given = (self.depth_range, self.depth_warmup_updates, self.mixed_depth, self.pass_loss, self.depth_seed or 0)
        return training_depth(order, *given, **rules)

    def unshared(self, blocks: Sequence[int]) -> dict[str, Any]:
        """Options of the same model without loops, for :mod:`timm_plugin.compare`; its `model` if of another family.

        Args:
            blocks: number of blocks of each stage, each run once.

        Raises:
            ValueError: if there is no such model. A family that has one also defines `more_heads` and `narrower_heads`,
                see :class:`recurrence.comparison.controls.Controls`.
        """
        raise ValueError(f"{type(self).__name__}: defines no model without a loop to compare it with (`unshared`)")


DEPTH_OPTIONS = {
    name: getattr(ImageConfig, name)
    for name in ("depth_range", "depth_seed", "depth_warmup_updates", "mixed_depth", "pass_loss")
}
"""The options that only steer training, with their defaults."""


def near(name: str, known: Iterable[str]) -> str:
    """The known name that a wrong one resembles most, as the end of a message; empty if it resembles none."""
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


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
