"""Refusals that know the field they are about, so that each plugin tells them by the name of its own option."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
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


def tell_torchrun(line: str) -> None:
    """Leave the last words of this process to torchrun, whose report gives no cause of a failure otherwise."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        message = {"message": line, "extraInfo": {"timestamp": str(int(time.time()))}}
        Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")
