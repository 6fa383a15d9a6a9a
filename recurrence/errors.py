"""Errors that know their field, so that each plugin can name its own option in the message."""

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
        rule: the broken rule; `{width}` in it stands for another field and its value.
        **others: values of the fields in the rule; None for a field without a value.
    """

    def __init__(self, field: str, value: Any, rule: str, **others: Any):
        super().__init__(field, value, rule)
        self.field, self.value, self.rule, self.others = field, value, rule, others

    def message(self, name: Callable[[str], str]) -> str:
        """The message, with fields renamed by a function."""
        others = {
            other: name(other) if value is None else f"{name(other)}={value}" for other, value in self.others.items()
        }
        return f"{name(self.field)}={self.value}: {self.rule.format(**others)}"

    def __str__(self) -> str:
        return self.message(str)


def report_to_torchrun(line: str) -> None:
    """Writes the error message to torchrun's error file; otherwise its report gives no cause of the failure."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        message = {"message": line, "extraInfo": {"timestamp": str(int(time.time()))}}
        Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")
