"""What the papers claim and what has been seen of it here: reads claims.toml, checks it, and writes it as Markdown."""

from collections import Counter
from pathlib import Path

from rows import Paper, TableError, known, load

STATES = ("confirmed", "contradicted", "undecided", "not run")
REQUIRED = {"paper", "table", "claim", "figures", "rows", "test", "state"}
KEYS = REQUIRED | {"evidence", "interval"}


def read(path: Path, papers: dict[str, Paper]) -> list[dict]:
    """All claims.

    Args:
        papers: those with tables, by folder.

    Raises:
        TableError: a key is missing or unknown, a row is none of the paper's tables, a verdict lacks its evidence.
    """
    claims = load(path).get("claims", [])
    for number, claim in enumerate(claims, start=1):
        where = f"{path.name}: claim {number}"
        known(where, claim, KEYS, REQUIRED)
        if claim["state"] not in STATES:
            raise TableError(f"{where}: state {claim['state']!r}; must be one of: {', '.join(STATES)}")
        if claim["state"] in STATES[:2] and not claim.get("evidence"):
            raise TableError(f"{where}: {claim['state']} without evidence")
        for name in claim["rows"]:
            check_row(where, name, claim["paper"], papers)
    return claims


def check_row(where: str, name: str, paper: str, papers: dict[str, Paper]) -> None:
    """A row is named TABLE/ROW, or FOLDER/TABLE/ROW where it is of another folder's."""
    *folder, table, row = name.split("/")
    tables = papers[folder[0] if folder else paper].tables if (folder or [paper])[0] in papers else {}
    if table not in tables or not {row} & {*tables[table].runs, *tables[table].rows}:
        raise TableError(f"{where}: row {name!r}: there is none")


def markdown(claims: list[dict], papers: dict[str, Paper]) -> str:
    """The claims by paper, each with what tests it and what has been seen."""
    lines = ["<!-- made by recipes/records/render.py from claims.toml: change that -->", "# What the papers claim", ""]
    lines += [
        "A claim about training is confirmed or contradicted by runs of several seeds whose interval leaves out 0,"
    ]
    lines += ["one about counts or algebra by an exact count or a test. The rest is undecided or has not run.", ""]
    for folder in dict.fromkeys(claim["paper"] for claim in claims):
        found = [claim for claim in claims if claim["paper"] == folder]
        states = Counter(claim["state"] for claim in found)
        told = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
        lines += [f"## {papers[folder].name if folder in papers else folder}", "", f"{told}.", ""]
        for claim in found:
            rows = ", ".join(f"`{row}`" for row in claim["rows"])
            lines += [f"**{claim['state'].capitalize()}.** {claim['claim']}", ""]
            lines += [f"- {claim['table']}: {claim['figures']}", *([f"- rows: {rows}"] if rows else [])]
            lines += [f"- convincing at least: {claim['test']}"]
            lines += [f"- seen: {claim['evidence']}"] if claim.get("evidence") else []
            lines += [f"- interval: {claim['interval']}"] if claim.get("interval") else []
            lines += [""]
    return "\n".join(lines)
