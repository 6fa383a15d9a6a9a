"""Writes what is made from data: recipes/CLAIMS.md, the tables of every RESULTS.md and their list in recipes/README.md.

    python recipes/records/render.py [--check | --smoke OUT]

A table is shown as the paper prints it, with ours beside it cell by cell. Ours is the mean over the seeds of the
largest scale that has been run, with its standard error where there are several. Runs of scale smoke show that a row
works and are no results; smoke.csv lists them.
"""

import argparse
import csv
import re
import sys
from itertools import combinations
from math import hypot, sqrt
from pathlib import Path
from statistics import mean, stdev

import budget
import claims
import layout
from collect import ERRORS, METRICS, read
from count import counted
from recorded import Cell, Results, number
from rows import COUNTED, RECIPES, Column, Paper, Row, Run, Table, TableError, papers

BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"


def runs_of(row: Row) -> list[Run]:
    """A row's run, or those of its variants."""
    return [run for run in row.table.runs.values() if run.row.name == row.name]


def run_of(row: Row, column: Column) -> Run | None:
    """The run that a cell is of."""
    if not row.arch:
        return None
    if column.table:
        return row.table.paper.tables[column.table].runs.get(row.name)
    runs = runs_of(row)
    return next((run for run in runs if run.variant == column.variant), runs[0])


def ours(row: Row, column: Column, results: Results) -> str:
    """Ours of a cell: counted, measured, or nothing."""
    run = run_of(row, column)
    if run is None or not column.metric:
        return ""
    if column.metric in COUNTED:
        return f"{counted(run)[column.metric]:,}"
    return str(Cell(run, column.metric, results))


def state(runs: list[Run], results: Results) -> str:
    """The largest scales at which some runs have been carried out."""
    if not runs:
        return "printed only"
    found = []
    for run in runs:
        recorded = results.of(run)
        smoked = (run.table.name, run.name) in results.smoked
        found.append(recorded[0]["scale"] if recorded else "smoke" if smoked else "not run")
    states = dict.fromkeys(found)
    return ", ".join(f"{one} {found.count(one)} of {len(found)}" if len(states) > 1 else one for one in states)


def published(row: Row, column: Column) -> str:
    """The paper's cell, and that of a release page, marked."""
    page = row.released.get(column.title, "")
    return " ".join(filter(None, [row.paper.get(column.title, ""), page and f"[{page}]"]))


def value_of(text: str) -> float | None:
    """A published number, whatever stands around it."""
    try:
        return float(text.strip().rstrip("%MK×x").replace(",", ""))
    except ValueError:
        return None


def order(table: Table, column: Column, results: Results) -> str:
    """Whether the paper's order of the rows shows in ours: in how many of the pairs that the paper tells apart."""
    cells = []
    for row in table.rows.values():
        theirs, run = value_of(row.paper.get(column.title, "")), run_of(row, column)
        if theirs is not None and run is not None:
            cells.append((theirs, Cell(run, column.metric, results)))
    deciding = [(theirs, cell) for theirs, cell in cells if cell.decides]
    pairs = [(a, b) for a, b in combinations(deciding, 2) if a[0] != b[0] and a[1].scale == b[1].scale]
    same = opposite = 0
    for (a, one), (b, other) in pairs:
        difference = mean(one.values) - mean(other.values)
        if abs(difference) > 2 * hypot(one.error, other.error):
            same, opposite = same + ((difference > 0) == (a > b)), opposite + ((difference > 0) != (a > b))
    if not same + opposite:
        return f"{column.title}: undecided"
    open_pairs = f", undecided in {len(pairs) - same - opposite}" if len(pairs) > same + opposite else ""
    return f"{column.title}: shows in {same} of {len(pairs)} pairs, reversed in {opposite}{open_pairs}"


def comparison(table: Table, results: Results) -> list[str]:
    """A table as the paper prints it, ours beside it, and below it the rows that are ours alone."""
    printed = [row for row in table.rows.values() if row.printed]
    alone = [row for row in table.rows.values() if not row.printed]
    lines = []
    if printed:
        titles = ["as printed", "our row"]
        for column in table.columns:
            titles += [column.title or "value", f"{column.title}, ours"]
        found = []
        for row in printed:
            cells = [row.label, f"`{row.name}`" if row.arch else ""]
            for column in table.columns:
                cells += [published(row, column), ours(row, column, results)]
            found.append([*cells, state(runs_of(row), results)])
        lines += [*layout.filled([*titles, "run at"], found), ""]
    measured = [column for column in table.columns if column.metric not in ("", *COUNTED, *ERRORS)]
    compared = [order(table, column, results) for column in measured]
    if printed and table.ordered and compared:
        lines += [f"The paper's order of the rows — {'; '.join(dict.fromkeys(compared))}.", ""]
    pages = dict.fromkeys(row.released["source"] for row in printed if row.released.get("source"))
    if pages:
        lines += [f"In brackets: {'; '.join(pages)}.", ""]
    remarks = [f"`{row.name}`: {row.note}" for row in printed if row.note]
    remarks += [f"`{row.name}`: our count is {row.count_differs}" for row in printed if row.count_differs]
    lines += [*(f"- {remark}." for remark in remarks), *([""] if remarks else [])]
    if table.entry.get("note"):
        lines += [table.entry["note"].strip(), ""]
    if alone:
        titles = ["not in the paper", "what", *(column.title for column in table.columns), "run at"]
        found = []
        for row in alone:
            cells = [ours(row, column, results) for column in table.columns]
            found.append([f"`{row.name}`", row.note, *cells, state(runs_of(row), results)])
        lines += [*layout.filled(titles, found), ""]
    return lines


