"""Curves from the logs of trainers: fairseq's JSON lines, and the summary.csv of `recipes/train_image.py`."""

import io
import json
import re
from pathlib import Path

import pandas as pd

from recurrence.files import read_text

UPDATES = re.compile(r"((valid\d*|train)_)?num_updates|train_updates")


def points(log: Path, stage: str = "valid") -> pd.DataFrame:
    """The numbers of a stage of training, in order.

    Three columns are added: `updates`, which each log calls something else; `hours` of training so far, for fairseq
    including validation; and for fairseq `tokens`, the millions of tokens trained on so far. Epochs count from 1.

    Args:
        log: the output of fairseq-train with `--log-format json` (losses are to base 2), or a summary.csv.
        stage: for fairseq "train_inner", "train", "valid" or another validation subset, such as "valid1"; ignored for
            summary.csv, which has one line per epoch.

    Raises:
        ValueError: if the log has no line of that stage.
    """
    found = _summary(log) if log.suffix == ".csv" else _json_lines(log, stage)
    if found.empty:
        raise ValueError(f"{log}: no line of stage {stage!r} as fairseq-train --log-format json writes, no summary.csv")
    return found.dropna(axis="columns", how="all")


def curve(log: Path, x: str, y: str, stage: str = "valid") -> list[tuple[float, float]]:
    """The points (x, y) of a stage, sorted by x; of points with the same x, which a resumed run repeats, the last one.

    Raises:
        ValueError: if the log has no line of the stage, or no number of these names.
    """
    found = points(log, stage)
    for name in (x, y):
        if name not in found:
            raise ValueError(f"{name}: not in {log}, which has {', '.join(sorted(found))}")
    kept = found[[x, y]].dropna().drop_duplicates(x, keep="last").sort_values(x)
    return list(kept.itertuples(index=False, name=None))


def _json_lines(log: Path, wanted: str) -> pd.DataFrame:
    lines = re.findall(r"\| (train_inner|train|valid\d*) \| (\{.*\})", read_text(log, errors="replace"))
    stages = pd.Series([stage for stage, _ in lines])
    found = _numbers(pd.DataFrame([json.loads(line) for _, line in lines]))
    found["hours"] = found["wall"].fillna(found["train_wall"].where(stages == "train")).ffill() / 3600
    inner = found[stages == "train_inner"]
    new = (inner["updates"] - inner["updates"].cummax().shift(fill_value=0)).clip(lower=0)  # a resumed run repeats some
    found["tokens"] = (inner["wpb"] * new).cumsum().reindex(found.index).ffill() / 1e6
    return found[stages == wanted]


def _summary(log: Path) -> pd.DataFrame:
    found = _numbers(pd.read_csv(io.StringIO(read_text(log))))
    found["hours"] = found["train_seconds"].cumsum() / 3600
    return found.assign(epoch=found["epoch"] + 1).dropna(subset="epoch")


def _numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The numbers of a log, with every column that the other functions read."""
    found = table.apply(pd.to_numeric, errors="coerce")
    updates = found.filter([name for name in found if UPDATES.fullmatch(name)])
    found["updates"] = updates.bfill(axis="columns").iloc[:, 0] if len(updates.columns) else float("nan")
    needed = ["epoch", "wall", "train_wall", "train_seconds", "wpb"]
    return found.reindex(columns=[*found, *(name for name in needed if name not in found)])
