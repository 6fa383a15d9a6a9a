"""The format of results.csv: one line per run and metric. A failed run has a line without a value."""

import csv
import io
import tempfile
from pathlib import Path

from recurrence.files import read_text

COLUMNS = ["table", "row", "arch", "scale", "seed", "metric", "value", "signature", "paper_value"]
COLUMNS += ["params", "core_params", "updates", "wall_s", "device", "torch", "commit", "cmd"]
STEPS, CELLS = (1, 2, 4, 6, 8, 10, 12, 16, 23, 24, 47, 48), (32, 48, 96)
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 3072, 4096)
# Metrics by their names in scores.json and in tables.toml, with their names in results.csv.
METRICS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "bleu_pieces": "BLEU of pieces",
    "bleu_compounds_newstest2014": "BLEU newstest2014, compounds split",
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
    "exact_match": "exact match %",
    "exact_match_in_distribution": "exact match %, in distribution",
    # After so many steps of a cellular automaton, in rows of 24 cells, or of so many.
    **{f"exact_match_at_{step}": f"exact match % at {step}" for step in STEPS},
    **{f"exact_match_at_{n}_of_{cells}": f"exact match % at {n}, {cells} cells" for cells in CELLS for n in STEPS},
    "word_error_rate": "wrong words %",
    "phoneme_error_rate": "phoneme errors %",
    "megabytes": "megabytes",
    "loss_error": "standard error of the loss",
    "loss_error_published": "standard error of the loss as published",
    "accuracy_error": "standard error of the accuracy",
    **{f"perplexity_{length}": f"perplexity at {length:,}" for length in LENGTHS},
}


def check_writable(path: Path) -> None:
    """Raises an OSError where `append` would, and ValueError for a file that holds something else.

    Leaves no file behind: a run that is cut off has no results.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.stat().st_size:
        read(path)
    with path.open("ab") if path.exists() else tempfile.TemporaryFile(dir=path.parent):
        pass


def append(path: Path, lines: list[dict]) -> None:
    """Appends lines to a file in one write; it is created if it does not exist. Existing lines are not changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_bytes() if path.exists() else b""
    text = io.StringIO(newline="")
    if cut := before.rpartition(b"\n")[2]:  # cut by a full disk; closed quotes and extra columns let `read` skip it
        text.write('"' * (cut.count(b'"') % 2) + "," * len(COLUMNS) + "\n")
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    if not before:
        writer.writeheader()
    writer.writerows(lines)
    with path.open("ab") as file:
        file.write(text.getvalue().encode())


def read(path: Path) -> list[dict]:
    """All whole lines. If a row ran twice with one seed, the last run counts; a failed one only if none succeeded.

    Raises:
        ValueError: the columns are not COLUMNS.
    """
    lines = read_text(path).rpartition("\n")[0]  # without one that a full disk has cut
    reader = csv.DictReader(io.StringIO(lines))
    if reader.fieldnames != COLUMNS:
        raise ValueError(f"{path}: columns {reader.fieldnames}, must be {COLUMNS}")
    found: dict[tuple, dict] = {}
    for line in reader:
        if None in line or None in line.values():  # more or fewer columns: was cut when the next one was appended
            continue
        run = tuple(line[column] for column in ("table", "row", "scale", "seed", "metric"))
        if line["value"] or not found.get(run, {}).get("value"):
            found[run] = line
    return list(found.values())
