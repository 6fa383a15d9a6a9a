"""What runs in a new process that has not imported the repairs of fairseq."""

from collections.abc import Callable
from functools import partial
from pathlib import Path


def note_repairs(rank: int, main: Callable, path: Path) -> None:
    """Writes which repairs the function has that `main`, a partial one, passes on."""
    (passed_on,) = main.args if isinstance(main, partial) else (main,)
    path.write_text(" ".join(getattr(passed_on, "fairseq_repairs", ())))
