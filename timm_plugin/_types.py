"""Type checks for configurations."""

import math
import types
from collections.abc import Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, Union, get_args, get_origin, get_type_hints

NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "text", type(None): "None"}


def check_types(config: Any) -> None:
    """Rejects values that do not have the type of their field, infinite values, and invalid image sizes.

    Raises:
        ValueError: naming the field and the value.
    """
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if field.name == "img_size":
            check_size(value)
        elif not fits(value, hint):
            raise ValueError(f"{field.name}={value!r}: must be {described(hint)}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has a declared type; an int is also a float, but a bool is neither."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(fits(value, option) for option in get_args(hint))
    if get_origin(hint) is Sequence:
        return isinstance(value, list | tuple) and all(fits(entry, *get_args(hint)) for entry in value)
    if hint in (int, float):
        number = isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
        return number and math.isfinite(value)
    return isinstance(value, hint)


def described(hint: Any) -> str:
    """A declared type in words."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(described, get_args(hint)))
    if get_origin(hint) is Sequence:
        (entry,) = get_args(hint)
        return "a list of " + {int: "whole numbers", str: "texts", Sequence[int]: "lists of whole numbers"}[entry]
    return NAMES[hint]


def check_size(value: Any) -> None:
    """Rejects an image size that is neither one side nor two, in whole numbers >= 1; raises ValueError."""
    sides = value if isinstance(value, list | tuple) else (value, value)
    if len(sides) != 2 or not all(fits(side, int) and side >= 1 for side in sides):
        raise ValueError(f"img_size={value!r}: must be one side or two, in whole numbers >= 1")
