"""Refusals that know the field they are about, so that each plugin tells them by the name of its own option."""

from collections.abc import Callable
from typing import Any


class FieldError(ValueError):
    """A value that breaks a rule: `heads=3: must divide width=16`.

    Args:
        field: name of the value.
        value: the value.
        rule: what it breaks; `{width}` in it stands for another field and its value.
        **others: values of the fields that the rule names.
    """

    def __init__(self, field: str, value: Any, rule: str, **others: Any):
        super().__init__(field, value, rule)
        self.field, self.value, self.rule, self.others = field, value, rule, others

    def told(self, name: Callable[[str], str]) -> str:
        """The message, with every field under the name that a function gives it."""
        others = {other: f"{name(other)}={value}" for other, value in self.others.items()}
        return f"{name(self.field)}={self.value}: {self.rule.format(**others)}"

    def __str__(self) -> str:
        return self.told(str)
