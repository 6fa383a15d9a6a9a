"""Curves from the logs of trainers: fairseq's JSON lines, and the summary.csv of `recipes/train_image.py`."""

import csv
import json
import re
from collections.abc import Iterable
from pathlib import Path

Numbers = dict[str, float]
UPDATES = re.compile(r"((valid\d*|train)_)?num_updates|train_updates")


def points(log: Path, stage: str = "valid") -> list[Numbers]:
    """The lines of a stage of training, in order, with their numbers by name.

    Three names are added: `updates`, which each log calls something else; `hours` of training so far, for fairseq
    including validation; and for fairseq `tokens`, the millions of tokens trained on so far. Epochs count from 1.

    Args:
        log: the output of fairseq-train with `--log-format json` (losses are to base 2), or a summary.csv.
        stage: for fairseq "train_inner", "train", "valid" or another validation subset, such as "valid1"; ignored for
            summary.csv, which has one line per epoch.

    Raises:
        ValueError: if the log has no line of that stage.
    """
    text = log.read_text(encoding="utf-8")
    found = _summary(text) if log.suffix == ".csv" else _json_lines(text, stage)
    if not found:
        raise ValueError(f"{log}: no line of stage {stage!r} as fairseq-train --log-format json writes, no summary.csv")
    return found


def curve(log: Path, x: str, y: str, stage: str = "valid") -> list[tuple[float, float]]:
    """The points (x, y) of a stage, sorted by x; of points with the same x, which a resumed run repeats, the last one.

    Raises:
        ValueError: if the log has no line of the stage, or no number of these names.
    """
    found = points(log, stage)
    for name in (x, y):
        if not any(name in point for point in found):
            has = ", ".join(sorted({key for point in found for key in point}))
            raise ValueError(f"{name}: not in {log}, which has {has}")
    return sorted({point[x]: point[y] for point in found if x in point and y in point}.items())


def _json_lines(text: str, wanted: str) -> list[Numbers]:
    found: list[Numbers] = []
    so_far: Numbers = {}  # hours and tokens
    trained = 0.0
    for stage, line in re.findall(r"\| (train_inner|train|valid\d*) \| (\{.*\})", text):
        point = _numbers(json.loads(line).items())
        wall = point.get("wall", point.get("train_wall") if stage == "train" else None)
        if wall is not None:
            so_far["hours"] = wall / 3600
        if stage == "train_inner" and {"wpb", "updates"} <= point.keys() and point["updates"] > trained:
            so_far["tokens"] = so_far.get("tokens", 0) + point["wpb"] * (point["updates"] - trained) / 1e6
            trained = point["updates"]
        if stage == wanted:
            found.append({**point, **so_far})
    return found


def _summary(text: str) -> list[Numbers]:
    rows = [_numbers(row.items()) for row in csv.DictReader(text.splitlines())]
    seconds = 0.0
    for row in rows:
        seconds += row.get("train_seconds", 0.0)
        row["hours"] = seconds / 3600
    return [{**row, "epoch": row["epoch"] + 1} for row in rows if "epoch" in row]


def _numbers(items: Iterable[tuple[str, str | float | None]]) -> Numbers:
    found = {name: number for name, value in items if (number := _number(value)) is not None}
    updates = [value for name, value in found.items() if UPDATES.fullmatch(name)]
    return {**found, "updates": updates[0]} if updates else found


def _number(value: str | float | None) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
