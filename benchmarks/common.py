"""Common functions of the benchmarks: relative times, peak memory, printed tables and command-line options.

Models are timed in one process in alternation, so that drift in the machine's speed affects all of them; a result is
the median over rounds of the ratio of two consecutive runs. Peak memory is measured in a separate process for each
model.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch._dynamo  # now, as the first optimizer or scan would import its 140 MiB while memory is measured
from torch import nn

from recurrence.papers.cuda_graph import CAPTURED_AT
from recurrence.private_torch import bound_caches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = ("float32", "bfloat16", "float16")
WEIGHTS = dict(device=DEVICE, dtype=torch.float32)  # device and type of the weights; set_up sets the type
Rows = dict[str, tuple[float, float]]


def ratios(work: dict[str, Callable[[], object]], rounds: int, base: str) -> Rows:
    """Times functions in alternation, once per round after a warm-up, which on a GPU lets them capture their graphs.

    Args:
        work: the functions by name.
        rounds: number of timed rounds.
        base: name of the function that the others are compared with.

    Returns:
        For each name, the median time in seconds and the median ratio to the base's time in the same round.
    """
    times = {name: [] for name in work}
    warm_up = CAPTURED_AT if DEVICE == "cuda" else 1
    for _ in range(warm_up + rounds):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            finish()
            times[name].append(time.perf_counter() - start)
    times = {name: values[warm_up:] for name, values in times.items()}
    return {
        name: (statistics.median(values), statistics.median(a / b for a, b in zip(values, times[base])))
        for name, values in times.items()
    }


def finish() -> None:
    """Waits until the device has computed everything, so that a clock read afterwards counts it."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def resident(field: str) -> int:
    """Memory of this process in bytes: current (VmRSS) or peak (VmHWM)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def backward_pass(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """A function that runs one forward and backward pass of a model in training mode."""

    def step() -> None:
        model.train().zero_grad()
        loss().backward()

    return step


def training_peak(build: Callable[[], nn.Module], training_step: Callable[[nn.Module], Callable[[], None]]) -> int:
    """Peak memory in bytes of parameters, gradients, Adam and activations over three training steps, on CPU or GPU.

    Args:
        build: builds the model.
        training_step: returns, for a model, a function that runs one forward and backward pass.
    """
    before = resident("VmRSS")
    model = build()
    optimizer, step = torch.optim.Adam(model.parameters()), training_step(model)
    for _ in range(3):
        step()
        optimizer.step()
    return torch.cuda.max_memory_allocated() if DEVICE == "cuda" else resident("VmHWM") - before


def peak_memory(benchmark: str, names: list[str], base: str) -> Rows:
    """Runs a benchmark's `--peak-memory` with this process's options; returns MiB and ratio to the base per model."""
    command = [sys.executable, "-m", benchmark, *sys.argv[1:], "--peak-memory"]
    printed = {name: subprocess.run([*command, name], check=True, stdout=subprocess.PIPE, text=True) for name in names}
    mib = {name: int(done.stdout.split()[-1]) / 2**20 for name, done in printed.items()}
    return {name: (value, value / mib[base]) for name, value in mib.items()}


def show(title: str, rows: Rows, unit: str) -> None:
    """Prints a table."""
    print(f"\n{title}\n{'':28s}{unit:>10s}{'ratio':>8s}")
    for name, (value, ratio) in rows.items():
        print(f"{name:28s}{value:10.4g}{ratio:8.3f}")
    sys.stdout.flush()


def positive(text: str) -> int:
    """Parses a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be >= 1")
    return number


def parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """A command line with the options that all benchmarks share.

    Args:
        description: help text of the benchmark.
        rounds: default number of rounds.
    """
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = result.add_argument
    add("--threads", type=positive, default=2)
    add("--rounds", type=positive, default=rounds)
    add("--dtype", default="float32", choices=DTYPES, help="type of weights and activations")
    add("--peak-memory", metavar="MODEL", help="only print the peak training memory of a model, in bytes")
    return result


def set_up(
    options: argparse.Namespace, build: Callable[[str], nn.Module], training_step: Callable[[nn.Module], Callable]
) -> str:
    """Applies the options to PyTorch; with `--peak-memory`, prints the peak memory of one model and exits.

    Args:
        options: parsed command line.
        build: builds a model from its name.
        training_step: returns, for a model, a function that runs one forward and backward pass.

    Returns:
        A line that describes the machine.
    """
    bound_caches()
    torch.set_num_threads(options.threads)
    WEIGHTS["dtype"] = getattr(torch, options.dtype)
    if options.peak_memory:
        print(training_peak(lambda: build(options.peak_memory), training_step))
        sys.exit()
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{options.threads} threads"
    return f"torch {torch.__version__}, {where}, {options.dtype}"
