"""Writes the tables of every RESULTS.md and the list of tables in recipes/README.md from tables.toml and results.csv.

    python recipes/records/render.py [--check]

Tables are shown as the paper prints them, ours beside each column: the mean over the seeds, with its standard error if
there are several. Every scale has a column of its own. Runs too short to show an effect stay in results.csv
(`too_short` in tables.toml), and so do smoke runs.
"""

import argparse
import re
import sys
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pandas as pd
from count import parameters
from results_csv import COLUMNS, METRICS, read
from rows import COUNTED, RECIPES, Column, Paper, Row, Run, Table, TableError, papers

BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"
SCALES = ("paper", "long", "small")  # largest first
DECIMALS = {"loss": 4, "mmac": 1}  # 2 for all others
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}
SEEDLESS = ("mmac",)  # the same with every seed
EXPONENTIAL = ("training_flops", "loss_error", "loss_error_published", "accuracy_error")


def markdown(frame: pd.DataFrame) -> str:
    """A Markdown table without the columns that are empty in every line."""
    frame = frame.loc[:, (frame != "").any()].map(lambda cell: cell.replace("|", "\\|"))
    text = frame.to_markdown(index=False, stralign=None, disable_numparse=True) + "\n\n"
    return re.sub(r"-{4,}", "---", text, count=frame.shape[1])  # a line that changes with the longest cell


def number(value: float, metric: str) -> str:
    """A value with the decimals of its metric."""
    return f"{value:.{DECIMALS.get(metric, 2)}{'e' if metric in EXPONENTIAL else 'f'}}"


def size(scale: str) -> tuple[int, float]:
    """The place of a recorded scale, such as small-5000 or paper-code, among all scales, largest first."""
    name, *parts = scale.split("-")
    return SCALES.index(name), -min((float(part) for part in parts if part.isdecimal()), default=float("inf"))


# Ours


def prints_as(count: int, cell: str, title: str, rounding: str) -> bool:
    """Whether a count, so rounded, has the digits that the paper prints; the unit may stand in the column's title."""
    unit = re.search(r"\(([KMB])\)", title)
    found = re.fullmatch(r"~?([\d.,]+) ?([KMB]?)", cell + (unit[1] if unit else ""))
    value = Decimal(found[1].replace(",", ""))
    return (Decimal(count) / UNITS[found[2]]).quantize(value, rounding) == value


def shown(table: Table) -> pd.DataFrame:
    """The recorded lines of a table that are long enough to show something; a failed run has no value."""

    def wanted(line: dict[str, str]) -> bool:
        run, scale = table.runs.get(line["row"]), line["scale"]
        return scale.split("-")[0] in SCALES and not (run and scale in run.too_short)

    path = table.folder / "results.csv"
    lines = read(path) if path.exists() else []
    return pd.DataFrame([line for line in lines if line["table"] == table.name and wanted(line)], columns=COLUMNS)


def scales_of(lines: pd.DataFrame) -> list[str]:
    """The scales of these lines, largest first."""
    return sorted(lines["scale"].unique(), key=size)


def run_shown(table: Table, name: str, row: Row, column: Column) -> Run | None:
    """The run whose number a cell of a row shows.

    `table` is the one that the column names, or else the row's own. In another table, it is the row of the same name,
    or else one of the same architecture and flags: how a model was trained does not change what is counted.
    """
    same = table.rows.get(name)
    models = [run for run in table.runs.values() if (run.row.arch, run.flags) == (row.arch, row.flags)]
    runs = [run for run in table.runs.values() if run.row is same] if same else models
    return next((run for run in runs if run.variant == column.variant), runs[0] if runs else None)


def at_training_length(run: Run, metric: str, scale: str) -> str:
    """The metric's full name: `perplexity` alone is the one at the training length, for example perplexity_256."""
    scale = scale.split("-")[0]
    if metric != "perplexity" or scale not in run.scales:
        return metric
    return f"perplexity_{run.settings(scale).keys['text']}"


