"""The tables of results, and what a run left in its folder as rows of one of them.

Reads env.json, train.log (of fairseq-train, or of train_image.py, with summary.csv) and of a run that succeeded
scores.json (which has the parameters where nothing was trained) and a text model's checkpoint.
"""

import csv
import json
import re
from pathlib import Path

COLUMNS = ["table", "row", "arch", "scale", "seed", "metric", "value", "signature", "paper_value"]
COLUMNS += ["params", "core_params", "updates", "wall_s", "device", "torch", "commit", "cmd"]
# The name of a metric in scores.json -> in the table.
METRICS = {"bleu": "BLEU", "chrf": "chrF", "loss": "loss, nats"}
METRICS |= {"top1": "top-1 %", "mmac": "MMAC", "perplexity": "perplexity", "training_flops": "training FLOPs"}
METRICS |= {"top1_smallest_depth": "top-1 % at the smallest depth"}
METRICS |= {"gmac": "GMAC", "gflops": "GFLOPs", "gflops_published": "GFLOPs as published", "images_per_s": "images/s"}
METRICS |= {"speed_over_deit": "speed / DeiT-Tiny's", "speed": "speed / Universal's", "tokens_per_s": "tokens/s"}
METRICS |= {f"bleu_newstest{year}": f"BLEU newstest{year}" for year in range(2008, 2020)}
METRICS |= {"wer_test": "word errors %"}
METRICS |= {f"wer_test-{part}": f"word errors %, test-{part}" for part in ("clean", "other")}
METRICS |= {f"wer_dev-{part}": f"word errors %, dev-{part}" for part in ("clean", "other")}
METRICS |= {"perplexity_valid": "perplexity, validation"}
ERRORS = {"loss_error": "standard error of the loss", "accuracy_error": "standard error of the accuracy"}
ERRORS |= {"loss_error_published": "standard error of the loss as published"}
METRICS |= {"accuracy": "accuracy %", **ERRORS}
METRICS |= {f"perplexity_{1 << power}": f"perplexity at {1 << power:,}" for power in range(5, 13)}
# What a text model was scored with: the first of these that there is.
CHECKPOINTS = ("average.pt", "checkpoints/checkpoint_best.pt", "checkpoints/checkpoint_last.pt")
# Word embeddings, positions, the convolutions of speech and the output layer are not core parameters; version marks and
# profiles are no parameters.
NOT_CORE = re.compile(r"embed_tokens|embed_positions|subsample|output_projection|version|profiled$|\.offset$")


def append(path: Path, rows: list[dict]) -> None:
    """Add rows at the end of a table, which is made if missing; earlier rows stay as they are."""
    fresh = not path.exists() or path.stat().st_size == 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[dict]:
    """All rows.

    Raises:
        ValueError: the header is not the one that append writes.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise ValueError(f"{path}: columns {reader.fieldnames}, must be {COLUMNS}")
        return list(reader)


def last_number(pattern: str, text: str) -> int | None:
    """The last integer that follows a pattern, or None."""
    found = re.findall(pattern + r"\D{1,4}([\d,]+)", text)
    return int(found[-1].replace(",", "")) if found else None


def seconds(text: str) -> int:
    """Time of training, validation apart. fairseq tells it for each epoch, again when an epoch is resumed."""
    told = re.findall(r"\| train \| epoch (\d+) .*\| train_wall (\d+)", text)
    told += re.findall(r'\| train \| \{"epoch": (\d+), .*"train_train_wall": "(\d+)', text)
    return sum(int(wall) for wall in dict(told).values())


def image_training(text: str, summary: Path) -> dict:
    """As training, of train_image.py."""
    with summary.open(encoding="utf-8", newline="") as file:
        epochs = list(csv.DictReader(file))
    found = re.findall(r"([\d,]+) stored parameters", text)
    return {
        "params": int(found[-1].replace(",", "")) if found else None,
        "updates": int(epochs[-1]["train_updates"]) if epochs else None,
        "wall_s": round(sum(float(epoch["train_seconds"]) for epoch in epochs)),
    }


def training(run: Path) -> dict:
    """Stored parameters, updates and seconds of training as the trainer logged them."""
    log = run / "train.log"
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    if (run / "summary.csv").exists():
        return image_training(text, run / "summary.csv")
    return {
        "params": last_number("num. shared model params", text),
        "updates": last_number("num_updates", text),
        "wall_s": seconds(text) if text else None,
    }


def core_parameters(checkpoint: Path) -> int:
    """Stored parameters without embeddings and output layer."""
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    import fairseq_plugin  # noqa: F401  (allows the types that fairseq's checkpoints hold)

    model = load_checkpoint_to_cpu(str(checkpoint))["model"]
    return sum(tensor.numel() for name, tensor in model.items() if not NOT_CORE.search(name))


def gathered(run: Path, record: dict) -> dict:
    """What a row of results has beside its metric."""
    environment = json.loads((run / "env.json").read_text())
    device = {"device": environment["device"], "torch": environment["packages"]["torch"]}
    return record | training(run) | device | {"commit": environment["commit"]}


def success(run: Path, results: Path, record: dict, other: str = "") -> None:
    """Adds a row of results for each known metric of scores.json, and metrics.json, with which the run is finished.

    Args:
        record: table, row, arch, scale, seed and cmd.
        other: what both files' names have behind them for another test set.
    """
    scores, row = json.loads((run / f"scores{other}.json").read_text()), gathered(run, record)
    row["params"] = row["params"] or scores.get("params")
    checkpoints = [run / name for name in CHECKPOINTS if (run / name).exists()]
    if checkpoints:
        row["core_params"] = core_parameters(checkpoints[0])
    measured = [name for name in METRICS if name in scores]
    signatures = {name: scores.get(f"{name}_signature", "") for name in measured}
    append(
        results,
        [row | {"metric": METRICS[name], "value": scores[name], "signature": signatures[name]} for name in measured],
    )
    (run / f"metrics{other}.json").write_text(json.dumps(row | scores, indent=2) + "\n")


def failure(run: Path, results: Path, record: dict, metrics: list[str]) -> None:
    """Adds a row without a value, of the first of these metrics that is one."""
    name = next((name for name in metrics if name in METRICS), "")
    append(results, [gathered(run, record) | {"metric": METRICS.get(name, name)}])
