"""Gather what a run left in its folder into metrics.json and one row of results for each metric.

    python collect.py RUN --results results.csv --table T --row R --arch A --scale S --seed 1 --command C \\
        [--checkpoint average.pt] --metrics bleu chrf [--failed]

Reads env.json, train.log (of fairseq-train, or of train_image.py, with summary.csv) and of a run that succeeded
scores.json (which has the parameters where nothing was trained) and the translation model's checkpoint. With --failed
only rows without a value are added.
"""

import argparse
import csv
import json
import re
from pathlib import Path

from results import append

# The name of a metric in scores.json -> in the table.
METRICS = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact match %", "loss": "loss, nats"}
METRICS |= {"top1": "top-1 %", "mmac": "MMAC", "perplexity": "perplexity", "training_flops": "training FLOPs"}
METRICS |= {"gmac": "GMAC", "gflops": "GFLOPs", "gflops_published": "GFLOPs as published", "images_per_s": "images/s"}
METRICS |= {"speed_over_deit": "speed / DeiT-Tiny's"}
METRICS |= {f"bleu_newstest{year}": f"BLEU newstest{year}" for year in range(2008, 2020)}
METRICS |= {"wer_test": "word errors %"}
METRICS |= {f"wer_test-{part}": f"word errors %, test-{part}" for part in ("clean", "other")}
METRICS |= {f"perplexity_{1 << power}": f"perplexity at {1 << power:,}" for power in range(5, 13)}
# Word embeddings, positions, the convolutions of speech and the output layer are not core parameters; version marks and
# profiles are no parameters.
NOT_CORE = re.compile(r"embed_tokens|embed_positions|subsample|output_projection|version|profiled$|\.offset$")


def last_number(pattern: str, text: str) -> int | None:
    """The last integer that follows a pattern, or None."""
    found = re.findall(pattern + r"\D{1,4}([\d,]+)", text)
    return int(found[-1].replace(",", "")) if found else None


def seconds(text: str) -> int:
    """Time of training, validation apart. The host tells it for each epoch, again when an epoch is resumed."""
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

    import fairseq_plugin  # noqa: F401  (allows the types that the host's checkpoints hold)

    model = load_checkpoint_to_cpu(str(checkpoint))["model"]
    return sum(tensor.numel() for name, tensor in model.items() if not NOT_CORE.search(name))


def measured(scores: dict, name: str) -> dict:
    """One metric's columns."""
    return {"metric": METRICS[name], "value": scores[name], "signature": scores.get(f"{name}_signature", "")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    for name in ("table", "row", "arch", "scale", "seed", "command"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--checkpoint", help="the scored translation model, in the run's folder")
    parser.add_argument("--metrics", nargs="+", choices=METRICS, required=True)
    parser.add_argument("--paper-value", default="", help="what the paper has for the first metric")
    parser.add_argument("--failed", action="store_true")
    arguments = parser.parse_args()

    environment = json.loads((arguments.run / "env.json").read_text())
    row = {name: getattr(arguments, name) for name in ("table", "row", "arch", "scale", "seed")}
    row |= training(arguments.run) | {
        "cmd": arguments.command,
        "device": environment["device"],
        "torch": environment["packages"]["torch"],
        "commit": environment["commit"],
    }
    if arguments.failed:
        append(arguments.results, [row | {"metric": METRICS[name]} for name in arguments.metrics])
        return
    scores = json.loads((arguments.run / "scores.json").read_text())
    row["params"] = row["params"] or scores.get("params")
    if arguments.checkpoint:
        row["core_params"] = core_parameters(arguments.run / arguments.checkpoint)
    (arguments.run / "metrics.json").write_text(json.dumps(row | scores, indent=2) + "\n")
    rows = [row | measured(scores, name) for name in arguments.metrics]
    rows[0]["paper_value"] = arguments.paper_value
    append(arguments.results, rows)


if __name__ == "__main__":
    main()
