"""Curves from the logs that trainers leave: JSON lines of fairseq, the summary.csv of `recipes/train_image.py`."""

import csv
import json
import re
from collections.abc import Iterable
from pathlib import Path

Point = dict[str, float]
UPDATES = re.compile(r"((valid\d*|train)_)?num_updates|train_updates")


def points(log: Path, stage: str = "valid") -> list[Point]:
    """The lines of one stage of training in their order, each number by the name that it has there.

    Added are `updates`, for which each log has other names, and `hours`: what the training had taken until then, in
    fairseq with its validations; of fairseq also `tokens`, millions read in training until then. Epochs count from 1.

    Args:
        log: what fairseq-train printed with `--log-format json` (its losses are to base 2), or a summary.csv.
        stage: of fairseq "train_inner", "train", "valid" or another subset of validation, such as "valid1"; summary.csv
            has one line an epoch for all.

    Raises:
        ValueError: if the log has no line of that stage.
    """
    text = log.read_text(encoding="utf-8")
    found = _summary(text) if log.suffix == ".csv" else _json_lines(text, stage)
    if not found:
        raise ValueError(f"{log}: no line of stage {stage!r} as fairseq-train --log-format json writes, no summary.csv")
    return found


def curve(log: Path, x: str, y: str, stage: str = "valid") -> list[tuple[float, float]]:
    """Line after line of a stage, sorted by x; one that a resumed run repeats counts once.

    Raises:
        ValueError: if the log has no such line, or no such names.
    """
    found = points(log, stage)
    for name in (x, y):
        if not any(name in point for point in found):
            has = ", ".join(sorted({key for point in found for key in point}))
            raise ValueError(f"{name}: not in {log}, which has {has}")
    return sorted({point[x]: point[y] for point in found if x in point and y in point}.items())


def _json_lines(text: str, wanted: str) -> list[Point]:
    found: list[Point] = []
    until: Point = {}  # hours, and tokens by the words of a batch, that the lines of training have told so far
    trained = 0.0
    for stage, line in re.findall(r"\| (train_inner|train|valid\d*) \| (\{.*\})", text):
        point = _numbers(json.loads(line).items())
        wall = point.get("wall", point.get("train_wall") if stage == "train" else None)
        if wall is not None:
            until["hours"] = wall / 3600
        if stage == "train_inner" and {"wpb", "updates"} <= point.keys() and point["updates"] > trained:
            until["tokens"] = until.get("tokens", 0) + point["wpb"] * (point["updates"] - trained) / 1e6
            trained = point["updates"]
        if stage == wanted:
            found.append({**point, **until})
    return found


def _summary(text: str) -> list[Point]:
    rows = [_numbers(row.items()) for row in csv.DictReader(text.splitlines())]
    seconds = 0.0
    for row in rows:
        seconds += row.get("train_seconds", 0.0)
        row["hours"] = seconds / 3600
    return [{**row, "epoch": row["epoch"] + 1} for row in rows if "epoch" in row]


def _numbers(items: Iterable[tuple[str, str | float | None]]) -> Point:
    found = {name: number for name, value in items if (number := _number(value)) is not None}
    updates = [value for name, value in found.items() if UPDATES.fullmatch(name)]
    return {**found, "updates": updates[0]} if updates else found


def _number(value: str | float | None) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
