"""A paper's table as printed, with our numbers beside it."""

from itertools import combinations
from math import hypot
from statistics import mean

import layout
from count import counted
from recorded import Cell, Results
from results_csv import ERRORS
from rows import COUNTED, Column, Row, Run, Table


def runs_of(row: Row) -> list[Run]:
    """The row's run, or those of its variants."""
    return [run for run in row.table.runs.values() if run.row.name == row.name]


def run_shown(row: Row, column: Column) -> Run | None:
    """The run whose number a cell shows."""
    if not row.arch:
        return None
    if column.table:
        return row.table.paper.tables[column.table].runs.get(row.name)
    runs = runs_of(row)
    return next((run for run in runs if run.variant == column.variant), runs[0])


def ours(row: Row, column: Column, results: Results) -> str:
    """Our number for a cell, counted or measured; empty if there is none."""
    run = run_shown(row, column)
    if run is None or not column.metric:
        return ""
    if column.metric in COUNTED:
        return f"{counted(run)[column.metric]:,}"
    return str(Cell(run, column.metric, results))


def printed_cell(row: Row, column: Column) -> str:
    """The paper's number, followed by that of a release page in brackets."""
    page = row.released.get(column.title, "")
    return " ".join(filter(None, [row.paper.get(column.title, ""), page and f"[{page}]"]))


def largest_scales(runs: list[Run], results: Results) -> str:
    """The largest scale at which each run has run, counted: "small 5 of 11, smoke 6 of 11"."""
    if not runs:
        return "printed only"
    found = []
    for run in runs:
        recorded = results.of(run)
        smoked = (run.table.name, run.name) in results.smoked
        found.append(recorded[0]["scale"] if recorded else "smoke" if smoked else "not run")
    scales = dict.fromkeys(found)
    if len(scales) == 1:
        return found[0]
    return ", ".join(f"{scale} {found.count(scale)} of {len(found)}" for scale in scales)


def printed_number(text: str) -> float | None:
    """The number in a printed cell, or None."""
    try:
        return float(text.strip().rstrip("%MK×x").replace(",", ""))
    except ValueError:
        return None


def ranking(table: Table, column: Column, results: Results) -> str:
    """In how many pairs of rows our difference has the sign of the paper's, and in how many the opposite one.

    Pairs count if both rows have enough seeds at one scale, and show a difference of more than two standard errors.
    """
    cells = []
    for row in table.rows.values():
        theirs, run = printed_number(row.paper.get(column.title, "")), run_shown(row, column)
        if theirs is not None and run is not None:
            cell = Cell(run, column.metric, results)
            if cell.decides:
                cells.append((theirs, cell))
    pairs = [(a, b) for a, b in combinations(cells, 2) if a[0] != b[0] and a[1].scale == b[1].scale]
    same = opposite = 0
    for (theirs, ours), (their_other, our_other) in pairs:
        difference = mean(ours.values) - mean(our_other.values)
        if abs(difference) > 2 * hypot(ours.error, our_other.error):
            agrees = (difference > 0) == (theirs > their_other)
            same += agrees
            opposite += not agrees
    if not same + opposite:
        return f"{column.title}: undecided"
    undecided = len(pairs) - same - opposite
    rest = f", undecided in {undecided}" if undecided else ""
    return f"{column.title}: the same in {same} of {len(pairs)} pairs, reversed in {opposite}{rest}"


def comparison(table: Table, results: Results) -> list[str]:
    """The lines of a table's section: the printed rows with ours beside them, remarks, and the rows we added."""
    printed = [row for row in table.rows.values() if row.printed]
    added = [row for row in table.rows.values() if not row.printed]
    lines = [*printed_rows(table, printed, results), *rankings(table, results)] if printed else []
    lines += remarks(printed)
    if table.entry.get("note"):
        lines += [table.entry["note"].strip(), ""]
    if added:
        lines += added_rows(table, added, results)
    return lines


def printed_rows(table: Table, rows: list[Row], results: Results) -> list[str]:
    titles = ["as printed", "our row"]
    for column in table.columns:
        titles += [column.title or "value", f"{column.title}, ours"]
    lines = []
    for row in rows:
        line = [row.label, f"`{row.name}`" if row.arch else ""]
        for column in table.columns:
            line += [printed_cell(row, column), ours(row, column, results)]
        lines.append([*line, largest_scales(runs_of(row), results)])
    return [*layout.without_empty_columns([*titles, "run at"], lines), ""]


def rankings(table: Table, results: Results) -> list[str]:
    """Whether our rows rank as the paper's, column by column."""
    columns = [column for column in table.columns if column.metric not in ("", *COUNTED, *ERRORS)]
    if not table.ordered or not columns:
        return []
    found = dict.fromkeys(ranking(table, column, results) for column in columns)
    return [f"The paper's ranking of the rows — {'; '.join(found)}.", ""]


def remarks(rows: list[Row]) -> list[str]:
    """The release pages, the notes of the rows, and why counts differ."""
    pages = dict.fromkeys(row.released["source"] for row in rows if row.released.get("source"))
    lines = [f"In brackets: {'; '.join(pages)}.", ""] if pages else []
    notes = [f"- `{row.name}`: {row.note}." for row in rows if row.note]
    notes += [f"- `{row.name}`: our count is {row.count_differs}." for row in rows if row.count_differs]
    return lines + ([*notes, ""] if notes else [])


def added_rows(table: Table, rows: list[Row], results: Results) -> list[str]:
    titles = ["not in the paper", "what", *(column.title for column in table.columns), "run at"]
    lines = []
    for row in rows:
        cells = [ours(row, column, results) for column in table.columns]
        lines.append([f"`{row.name}`", row.note, *cells, largest_scales(runs_of(row), results)])
    return [*layout.without_empty_columns(titles, lines), ""]
