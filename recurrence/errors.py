"""Errors that know their field, so that each plugin can name its own option in the message."""

import re
from collections.abc import Callable
from typing import Any


class FieldError(ValueError):
    """A value that breaks a rule: `heads=3: must divide width=16`.

    Args:
        field: name of the value.
        value: the value; None to give only the name.
        rule: the broken rule; `{width}` in it stands for another field, and its value if that is given.
        **others: values of fields in the rule.
    """

    def __init__(self, field: str, value: Any, rule: str, **others: Any):
        super().__init__(field, value, rule)
        self.field, self.value, self.rule, self.others = field, value, rule, others

    def message(self, show: Callable[[str, Any], str]) -> str:
        """The message, in which a function shows each field and its value."""
        rule = re.sub(r"{(\w+)}", lambda other: show(other[1], self.others.get(other[1])), self.rule)
        return f"{show(self.field, self.value)}: {rule}"

    def __str__(self) -> str:
        return self.message(shown)


def shown(name: str, value: Any) -> str:
    """ "width=16"; only the name if the value is None."""
    return name if value is None else f"{name}={value}"


def misfit(error: BaseException) -> str | None:
    """Which weights do not fit a model, in one line; None for an error of another kind.

    torch's message has a line per tensor of another shape, and lists all missing and all unexpected keys. Of each of
    these kinds, the first is named here, and the others are counted.
    """
    first, *lines = str(error).splitlines() or [""]
    if " loading state_dict for " not in first:
        return None
    kinds: dict[str, list[str]] = {}
    for line in map(str.strip, lines):
        short = re.sub(r'(, "[^"]*")+', lambda rest: f" and {rest[0].count(', ')} more", line)
        kinds.setdefault(line.split()[0], []).append(short)
    return " ".join(f"{one} And {len(rest)} more." if rest else one for one, *rest in kinds.values())