def measured(run: Run | None, metric: str, scale: str, lines: pd.DataFrame) -> str:
    """Our values for a cell: mean, standard error, number of seeds, failed ones apart; empty if there are no runs."""
    if run is None:
        return ""
    full = at_training_length(run, metric, scale)
    names = [METRICS.get(full), METRICS.get(metric)]  # a failed run has the short one
    found, metric = lines[(lines["row"] == run.name) & (lines["scale"] == scale) & lines["metric"].isin(names)], full
    values = pd.to_numeric(found["value"]).dropna()
    if values.empty:
        return "failed" if len(found) else ""
    text, seeds = number(values.mean(), metric), found["seed"]
    if len(values) > 1 and metric not in SEEDLESS:
        text += f" ± {number(values.sem(), metric)} ({len(values)} seeds)"
    failed = {*seeds} - {*seeds[values.index]}
    return text + (f", {len(failed)} failed" if failed else "")


def ours(paper: Paper, table: Table, names: list[str], column: Column) -> dict[str, list[str]]:
    """Our columns beside one of the paper's, by title: a count, or one for each scale that has been measured."""
    source = paper.tables[column.table] if column.table else table
    rows = [(name, table.rows[name]) for name in names]
    runs = [run_shown(source, name, row, column) if row.arch else None for name, row in rows]
    if column.metric in COUNTED:
        return {"ours": [f"{parameters(run)[column.metric]:,}" if run else "" for run in runs]}
    if not column.metric:
        return {}
    lines = shown(source)
    return {
        f"ours ({scale})": [measured(run, column.metric, scale, lines) for run in runs] for scale in scales_of(lines)
    }


# Pages


def printed_cell(row: Row, title: str) -> str:
    """The paper's number, followed by that of a release page in brackets."""
    page = row.released.get(title, "")
    return " ".join(filter(None, [row.paper.get(title, ""), page and f"[{page}]"]))


def printed_rows(paper: Paper, table: Table, rows: dict[str, Row]) -> str:
    """The rows of the paper, ours beside them."""
    frame = pd.DataFrame({"as printed": [row.label for row in rows.values()]})
    frame["our row"] = [f"`{name}`" if row.arch else "" for name, row in rows.items()]
    for title, column in table.columns.items():
        frame[title] = [printed_cell(row, title) for row in rows.values()]
        for our_title, cells in ours(paper, table, list(rows), column).items():
            frame[f"{title}, {our_title}"] = cells
    return markdown(frame)


def added_rows(paper: Paper, table: Table, rows: dict[str, Row]) -> str:
    """The rows that are not in the paper."""
    frame = pd.DataFrame({"not in the paper": [f"`{name}`" for name in rows]})
    frame["what"] = [row.note for row in rows.values()]
    for title, column in table.columns.items():
        for our_title, cells in ours(paper, table, list(rows), column).items():
            frame[title + our_title.removeprefix("ours")] = cells
    return markdown(frame)


def cut_off(table: Table, rows: dict[str, Row]) -> str:
    """The counts that are printed with digits cut off, not rounded; those that a row calls different are left out."""
    found = {}
    for title, column in table.columns.items():
        for name, row in rows.items():
            cell = row.paper.get(title)
            if column.metric not in COUNTED or not cell or not row.arch or row.count_differs:
                continue
            count = parameters(run_shown(table, name, row, column))[column.metric]
            if not prints_as(count, cell, title, ROUND_HALF_UP):
                found.setdefault(title, []).append(f"`{name}`")
    columns = "; ".join(f"{title} of {', '.join(names)}" for title, names in found.items())
    return f"- The paper cuts digits off; rounded, our count is not the printed one: {columns}.\n" if found else ""


def remarks(table: Table, rows: dict[str, Row]) -> str:
    """The release pages, the notes of the rows, and which counts differ."""
    pages = dict.fromkeys(row.released["source"] for row in rows.values() if row.released.get("source"))
    text = f"In brackets: {'; '.join(pages)}.\n\n" if pages else ""
    notes = [f"- `{name}`: {row.note}.\n" for name, row in rows.items() if row.note]
    notes += [f"- `{name}`: our count is {row.count_differs}.\n" for name, row in rows.items() if row.count_differs]
    notes += filter(None, [cut_off(table, rows)])
    return text + "".join(notes) + ("\n" if notes else "")


