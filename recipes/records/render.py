"""Write RESULTS.md of every recipe from its results.csv and notes.md, or check that the files are up to date.

    python render.py [--check] [RECIPE_FOLDER...]

notes.md is written by hand and says what the rows are; the tables come from results.csv alone, one for each of the
paper's tables and each scale.
"""

import argparse
import sys
from pathlib import Path
from statistics import mean, stdev

from results import read

RECIPES = Path(__file__).resolve().parents[1]
# Decimals of a metric, where they are not two.
DECIMALS = {"loss, nats": 4}


def groups(rows: list[dict], *columns: str) -> dict[tuple, list[dict]]:
    """Rows by the values of these columns, in order of first appearance."""
    found: dict[tuple, list[dict]] = {}
    for row in rows:
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return found


def count(text: str) -> str:
    """A whole number with thousands separated; nothing for nothing."""
    return f"{int(text):,}" if text else ""


def minutes(rows: list[dict]) -> str:
    """Mean training time of the rows that tell one."""
    times = [int(row["wall_s"]) for row in rows if row["wall_s"]]
    return f"{mean(times) / 60:.0f} min" if times else ""


def score(rows: list[dict]) -> str:
    """Mean and standard deviation over the runs that succeeded, how many failed, and what the paper has."""
    values = [float(row["value"]) for row in rows if row["value"]]
    failed = len(rows) - len(values)
    if not rows:
        return ""
    digits = DECIMALS.get(rows[0]["metric"], 2)
    kind = "e" if rows[0]["metric"] == "training FLOPs" else "f"
    parts = [f"{mean(values):.{digits}{kind}}"] if values else []
    if len(values) > 1:
        parts.append(f"± {stdev(values):.{digits}{kind}}")
    if failed:
        parts.append(f"({failed} failed)")
    if rows[-1]["paper_value"]:
        parts.append(f"(paper {rows[-1]['paper_value']})")
    return " ".join(parts)


def cells(row: str, runs: dict[str, list[dict]]) -> dict[str, str]:
    """One line of a table, by column: the runs of one row at one scale, by metric."""
    first = next(rows for rows in runs.values() if rows)
    last = first[-1]
    return {
        "row": row,
        "architecture": f"`{last['arch']}`",
        "stored parameters": count(last["params"]),
        "core parameters": count(last["core_params"]),
        **{metric: score(rows) for metric, rows in runs.items()},
        "runs": str(len(first)),
        "updates": count(last["updates"]),
        "training": minutes(first),
        "device": "; ".join(dict.fromkeys(run["device"] for run in first)),
    }


def table(rows: list[dict]) -> list[str]:
    """All rows of one scale as a Markdown table without empty columns, with the signatures of its metrics."""
    metrics = [metric for (metric,) in groups(rows, "metric")]
    found = []
    for (name,), runs in groups(rows, "row").items():
        by_metric = groups(runs, "metric")
        found.append(cells(name, {metric: by_metric.get((metric,), []) for metric in metrics}))
    titles = [title for title in found[0] if any(line[title] for line in found)]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    lines += ["| " + " | ".join(line[title] for title in titles) + " |" for line in found]
    signatures = groups([row for row in rows if row["signature"]], "metric", "signature")
    return lines + [""] + [f"{metric}: `{signature}`  " for metric, signature in signatures]


def commands(rows: list[dict]) -> list[str]:
    """The command of every run, once."""
    return ["```sh", *dict.fromkeys(row["cmd"] for row in rows), "```"]


def rendered(folder: Path) -> str:
    """The whole text of a recipe's RESULTS.md."""
    lines = ["<!-- made by recipes/records/render.py from results.csv and notes.md: change those -->"]
    lines += [(folder / "notes.md").read_text(encoding="utf-8").rstrip("\n"), ""]
    results = folder / "results.csv"
    tables = groups(read(results), "table") if results.exists() else {}
    if not tables:
        lines += ["No run above scale `smoke` has been recorded.", ""]
    for (name,), of_table in tables.items():
        for (scale,), rows in groups(of_table, "scale").items():
            title = f"Scale `{scale}`" if len(tables) == 1 else f"{name}, scale `{scale}`"
            lines += [f"## {title}", "", *table(rows), "", *commands(rows), ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", help="recipe folders (default: all that hold a notes.md)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    arguments = parser.parse_args()
    stale = []
    for folder in arguments.folders or sorted(path.parent for path in RECIPES.glob("*/notes.md")):
        target, text = folder / "RESULTS.md", rendered(folder)
        if not arguments.check:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            stale.append(target)
    for target in stale:
        print(f"{target}: not up to date; run python recipes/records/render.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
