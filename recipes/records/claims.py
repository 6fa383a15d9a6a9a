"""What the papers claim and what has been seen of it here: reads claims.toml, checks it, and writes it as Markdown."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from comparison import Comparison
from layout import anchor, filled, table
from recorded import Results
from rows import Paper, Table, TableError, known, load
from verdict import VERDICTS, together

REQUIRED = {"paper", "name", "table", "claim", "figures", "test"}
COMPUTED = REQUIRED | {"compare", "rows", "note"}
BY_HAND = REQUIRED | {"state", "evidence", "ours", "rows", "note"}
LARGE_SCALES = ("paper", "gpu")  # a verdict of a smaller scale is told with it

GLANCE = "Of several comparisons `ours` has every lead, and the interval is that of the smallest."
BEGIN, END = "<!-- overview: begin -->", "<!-- overview: end -->"
INTRODUCTION = """\
A claim about training is a comparison of rows, seed by seed: `lead` is the mean difference, positive where the first
row is better, with its 95 % interval over the seeds (Student's t). It is confirmed or contradicted by at least three
seeds whose interval lies beyond 0, or beyond the margin; of several comparisons each has to be confirmed, and one that
is contradicted is enough. A claim about counts or algebra has an exact count or a test. The rest is undecided or has
not run."""


@dataclass(frozen=True, eq=False)
class Claim:
    """A claim: its entry in the file, the comparisons that decide it, and the tables that its rows are of."""

    entry: dict
    comparisons: tuple[Comparison, ...]
    tables: tuple[Table, ...]

    def __getattr__(self, name: str) -> str:
        if name not in COMPUTED | BY_HAND:
            raise AttributeError(name)
        return self.entry.get(name, "")

    @property
    def verdict(self) -> str:
        """By the comparisons' results, or by hand."""
        return together([one.verdict for one in self.comparisons]) if self.comparisons else self.state

    @property
    def scales(self) -> list[str]:
        """Those below a GPU's at which its comparisons have run."""
        ran = dict.fromkeys(one.scale for one in self.comparisons if one.scale)
        return [scale for scale in ran if scale.split("-")[0] not in LARGE_SCALES]

    @property
    def told(self) -> str:
        """The verdict as it is told: one of a smaller scale with that scale."""
        decided = self.verdict in ("confirmed", "contradicted")
        return f"{self.verdict} at scale {', '.join(self.scales)}" if decided and self.scales else self.verdict


def read(path: Path, papers: dict[str, Paper], results: Results) -> list[Claim]:
    """All claims.

    Args:
        papers: those with tables, by folder.
        results: what has been recorded.

    Raises:
        TableError: a key is missing or unknown (a verdict by hand is, beside `compare`), a row is none of the paper's
            tables, a verdict by hand lacks its evidence, in full or in a few words.
    """
    return [
        read_one(f"{path.name}: claim {number}", entry, papers, results)
        for number, entry in enumerate(load(path).get("claims", []), start=1)
    ]


def read_one(where: str, entry: dict, papers: dict[str, Paper], results: Results) -> Claim:
    """One of them, checked."""
    if "compare" in entry:
        known(where, entry, COMPUTED, REQUIRED)
    else:
        known(where, entry, BY_HAND, REQUIRED | {"rows", "state"})
        if entry["state"] not in VERDICTS:
            raise TableError(f"{where}: state {entry['state']!r}; must be one of: {', '.join(VERDICTS)}")
        for key in ("evidence", "ours"):
            if entry["state"] != "not run" and not entry.get(key):
                raise TableError(f"{where}: {entry['state']} without {key}")
    try:
        comparisons = tuple(Comparison.read(one, entry["paper"], papers, results) for one in entry.get("compare", ()))
        named = [table_of(name, entry["paper"], papers) for name in entry.get("rows", ())]
    except TableError as error:
        raise TableError(f"{where}: {error}") from error
    compared = [run.table for one in comparisons for run in (one.better, one.other)]
    return Claim(entry, comparisons, tuple(dict.fromkeys([*compared, *named])))


def table_of(name: str, paper: str, papers: dict[str, Paper]) -> Table:
    """The table of a row that is named TABLE/ROW, or FOLDER/TABLE/ROW where it is of another folder's."""
    *folder, table, row = name.split("/")
    tables = papers[folder[0] if folder else paper].tables if (folder or [paper])[0] in papers else {}
    if table not in tables or not {row} & {*tables[table].runs, *tables[table].rows}:
        raise TableError(f"row {name!r}: there is none")
    return tables[table]


def link(of: Table) -> str:
    """A table's place in its folder's RESULTS.md, as a link from recipes."""
    folder = of.paper.folder.name
    return f"[{folder}/{of.key}]({folder}/RESULTS.md#{anchor(of.title)})"


def tally(claims: list[Claim]) -> str:
    """How many have each verdict."""
    counts = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def details(claim: Claim) -> list[str]:
    """A claim with what tests it and what has been seen."""
    lines = [f"### {claim.name}", "", f"**{claim.told.capitalize()}.** {claim.claim}", ""]
    if claim.comparisons:
        titles = ["comparison", "metric", "ours", "lead", "95 % interval", "seeds", "scale", "verdict"]
        lines += [*filled(titles, [one.cells for one in claim.comparisons]), ""]
    lines += [f"- {claim.table}: {claim.figures}"]
    lines += [f"- seen: {claim.evidence}"] if claim.evidence else []
    lines += [f"- {claim.note}"] if claim.note else []
    lines += [f"- convincing at least: {claim.test}"]
    rows = f": {', '.join(f'`{row}`' for row in claim.rows)}" if claim.rows else ""
    return [*lines, f"- rows in {', '.join(map(link, claim.tables))}{rows}", ""]


def overview(claims: list[Claim], papers: dict[str, Paper]) -> list[str]:
    """Every claim as a line: those that have run in a table, the others by name below it."""
    lines = []
    for folder in dict.fromkeys(claim.paper for claim in claims):
        found = [claim for claim in claims if claim.paper == folder and claim.verdict != "not run"]
        lines += [[f"**{papers[folder].name}**", "", "", "", ""]] if found else []
        lines += [line(claim) for claim in found]
    rest = [named(claim) for claim in claims if claim.verdict == "not run"]
    return [*table(["claim", "paper", "ours", "95 % interval", "verdict"], lines), "", f"Not run: {'; '.join(rest)}."]


def named(claim: Claim) -> str:
    """A claim's name, which leads to all that is told of it."""
    return f"[{claim.name}](#{anchor(claim.name)})"


def line(claim: Claim) -> list[str]:
    """A claim in the overview. Ours, which leads to the table of its rows, is both means, or the leads of several
    comparisons; the interval is that of the smallest lead, on which the claim hangs."""
    ran = [one for one in claim.comparisons if one.differences]
    found = claim.entry.get("ours", "")
    if len(claim.comparisons) == 1:
        found = f"{ran[0].ours.replace('/', 'against')} {ran[0].label}"
    elif ran:
        found = f"{'; '.join(one.told(one.mean) for one in ran)} {ran[0].unit}"
        found += f" ({len(ran)} of {len(claim.comparisons)} compared)" if len(ran) < len(claim.comparisons) else ""
    least = min(ran, key=lambda one: one.mean, default=None)
    count = len(least.differences) if least else 0
    interval = ", ".join(filter(None, [least.interval, f"{count} seed{'s' * (count > 1)}"])) if least else ""
    place = link(claim.tables[0]).split("](")[1]
    scales = f" ({', '.join(dict.fromkeys(one.scale for one in ran))})" if ran else ""
    return [named(claim), claim.figures, f"[{found}]({place}", interval, f"{claim.verdict}{scales}"]


def markdown(claims: list[Claim], papers: dict[str, Paper]) -> str:
    """The claims at a glance, and each by paper."""
    lines = ["<!-- made by recipes/records/render.py from claims.toml and results.csv: change those -->"]
    lines += ["# What the papers claim", ""]
    lines += [
        f"{len(claims)} claims: {tally(claims)}. {GLANCE}",
        "",
        BEGIN,
        *overview(claims, papers),
        END,
        "",
        INTRODUCTION,
        "",
    ]
    for folder in dict.fromkeys(claim.paper for claim in claims):
        found = [claim for claim in claims if claim.paper == folder]
        lines += [f"## {papers[folder].name if folder in papers else folder}", "", f"{tally(found)}.", ""]
        for claim in found:
            lines += details(claim)
    return "\n".join(lines)
