"""Every recorded run of a paper: one table per table of the paper and scale."""

import re
from math import sqrt
from statistics import mean, stdev

import budget
import layout
from recorded import number
from results_csv import METRICS

METRIC_NAMES = {title: name for name, title in METRICS.items()}


def every_run(runs: list[dict]) -> list[str]:
    """The lines of the section.

    Args:
        runs: lines of a results.csv.
    """
    runs = [run for run in runs if run["scale"].split("-")[0] != "smoke"]
    lines = ["## Every run", ""] if runs else []
    for (table, scale), found in grouped(runs, "table", "scale").items():
        lines += [f"### {table}, scale `{scale}`", "", *table_of_runs(found)]
    return lines


def grouped(runs: list[dict], *columns: str) -> dict[tuple, list[dict]]:
    """Runs by the values of these columns, in order of first appearance."""
    found: dict[tuple, list[dict]] = {}
    for run in runs:
        found.setdefault(tuple(run[column] for column in columns), []).append(run)
    return found


def table_of_runs(runs: list[dict]) -> list[str]:
    """A line for each row, then the signatures of the metrics and the commands."""
    metrics = [metric for (metric,) in grouped(runs, "metric")]
    found = []
    for (row,), of_row in grouped(runs, "row").items():
        by_metric = {metric: [run for run in of_row if run["metric"] == metric] for metric in metrics}
        found.append(line(row, by_metric))
    lines = layout.without_empty_columns(list(found[0]), [list(one.values()) for one in found])
    signatures = grouped([run for run in runs if run["signature"]], "metric", "signature")
    lines += ["", *(f"{metric}: `{signature}`  " for metric, signature in signatures), ""]
    return [*lines, "```sh", *dict.fromkeys(command(run) for run in runs), "```", ""]


def line(row: str, by_metric: dict[str, list[dict]]) -> dict[str, str]:
    """The cells of a row, by column."""
    runs = next(found for found in by_metric.values() if found)
    last = runs[-1]
    times = [int(run["wall_s"]) for run in runs if run["wall_s"]]
    return {
        "row": row,
        "architecture": f"`{last['arch']}`",
        "stored parameters": thousands(last["params"]),
        "core parameters": thousands(last["core_params"]),
        **{metric: score(found) for metric, found in by_metric.items()},
        "seeds": str(len({run["seed"] for run in runs})),
        "updates": thousands(last["updates"]),
        "data": budget.data(last["cmd"], last["updates"]),
        "training": f"{mean(times) / 60:.0f} min" if times else "",
        "device": "; ".join(dict.fromkeys(run["device"] for run in runs)),
    }


def thousands(text: str) -> str:
    """A whole number with thousands separators; empty for an empty cell."""
    return f"{int(text):,}" if text else ""


def score(runs: list[dict]) -> str:
    """Mean and standard error over the runs that succeeded, and the number of those that failed."""
    if not runs:
        return ""
    metric = METRIC_NAMES.get(runs[0]["metric"], "")
    values = [float(run["value"]) for run in runs if run["value"]]
    failed = len(runs) - len(values)
    parts = [number(mean(values), metric)] if values else []
    if len(values) > 1:
        parts.append(f"± {number(stdev(values) / sqrt(len(values)), metric)}")
    if failed:
        parts.append(f"({failed} failed)")
    return " ".join(parts)


def command(run: dict) -> str:
    """The command of a run, with $ROW and $SEED where the runs of a table differ."""
    seed = re.sub(rf"\bSEED={run['seed']}\b", "SEED=$SEED", run["cmd"])
    return re.sub(rf"(?<=\.sh ){re.escape(run['row'])}(?= |$)", "$ROW", seed)