def section(paper: Paper, table: Table) -> str:
    """A table's section: the paper's rows with ours beside them, remarks, and the rows we added."""
    printed = {name: row for name, row in table.rows.items() if row.printed}
    added = {name: row for name, row in table.rows.items() if not row.printed}
    text = f"## {table.title}\n\n"
    if printed:
        text += printed_rows(paper, table, printed) + remarks(table, printed)
    if table.note:
        text += table.note.strip() + "\n\n"
    return text + (added_rows(paper, table, added) if added else "")


def values(column: pd.Series) -> str:
    """The distinct values of whole numbers: "400", "1,000 to 4,000"; empty if there are none."""
    found = pd.to_numeric(column).dropna()
    if found.empty:
        return ""
    low, high = f"{found.min():,.0f}", f"{found.max():,.0f}"
    return low if low == high else f"{low} to {high}"


def command(line: pd.Series) -> str:
    """The command of a run, with $ROW and $SEED where the runs of a table differ."""
    seed = re.sub(rf"\bSEED={line['seed']}\b", "SEED=$SEED", line["cmd"])
    return re.sub(rf"(?<=\.sh ){re.escape(line['row'])}(?= |$)", "$ROW", seed)


def how(found: list[Table]) -> str:
    """How our numbers were made: budgets, machines, signatures and commands."""
    lines = pd.concat([shown(table) for table in found])
    if lines.empty:
        return ""
    budgets = [
        {
            "table": table,
            "scale": scale,
            "rows": str(runs["row"].nunique()),
            "updates": values(runs["updates"]),
            "minutes of training": values(pd.to_numeric(runs["wall_s"]) / 60),
            "device": "; ".join(runs["device"].unique()),
            "signature": "; ".join(f"`{one}`" for one in runs["signature"].unique() if one),
        }
        for (table, scale), runs in lines.groupby(["table", "scale"], sort=False)
    ]
    commands = lines.apply(command, axis=1).unique()
    return "## How ours were made\n\n" + markdown(pd.DataFrame(budgets)) + "\n".join(["```sh", *commands, "```", ""])


def results_page(paper: Paper) -> str:
    """The generated part of a RESULTS.md."""
    tables = list(paper.tables.values())
    return "".join(section(paper, table) for table in tables) + how(tables)


def index(found: list[Paper]) -> str:
    """The list of tables in recipes/README.md."""
    lines = [
        {
            "results": f"[{paper.paper}]({paper.folder.name}/RESULTS.md)",
            "table": table.title,
            "script": f"`{paper.folder.name}/{table.key}.sh`" if table.runs else "",
            "ours at": ", ".join(scales_of(shown(table))),
        }
        for paper in found
        for table in paper.tables.values()
    ]
    return markdown(pd.DataFrame(lines))


def replaced(path: Path, generated: str) -> str:
    """The text of a file with its generated part, between the marks, replaced.

    Raises:
        TableError: the file does not have each mark once.
    """
    text = path.read_text(encoding="utf-8")
    for mark in (BEGIN, END):
        if text.count(mark) != 1:
            raise TableError(f"{path}: must have the line {mark} once")
    return f"{text.partition(BEGIN)[0]}{BEGIN}\n{generated.rstrip()}\n{END}{text.partition(END)[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    options = parser.parse_args()
    try:
        found, readme = list(papers()), RECIPES / "README.md"
        generated = {readme: index(found)} | {paper.folder / "RESULTS.md": results_page(paper) for paper in found}
        texts = {path: replaced(path, text) for path, text in generated.items()}
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    stale = [path for path, text in texts.items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        if options.check:
            print(f"{path}: not up to date; run python recipes/records/render.py", file=sys.stderr)
        else:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
