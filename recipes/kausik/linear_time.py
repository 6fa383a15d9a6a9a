"""Measure time and memory of Kausik's recurrent transformer and of a regular one over the length of the text.

    python recipes/kausik/linear_time.py --output linear-time.svg [--lengths 256 1024] [--threads 1]

The abstract says that the recurrent transformer works "in linear time in the length of the sequence during both
training and inference". Measured are one layer of `recurrent_lm` (width 384, 6 heads) and one regular layer without
positions: a training step on one text, and the token after a text, which the regular layer also computes without a
cache, by reading the whole text again. Each model and length has a process, and so a peak of memory, of its own. A time
is the median of three calls; with a cache, of 16 tokens. The numbers are printed as a Markdown table, too.
"""

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "figures"), str(Path(__file__).resolve().parents[2])]

import pictures  # noqa: E402

from benchmarks.common import DEVICE, finish, positive, ratios, resident  # noqa: E402
from fairseq_plugin.build import build_language_model, numbered_dictionary  # noqa: E402

SYMBOLS, RUNS, READ = 65, 3, 16
MODELS = {"recurrent": {}, "regular": {"regular": True, "position": "none"}}
QUANTITIES = {
    "training": "training step, seconds",
    "training_mib": "training step, peak MiB",
    "cached": "next token, milliseconds",
    "cached_mib": "held to read on, MiB",
    "uncached": "next token without a cache, milliseconds",
}


def seconds(run: Callable[[], object]) -> float:
    """The median of the seconds that calls take, after one that is not counted."""
    return ratios({"run": run}, RUNS, "run")["run"][0]


def measure(name: str, length: int) -> dict[str, float]:
    """The QUANTITIES of a model at a length; without a cache only for the regular model."""
    torch.manual_seed(0)
    model = build_language_model("recurrent_lm", numbered_dictionary(SYMBOLS), length + READ, **MODELS[name]).to(DEVICE)
    text = torch.randint(4, SYMBOLS, (1, length + READ), device=DEVICE)

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(text[:, :length])[0].flatten(0, 1), text[:, 1 : length + 1].flatten()).backward()

    before = resident("VmRSS")  # the training comes first, so that no memory freed by other work is reused
    found = {"training": seconds(step)}
    peak = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else resident("VmHWM") - before
    found["training_mib"] = max(0, peak) / 2**20  # Linux counts a process's pages in batches
    found |= _reading(model.eval(), text, length)
    if name == "regular":
        with torch.no_grad():
            found["uncached"] = 1000 * seconds(lambda: model(text[:, :length]))
    return found


@torch.no_grad()
def _reading(model: torch.nn.Module, text: torch.Tensor, length: int) -> dict[str, float]:
    """Time of a token after `length` others, and the size of what the state holds."""
    state: dict = {}
    model.decoder(text[:, :length], incremental_state=state)
    finish()
    held = _tensors(state)  # before the next token, at which a cache that is full grows to twice its size
    times = []
    for end in range(length + 1, length + READ + 1):
        start = time.perf_counter()
        model.decoder(text[:, :end], incremental_state=state)
        finish()
        times.append(time.perf_counter() - start)
    return {"cached": 1000 * statistics.median(times), "cached_mib": held / 2**20}


def _tensors(held: object) -> int:
    """Bytes of the tensors that an object holds, each storage once."""
    storages, seen, todo = {}, set(), [held]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            storages[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        elif isinstance(one, dict):
            todo.extend(one.values())
        elif isinstance(one, (list, tuple)):
            todo.extend(one)
        elif not isinstance(one, torch.nn.Module) and hasattr(one, "__dict__"):
            todo.extend(vars(one).values())
    return sum(storages.values())


def measured(name: str, length: int, threads: int) -> dict[str, float]:
    """:func:`measure` in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        return pool.submit(measure, name, length).result()


def draw(output: Path, found: dict[tuple[str, int], dict[str, float]]) -> None:
    """One panel for each quantity over the length, both axes logarithmic, and the numbers as CSV."""
    shown = [quantity for quantity in QUANTITIES if quantity != "uncached"]
    figure = pictures.page(4.2)
    for axes, quantity in zip(figure.subplots(2, 2).flat, shown):
        lines = [(name, quantity, name) for name in MODELS]
        if quantity == "cached":
            lines.append(("regular", "uncached", "regular, without a cache"))
        for colour, marker, (name, key, label) in zip(pictures.COLOURS, pictures.MARKERS, lines):
            points = {length: values[key] for (model, length), values in found.items() if model == name}
            axes.loglog(points.keys(), points.values(), color=colour, marker=marker, markersize=3, label=label)
        axes.set(title=QUANTITIES[quantity], xlabel="characters")
        axes.legend()
    rows = [(*which, *measured) for which, values in found.items() for measured in values.items()]
    pictures.save(figure, output, ("model", "characters", "quantity", "value"), rows)


def table(found: dict[tuple[str, int], dict[str, float]]) -> str:
    """The numbers in Markdown: a line for each model and quantity, a column for each length."""
    lengths = sorted({length for _, length in found})
    lines = [
        {"layer": name, "": title} | {f"{length:,}": float(f"{found[name, length][key]:.3g}") for length in lengths}
        for name in MODELS
        for key, title in QUANTITIES.items()
        if key in found[name, lengths[0]]
    ]
    return pd.DataFrame(lines).to_markdown(index=False, floatfmt="g")


def main() -> None:
    parser = pictures.parser(__doc__)
    parser.add_argument("--lengths", type=positive, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--threads", type=positive, default=1)
    args = parser.parse_args()
    found = {}
    for length in args.lengths:
        for name in MODELS:
            found[name, length] = measured(name, length, args.threads)
            values = ", ".join(f"{QUANTITIES[key]} {value:.4g}" for key, value in found[name, length].items())
            print(f"{name}, {length:,} characters: {values}", flush=True)
    draw(args.output, found)
    print(f"\n{table(found)}")


if __name__ == "__main__":
    main()
