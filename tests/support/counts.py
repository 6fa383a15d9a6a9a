"""Expected parameter counts and orders of blocks of every registered model, from tests/counts.csv.

Each line is a registered model, possibly with options (fairseq's flags or timm's arguments). `symbols`: sizes of
fairseq's dictionaries, one number for a joined dictionary. `counted`: all parameters, or only those of the loops.
`order`: the block of each pass; if the decoder's order differs from the encoder's, it follows after a bar. `printed`:
millions of parameters in the paper.
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
        pairs = (option.split("=", 1) for option in self.options.split())
        return {name: ast.literal_eval(value) for name, value in pairs}

    def agrees(self, parameters: int, loops: list[Loop]) -> bool:
        """Whether a model has this count, which rounds to the paper's, and this order."""
        digits = len(self.printed.partition(".")[2])
        orders = list(dict.fromkeys(" ".join(map(str, loop.order)) for loop in loops))
        return (
            parameters == self.parameters
            and self.printed in ("", f"{parameters / 1e6:.{digits}f}")
            and self.order in ("", " | ".join(orders))
        )


with (Path(__file__).parents[1] / "counts.csv").open(encoding="utf-8", newline="") as _file:
    COUNTS = [Count(**{**line, "parameters": int(line["parameters"])}) for line in csv.DictReader(_file)]
