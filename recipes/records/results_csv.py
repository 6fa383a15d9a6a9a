"""The format of results.csv: one line per run and metric. A failed run has a line without a value."""

import csv
from pathlib import Path

COLUMNS = ["table", "row", "arch", "scale", "seed", "metric", "value", "signature", "paper_value"]
COLUMNS += ["params", "core_params", "updates", "wall_s", "device", "torch", "commit", "cmd"]
ERRORS = {
    "loss_error": "standard error of the loss",
    "loss_error_published": "standard error of the loss as published",
    "accuracy_error": "standard error of the accuracy",
}
# Metrics by their names in scores.json and in tables.toml, with their names in results.csv.
METRICS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "loss": "loss, nats",
    "top1": "top-1 %",
    "mmac": "MMAC",
    "perplexity": "perplexity",
    "training_flops": "training FLOPs",
    "top1_smallest_depth": "top-1 % at the smallest depth",
    "gmac": "GMAC",
    "gflops": "GFLOPs",
    "gflops_published": "GFLOPs as published",
    "images_per_s": "images/s",
    "speed_over_deit": "speed / DeiT-Tiny's",
    "speed": "speed / Universal's",
    "tokens_per_s": "tokens/s",
    **{f"bleu_newstest{year}": f"BLEU newstest{year}" for year in range(2008, 2020)},
    "wer_test": "word errors %",
    **{f"wer_{part}": f"word errors %, {part}" for part in ("test-clean", "test-other", "dev-clean", "dev-other")},
    "perplexity_valid": "perplexity, validation",
    "accuracy": "accuracy %",
    **ERRORS,
    **{f"perplexity_{1 << power}": f"perplexity at {1 << power:,}" for power in range(5, 13)},
}


def append(path: Path, lines: list[dict]) -> None:
    """Appends lines to a file, which is created if it does not exist; existing lines are not changed."""
    is_new = not path.exists() or path.stat().st_size == 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(lines)


def read(path: Path) -> list[dict]:
    """All lines of a file.

    Raises:
        ValueError: the columns are not COLUMNS.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise ValueError(f"{path}: columns {reader.fieldnames}, must be {COLUMNS}")
        return list(reader)
