"""Writes what is generated from tables.toml, claims.toml and results.csv: recipes/CLAIMS.md, the tables of every
RESULTS.md, and the list of tables in recipes/README.md.

    python recipes/records/render.py [--check | --smoke OUT]

Tables are shown as the paper prints them, with our number beside each cell: the mean over the seeds at the largest
scale that has run, with its standard error if there are several seeds. Smoke runs only show that a row works, so their
scores are not shown; smoke.csv lists them.
"""

import argparse
import csv
import sys
from pathlib import Path

import claims
import claims_page
import layout
from every_run import every_run
from paper_table import comparison, largest_scales
from recorded import Results
from results_csv import read
from rows import RECIPES, Paper, papers
from schema import TableError

BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"


def results_page(paper: Paper, results: Results) -> str:
    """The generated part of a RESULTS.md: the paper's tables, then every run."""
    lines = []
    for table in paper.tables.values():
        lines += [f"## {table.title}", "", *comparison(table, results)]
    path = paper.folder / "results.csv"
    return "\n".join([*lines, *every_run(read(path) if path.exists() else [])])


def index(found: list[Paper], results: Results) -> str:
    """The list of tables in recipes/README.md."""
    lines = []
    for paper in found:
        link = f"[{paper.name}]({paper.folder.name}/RESULTS.md)"
        for table in paper.tables.values():
            script = f"`{paper.folder.name}/{table.key}.sh`" if table.runs else ""
            lines.append([link, table.title, script, largest_scales(list(table.runs.values()), results)])
    return "\n".join([*layout.table(["results", "table", "script", "run at"], lines), ""])


def replaced(path: Path, generated: str) -> str:
    """The text of a file with its generated part, between the marks, replaced.

    Raises:
        TableError: the file does not have each mark once.
    """
    text = path.read_text(encoding="utf-8")
    for mark in (BEGIN, END):
        if text.count(mark) != 1:
            raise TableError(f"{path}: must have the line {mark} once")
    return f"{text.partition(BEGIN)[0]}{BEGIN}\n{generated}{END}{text.partition(END)[2]}"


def pages() -> dict[Path, str]:
    """The text of every file that is generated, in full or in part."""
    found, results = list(papers()), Results()
    readme, source = RECIPES / "README.md", RECIPES / "claims.toml"
    texts = {readme: replaced(readme, index(found, results))}
    if source.exists():
        by_folder = {paper.folder.name: paper for paper in found}
        texts[RECIPES / "CLAIMS.md"] = claims_page.page(claims.read(source, by_folder, results), by_folder)
    for paper in found:
        path = paper.folder / "RESULTS.md"
        texts[path] = replaced(path, results_page(paper, results))
    return texts


def add_smoke(out: Path) -> None:
    """Adds the smoke runs that succeeded under OUT to smoke.csv."""
    seen = Results().smoked
    with (RECIPES / "smoke.csv").open("a", encoding="utf-8", newline="") as file:
        for run in [run for path in sorted(out.glob("*/results.csv")) for run in read(path)]:
            key = run["table"], run["row"]
            if run["scale"] == "smoke" and run["value"] and key not in seen:
                csv.writer(file, lineterminator="\n").writerow(key)
                seen.add(key)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    parser.add_argument("--smoke", type=Path, metavar="OUT", help="first add the smoke runs under OUT to smoke.csv")
    options = parser.parse_args()
    if options.smoke:
        add_smoke(options.smoke)
    try:
        texts = pages()
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if options.check:
            print(f"{path}: not up to date; run python recipes/records/render.py", file=sys.stderr)
        else:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
