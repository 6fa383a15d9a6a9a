"""Turns the files in a run's folder into lines of results.csv.

They are env.json, the trainer's train.log (with train_image.py's summary.csv), the checkpoint of a text model and, if
the run succeeded, scores.json.
"""

import importlib.metadata
import json
import os
import platform
import re
import subprocess
from pathlib import Path

from results_csv import METRICS, append

from recurrence.files import read_json, read_table, read_text

# The checkpoint that was scored is the first of these that exists.
CHECKPOINTS = ("average.pt", "checkpoints/checkpoint_best.pt", "checkpoints/checkpoint_last.pt")
# What core parameters leave out: word embeddings, positions, convolutions of speech, the output layer, and buffers.
NOT_CORE = re.compile(
    r"embed_tokens|embed_positions|subsample|output_projection|adaptive_softmax|version|profiled$|\.(offset|looping)$"
)


def commit() -> str:
    """The short hash of the checkout's commit, with + for uncommitted changes; "none" outside a checkout."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return found.stdout.strip()


def device() -> str:
    """The GPU's name, or the processor's and the number of threads."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpuinfo, threads = Path("/proc/cpuinfo"), torch.get_num_threads()
    names = re.findall(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    return f"{(names or [platform.machine()])[0]}, {threads} thread{'s' if threads > 1 else ''}"


def write_environment(run: Path, processes: int = 1) -> None:
    """Writes env.json: device of each process, commit, cores and the versions of Python and all packages."""
    versions = {one.name: one.version for one in importlib.metadata.distributions()}
    devices = f"{processes} x {device()}" if processes > 1 else device()
    found = {"python": platform.python_version(), "device": devices, "cores": os.cpu_count(), "commit": commit()}
    (run / "env.json").write_text(json.dumps(found | {"packages": versions}, indent=2) + "\n", encoding="utf-8")


def last_number(pattern: str, text: str) -> int | None:
    """The last integer that follows a pattern, or None."""
    found = re.findall(pattern + r"\D{1,4}([\d,]+)", text)
    return int(found[-1].replace(",", "")) if found else None


def seconds(text: str) -> int:
    """Training time without validation. fairseq logs it per epoch; for a resumed epoch, the last line counts."""
    logged = re.findall(r"\| train \| epoch (\d+) .*\| train_wall (\d+)", text)
    logged += re.findall(r'\| train \| \{"epoch": (\d+), .*"train_train_wall": "(\d+)', text)
    return sum(int(wall) for wall in dict(logged).values())


def image_training(text: str, summary: Path) -> dict:
    """As `training`, for train_image.py."""
    epochs = read_table(summary)
    found = re.findall(r"([\d,]+) stored parameters", text)
    return {
        "params": int(found[-1].replace(",", "")) if found else None,
        "updates": int(epochs[-1]["train_updates"]) if epochs else None,
        "wall_s": round(sum(float(epoch["train_seconds"]) for epoch in epochs)),
    }


def training(run: Path) -> dict:
    """Stored parameters, updates and seconds of training, from the trainer's log."""
    log = run / "train.log"
    text = read_text(log, errors="replace") if log.exists() else ""
    if (run / "summary.csv").exists():
        return image_training(text, run / "summary.csv")
    return {
        "params": last_number("num. shared model params", text),
        "updates": last_number("num_updates", text),
        "wall_s": seconds(text) if text else None,
    }


def core_parameters(checkpoint: Path) -> int:
    """Stored parameters of a checkpoint without those of NOT_CORE."""
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    import fairseq_plugin  # noqa: F401  (allows the types in fairseq's checkpoints)

    model = load_checkpoint_to_cpu(str(checkpoint))["model"]
    return sum(tensor.numel() for name, tensor in model.items() if not NOT_CORE.search(name))


def described(run: Path, record: dict) -> dict:
    """A line of results without its metric: the record, the training, and the environment."""
    environment = read_json(run / "env.json", dict)
    try:
        known = {"device": environment["device"], "torch": environment["packages"]["torch"]}
        return record | training(run) | known | {"commit": environment["commit"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{run}: env.json or summary.csv has no {error}") from None


def success(run: Path, results: Path, record: dict) -> None:
    """Appends a line for each known metric of scores.json, and writes metrics.json, which marks the run as finished.

    Args:
        record: table, row, arch, scale, seed and cmd.
    """
    scores, line = read_json(run / "scores.json", dict), described(run, record)
    line["params"] = line["params"] or scores.get("params")
    checkpoints = [run / name for name in CHECKPOINTS if (run / name).exists()]
    if checkpoints:
        line["core_params"] = core_parameters(checkpoints[0])
    lines = []
    for name, title in METRICS.items():
        if name in scores:
            measured = {"metric": title, "value": scores[name], "signature": scores.get(f"{name}_signature", "")}
            lines.append(line | measured)
    append(results, lines)
    (run / "metrics.json").write_text(json.dumps(line | scores, indent=2) + "\n")


def failure(run: Path, results: Path, record: dict, metrics: list[str]) -> None:
    """Appends a line without a value for the first known metric among those of the table."""
    metric = next((METRICS[name] for name in metrics if name in METRICS), "")
    append(results, [described(run, record) | {"metric": metric}])
