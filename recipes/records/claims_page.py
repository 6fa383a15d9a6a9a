"""CLAIMS.md: the papers' claims at a glance, then each with its comparisons."""

from collections import Counter

from claims import Claim
from layout import anchor, table, without_empty_columns
from rows import Paper, Table
from verdict import VERDICTS

BEGIN, END = "<!-- overview: begin -->", "<!-- overview: end -->"
HEADER = """\
<!-- made by recipes/records/render.py from claims.toml and results.csv: change those -->
# What the papers claim

{tally}. The last two groups are not claims of the five papers: a published baseline, and our own goals for elastic
depth.

A claim about training compares rows of our tables. The lead is the difference between two rows, positive where the
first is better. If a claim has several comparisons, `ours` lists all leads, and the interval is that of the smallest
lead or, if the claim is contradicted, of the lead that contradicts it; the claim's own section has all intervals. The
last column has the verdict and, in brackets, the scale of the runs.
"""
INTRODUCTION = """\

Rows are compared seed by seed: `lead` is the mean difference over the seeds, with its 95 % interval (Student's t). A
comparison is decided once at least three seeds have run: it is confirmed if the whole interval is on the claimed side
of 0 (or of the margin), and contradicted if all of it is on the other side. A claim with several comparisons is
confirmed if all of them are, and contradicted if one is; that one is judged by a wider interval than the one shown,
so that all hold together (Bonferroni). Claims about counts or algebra are decided by an exact count or a test. All
other claims are undecided or have not run.
"""


def page(claims: list[Claim], papers: dict[str, Paper]) -> str:
    """The text of CLAIMS.md.

    Args:
        papers: by folder.
    """
    lines = [HEADER.format(tally=f"{len(claims)} claims: {tally(claims)}")]
    lines += [BEGIN, *overview(claims, papers), END, INTRODUCTION]
    for folder, found in by_folder(claims).items():
        lines += [f"## {papers[folder].name}", "", f"{tally(found)}.", ""]
        for claim in found:
            lines += details(claim)
    return "\n".join(lines)


def by_folder(claims: list[Claim]) -> dict[str, list[Claim]]:
    """The claims of each paper's folder, in order of first appearance."""
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        found.setdefault(claim.paper, []).append(claim)
    return found


def tally(claims: list[Claim]) -> str:
    """How many claims have each verdict."""
    counts = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def overview(claims: list[Claim], papers: dict[str, Paper]) -> list[str]:
    """A table with a line for each claim that has run, and a list of the others."""
    lines = []
    for folder, found in by_folder([claim for claim in claims if claim.verdict != "not run"]).items():
        lines += [[f"**{papers[folder].name}**", "", "", "", ""], *map(overview_line, found)]
    not_run = "; ".join(heading_link(claim) for claim in claims if claim.verdict == "not run")
    return [*table(["claim", "paper", "ours", "95 % interval", "verdict"], lines), "", f"Not run: {not_run}."]


def overview_line(claim: Claim) -> list[str]:
    """A claim's line: its name, the paper's figures, ours with a link to the table, the interval and the verdict."""
    ran = [one for one in claim.comparisons if one.differences]
    interval = scales = ""
    if ran:
        shown = min(ran, key=lambda one: (one.verdict != "contradicted", one.mean))
        seeds = len(shown.differences)
        interval = ", ".join(filter(None, [shown.interval, f"{seeds} seed{'s' if seeds > 1 else ''}"]))
        scales = f" ({', '.join(dict.fromkeys(one.scale for one in ran))})"
    found = f"[{ours(claim)}]({address(claim.tables[0])})"
    return [heading_link(claim), claim.figures, found, interval, claim.verdict + scales]


def ours(claim: Claim) -> str:
    """Our figures: both means of one comparison, the leads of several, or those written by hand."""
    ran = [one for one in claim.comparisons if one.differences]
    if not ran:
        return claim.ours
    if len(claim.comparisons) == 1:
        return f"{ran[0].means.replace('/', 'against')} {ran[0].label}"
    leads = "; ".join(one.signed(one.mean) for one in ran)
    missing = f" ({len(ran)} of {len(claim.comparisons)} compared)" if len(ran) < len(claim.comparisons) else ""
    return f"{leads} {ran[0].unit}{missing}"


def details(claim: Claim) -> list[str]:
    """A claim's section: the verdict, the comparisons, the paper's figures, the evidence, and what would decide it."""
    lines = [f"### {claim.name}", "", f"**{claim.verdict_with_scale.capitalize()}.** {claim.claim}", ""]
    if claim.comparisons:
        titles = ["comparison", "metric", "ours", "lead", "95 % interval", "seeds", "scale", "verdict"]
        lines += [*without_empty_columns(titles, [one.cells for one in claim.comparisons]), ""]
    lines.append(f"- {claim.table}: {claim.figures}")
    if claim.evidence:
        lines.append(f"- seen: {claim.evidence}")
    if claim.note:
        lines.append(f"- {claim.note}")
    lines.append(f"- would decide it: {claim.test}")
    rows = f": {', '.join(f'`{row}`' for row in claim.rows)}" if claim.rows else ""
    return [*lines, f"- rows in {', '.join(map(table_link, claim.tables))}{rows}", ""]


def address(of: Table) -> str:
    """Where a table is in its folder's RESULTS.md, seen from recipes/."""
    return f"{of.paper.folder.name}/RESULTS.md#{anchor(of.title)}"


def table_link(of: Table) -> str:
    """A link to a table, such as [sret/table5](...)."""
    return f"[{of.paper.folder.name}/{of.key}]({address(of)})"


def heading_link(claim: Claim) -> str:
    """A link to the claim's section."""
    return f"[{claim.name}](#{anchor(claim.name)})"
