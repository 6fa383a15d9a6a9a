"""What the benchmarks share: times as ratios, peak memory, tables, the options of their command lines.

Everything is timed in one process, in turn, so that a machine whose speed drifts slows all of it alike; a figure is the
median over rounds of the ratios of neighbouring runs. Peak memory is that of a process of its own for each model.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from recurrence import count, linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = ("float32", "bfloat16", "float16")
WEIGHTS = dict(device=DEVICE, dtype=torch.float32)  # where and as what a model's weights lie; set_up chooses the type
Rows = dict[str, tuple[float, float]]


def ratios(work: dict[str, Callable[[], object]], rounds: int, base: str) -> Rows:
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


def machine_rate(repeats: int = 9) -> float:
    """Floating-point operations per second of a large product, by whichever library is faster here: the limit."""
    rows = 8192 if DEVICE == "cuda" else 1024
    x, weight = (torch.ones(rows, 1024, **WEIGHTS) for _ in range(2))
    libraries = ("onednn", "mkl") if DEVICE == "cpu" else ("mkl",)
    times = []
    with torch.no_grad():
        for name in libraries * repeats:
            with linear.using(name):
                start = time.perf_counter()
                linear.linear(x, weight)
                if DEVICE == "cuda":
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - start)
    return 2 * x.numel() * rows / min(times)  # other work on the machine only ever slows one down


def shares(work: dict[str, Callable[[], object]], rows: Rows) -> dict[str, float]:
    """What share of the machine's rate of products each function reaches in the time that it took.

    Its operations are those of its matrix products and convolutions, as PyTorch counts them.
    """
    limit = machine_rate()
    # In operators that PyTorch's counter knows.
    with linear.using("mkl"), sdpa_kernel(SDPBackend.MATH), torch.compiler.set_stance("force_eager"):
        return {name: count.flops(run) / rows[name][0] / limit for name, run in work.items()}


def resident(field: str) -> int:
    """Memory of this process in bytes: now (VmRSS) or at its peak (VmHWM)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def training_peak(build: Callable[[], nn.Module], training_step: Callable[[nn.Module], Callable[[], None]]) -> int:
    """Bytes that parameters, gradients, Adam and activations of three training steps add to the process or the GPU.

    Args:
        build: makes the model.
        training_step: makes of it a function that runs one forward and backward pass.
    """
    before = resident("VmRSS")
    model = build()
    optimizer, step = torch.optim.Adam(model.parameters()), training_step(model)
    for _ in range(3):
        step()
        optimizer.step()
    return torch.cuda.max_memory_allocated() if DEVICE == "cuda" else resident("VmHWM") - before


def peak_memory(benchmark: str, names: list[str], base: str) -> Rows:
    """Runs a benchmark's `--peak-memory` with this process's options: MiB of each model, and the ratio to the base."""
    command = [sys.executable, "-m", benchmark, *sys.argv[1:], "--peak-memory"]
    printed = {name: subprocess.run([*command, name], check=True, capture_output=True, text=True) for name in names}
    mib = {name: int(done.stdout.split()[-1]) / 2**20 for name, done in printed.items()}
    return {name: (value, value / mib[base]) for name, value in mib.items()}


def show(title: str, rows: Rows, unit: str, shares: dict[str, float] | None = None) -> None:
    """Prints a table; shares are those of the machine's limit, see :func:`shares`."""
    print(f"\n{title}\n{'':28s}{unit:>10s}{'ratio':>8s}{'of limit' if shares else '':>10s}")
    for name, (value, ratio) in rows.items():
        print(f"{name:28s}{value:10.4g}{ratio:8.3f}" + (f"{shares[name]:10.1%}" if shares else ""))
    sys.stdout.flush()


def parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """The options of every benchmark.

    Args:
        description: of the benchmark.
        rounds: how many by default.
    """
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--threads", type=int, default=2)
    result.add_argument("--rounds", type=int, default=rounds)
    result.add_argument(
        "--no-onednn", action="store_true", help="take PyTorch's BLAS for all linear layers, as fairseq does"
    )
    result.add_argument("--dtype", default="float32", choices=DTYPES, help="of weights and activations")
    result.add_argument("--peak-memory", metavar="MODEL", help="print the peak training memory of one, in bytes")
    return result


def set_up(
    options: argparse.Namespace, build: Callable[[str], nn.Module], training_step: Callable[[nn.Module], Callable]
) -> str:
    """Applies the options to PyTorch; with `--peak-memory` prints that of one model and ends the program.

    Args:
        options: of the command line.
        build, training_step: make a model by its name, and of it a function that runs one forward and backward pass.

    Returns:
        The line that says where the benchmark runs.
    """
    torch.set_num_threads(options.threads)
    WEIGHTS["dtype"] = getattr(torch, options.dtype)
    if options.no_onednn:  # for our linear layers alone: fairseq's and timm's convolutions are oneDNN's too
        linear.LIBRARY = "mkl"
    if options.peak_memory:
        print(training_peak(lambda: build(options.peak_memory), training_step))
        sys.exit()
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{options.threads} threads"
    return f"torch {torch.__version__}, {where}, {options.dtype}"
