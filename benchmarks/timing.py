"""Times as ratios, and tables of them.

Everything is timed in one process, in turn, so that a machine whose speed drifts slows all of it alike; a figure is the
median over rounds of the ratios of neighbouring runs.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def ratios(work: dict[str, Callable[[], None]], rounds: int, base: str) -> dict[str, tuple[float, float]]:
    """Runs every function in turn, as often as there are rounds and once before to warm up.

    Returns:
        For each name the median time in seconds, and the median of its ratio to the base's time of the same round.
    """
    times = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    times = {name: values[1:] for name, values in times.items()}
    return {
        name: (statistics.median(values), statistics.median(a / b for a, b in zip(values, times[base])))
        for name, values in times.items()
    }


def show(title: str, rows: dict[str, tuple[float, float]], unit: str) -> None:
    """Prints a table."""
    print(f"\n{title}\n{'':28s}{unit:>10s}{'ratio':>8s}")
    for name, (value, ratio) in rows.items():
        print(f"{name:28s}{value:10.4f}{ratio:8.3f}")
    sys.stdout.flush()