def index(found: list[Paper], results: Results) -> str:
    """A line for each table of each paper."""
    lines = []
    for paper in found:
        home = f"[{paper.name}]({paper.folder.name}/RESULTS.md)"
        for table in paper.tables.values():
            script = f"`{paper.folder.name}/{table.key}.sh`" if table.runs else ""
            lines.append([home, table.title, script, state(list(table.runs.values()), results)])
    return "\n".join([*layout.table(["results", "table", "script", "run at"], lines), ""])


# RESULTS.md: every run


def groups(rows: list[dict], *columns: str) -> dict[tuple, list[dict]]:
    """Rows by the values of these columns, in order of first appearance."""
    found: dict[tuple, list[dict]] = {}
    for row in rows:
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return found


def count(text: str) -> str:
    """A whole number with thousands separated; nothing for nothing."""
    return f"{int(text):,}" if text else ""


def score(rows: list[dict]) -> str:
    """Mean and standard error over the runs that succeeded, and how many failed."""
    values, metric = [float(row["value"]) for row in rows if row["value"]], {**{v: k for k, v in METRICS.items()}}
    failed, name = len(rows) - len(values), metric.get(rows[0]["metric"], "") if rows else ""
    parts = [number(mean(values), name)] if values else []
    if len(values) > 1:
        parts.append(f"± {number(stdev(values) / sqrt(len(values)), name)}")
    return " ".join([*parts, *([f"({failed} failed)"] if failed else [])])


def line(row: str, runs: dict[str, list[dict]]) -> dict[str, str]:
    """One line of a table, by column: the runs of one row at one scale, by metric."""
    first = next(rows for rows in runs.values() if rows)
    times = [int(run["wall_s"]) for run in first if run["wall_s"]]
    return {
        "row": row,
        "architecture": f"`{first[-1]['arch']}`",
        "stored parameters": count(first[-1]["params"]),
        "core parameters": count(first[-1]["core_params"]),
        **{metric: score(rows) for metric, rows in runs.items()},
        "seeds": str(len({run["seed"] for run in first})),
        "updates": count(first[-1]["updates"]),
        "data": budget.data(first[-1]["cmd"], first[-1]["updates"]),
        "training": f"{mean(times) / 60:.0f} min" if times else "",
        "device": "; ".join(dict.fromkeys(run["device"] for run in first)),
    }


def every_run(rows: list[dict]) -> list[str]:
    """All rows of one table and scale, with the signatures of its metrics and the command."""
    metrics = [metric for (metric,) in groups(rows, "metric")]
    found = []
    for (name,), runs in groups(rows, "row").items():
        by_metric = groups(runs, "metric")
        found.append(line(name, {metric: by_metric.get((metric,), []) for metric in metrics}))
    lines = layout.filled(list(found[0]), [list(one.values()) for one in found])
    signatures = groups([row for row in rows if row["signature"]], "metric", "signature")
    lines += ["", *(f"{metric}: `{signature}`  " for metric, signature in signatures), ""]
    return [*lines, "```sh", *dict.fromkeys(command(row) for row in rows), "```", ""]


def command(run: dict) -> str:
    """The command of a run, with $ROW and $SEED for what the runs of a table differ in."""
    seed = re.sub(rf"\bSEED={run['seed']}\b", "SEED=$SEED", run["cmd"])
    return re.sub(rf"(?<=\.sh ){re.escape(run['row'])}(?= |$)", "$ROW", seed)


def rendered(paper: Paper, results: Results) -> str:
    """The tables of a folder, and every run."""
    lines = []
    for table in paper.tables.values():
        lines += [f"## {table.title}", "", *comparison(table, results)]
    path = paper.folder / "results.csv"
    recorded = [row for row in read(path) if row["scale"].split("-")[0] != "smoke"] if path.exists() else []
    if recorded:
        lines += ["## Every run", ""]
    for (name, scale), rows in groups(recorded, "table", "scale").items():
        lines += [f"### {name}, scale `{scale}`", "", *every_run(rows)]
    return "\n".join(lines)


def add_smoke(out: Path) -> None:
    """Adds the runs of scale smoke that succeeded, from the results that they left under OUT, to smoke.csv."""
    seen = Results().smoked
    with (RECIPES / "smoke.csv").open("a", encoding="utf-8", newline="") as file:
        for run in [run for path in sorted(out.glob("*/results.csv")) for run in read(path)]:
            key = run["table"], run["row"]
            if run["scale"] == "smoke" and run["value"] and key not in seen:
                csv.writer(file, lineterminator="\n").writerow(key)
                seen.add(key)


def within(path: Path, made: str) -> str:
    """The text of a file with what is made, between its marks."""
    before, rest = path.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{made}{END}{rest.split(END)[1]}"


def texts() -> dict[Path, str]:
    """Every file that is made, and what it has to say."""
    found, results = list(papers()), Results()
    home, source = RECIPES / "README.md", RECIPES / "claims.toml"
    made = {home: within(home, index(found, results))}
    if source.exists():
        named = {paper.folder.name: paper for paper in found}
        made[RECIPES / "CLAIMS.md"] = claims.markdown(claims.read(source, named, results), named)
    for paper in found:
        path = paper.folder / "RESULTS.md"
        made[path] = within(path, rendered(paper, results))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    parser.add_argument("--smoke", type=Path, metavar="OUT", help="first add the runs of scale smoke under this folder")
    arguments = parser.parse_args()
    if arguments.smoke:
        add_smoke(arguments.smoke)
    try:
        made = texts()
    except TableError as error:
        sys.exit(f"error: {error}")
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if arguments.check:
            print(f"{path}: not up to date; run python recipes/records/render.py", file=sys.stderr)
        else:
            path.write_text(made[path], encoding="utf-8")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
