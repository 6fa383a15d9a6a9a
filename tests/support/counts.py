"""How many parameters each registered model has, and in which order its blocks run: tests/counts.csv.

A line is a model as registered, or with some options: flags of fairseq, arguments of timm. `symbols` of fairseq's
dictionary: of one joined, or of two; `counted`: all parameters, or those of the loops alone. `order`: which block each
pass runs, of the encoder and, behind a bar, of the decoder where it has another. `printed`: the paper's millions.
"""

import ast
import csv
from pathlib import Path
from typing import Any, NamedTuple

from recurrence.loop import Loop


class Count(NamedTuple):
    model: str
    options: str
    symbols: str
    counted: str
    parameters: int
    order: str
    printed: str

    def __str__(self) -> str:
        return f"{self.model} {self.options}".strip()

    @property
    def arguments(self) -> dict[str, Any]:
        """The options as timm's arguments."""
        return {name: ast.literal_eval(value) for name, _, value in (o.partition("=") for o in self.options.split())}

    def agrees(self, parameters: int, loops: list[Loop]) -> bool:
        """Whether a model has these parameters, as many as are printed, and this order."""
        digits = len(self.printed.partition(".")[2])
        orders = list(dict.fromkeys(" ".join(map(str, loop.order)) for loop in loops))
        return (
            parameters == self.parameters
            and self.printed in ("", f"{parameters / 1e6:.{digits}f}")
            and self.order in ("", " | ".join(orders))
        )


with (Path(__file__).parents[1] / "counts.csv").open(encoding="utf-8", newline="") as _file:
    COUNTS = [Count(**{**line, "parameters": int(line["parameters"])}) for line in csv.DictReader(_file)]
