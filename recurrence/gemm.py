"""Which of the two libraries that PyTorch ships multiplies float32 matrices on a CPU.

PyTorch uses its BLAS for float32 and oneDNN for bfloat16. On some CPUs oneDNN computes float32 products up to twice as
fast, on others the two are equal or the BLAS is ahead. So the first product times both, unless RECURRENCE_GEMM selects
"onednn" or "mkl" (PyTorch's BLAS).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from timeit import timeit

import torch
import torch.nn.functional as F

from recurrence.private_torch import onednn_linear, without_modes

LIBRARIES = ("auto", "onednn", "mkl")
LIBRARY = os.environ.get("RECURRENCE_GEMM", "auto")
if LIBRARY not in LIBRARIES:
    raise ValueError(f"RECURRENCE_GEMM={LIBRARY}: must be one of {LIBRARIES}")
# The BLAS must take less than this fraction of oneDNN's time: if the two are equal, the choice must not vary between
# runs, because a resumed run would round differently.
MARGIN = 0.8
REPEATS = 7  # measurements of each library

CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def bound_caches() -> None:
    """Makes oneDNN, and torch above it, keep the programs and workspaces of the last 128 products instead of 1,024.

    Batches of text rarely repeat a shape, so a training would grow by gigabytes; one batch needs fewer products than
    these. Sets environment variables that are read at the first product; those of the user stand.
    """
    for name in CACHES:
        os.environ.setdefault(name, "128")


def library() -> str:
    """ "onednn" or "mkl", the library for float32 products on the CPU; measured once if LIBRARY is "auto"."""
    global _measured
    if LIBRARY != "auto":
        return LIBRARY
    if _measured is None and not torch.compiler.is_compiling():
        _measured = _faster()
    return _measured or "onednn"


_measured: str | None = None


@contextmanager
def using(name: str) -> Iterator[None]:
    """Within the context, float32 products on the CPU use this library: "onednn", "mkl" or "auto"."""
    global LIBRARY
    before, LIBRARY = LIBRARY, name
    try:
        yield
    finally:
        LIBRARY = before


def _faster() -> str:
    """The faster library, by the shortest of several alternating measurements."""
    with without_modes(), torch.no_grad():  # hide these from operator counters and recorders
        x, weight = (torch.ones(rows, 512, device="cpu", dtype=torch.float32) for rows in (128, 512))
        runs = {"onednn": lambda: onednn_linear(x, weight, None, "none", [], ""), "mkl": lambda: F.linear(x, weight)}
        times = [{name: timeit(run, number=1) for name, run in runs.items()} for _ in range(REPEATS)]
    best = {name: min(each[name] for each in times) for name in runs}
    return "mkl" if best["mkl"] < MARGIN * best["onednn"] else "onednn"
