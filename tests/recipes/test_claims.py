"""The papers' claims: the rule that decides them, on made-up numbers, and the entries that are rejected."""

import json
import math
import re
import statistics

import claims
import claims_page
import layout
import pytest
import recorded
import results_csv
import rows
import schema
import scipy.stats
import verdict

from tests.support.recipes import PAPERS, RECIPES

TABLES = """
paper = "P"
[settings.s]
scales = ["smoke", "small", "long", "gpu"]
[t]
title = "Table 1: of two rows"
name = "P T"
kind = "images"
settings = "s"
columns = { "top-1 %" = "top1" }
[t.rows.r]
arch = "sret_t"
note = "one"
[t.rows.q]
arch = "sret_t"
note = "other"
"""
BY_HAND = dict(paper="p", name="n", table="T", claim="c", figures="f", rows=["t/r"], test="x", state="not run")
COMPUTED = {key: BY_HAND[key] for key in ("paper", "name", "table", "claim", "figures", "test")}


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Reads claims of a folder `p` with one table of the rows `r` and `q`, which have these results."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "tables.toml").write_text(TABLES)
    (tmp_path / "smoke.csv").write_text("table,row\n")
    monkeypatch.setattr(recorded, "RECIPES", tmp_path)

    def of(*entries: dict, values: dict | None = None, metric: str = "top-1 %") -> list[claims.Claim]:
        """Args: values: of (row, scale), those of seeds 1, 2, ..."""
        lines = [
            dict(table="P T", row=row, scale=scale, metric=metric, seed=seed, value=value)
            for (row, scale), found in (values or {}).items()
            for seed, value in enumerate(found, start=1)
        ]
        path = tmp_path / "p" / "results.csv"
        path.unlink(missing_ok=True)
        results_csv.append(path, lines)
        text = "".join("[[claims]]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in entry.items()) for entry in entries)
        (tmp_path / "claims.toml").write_text(text)
        found = {"p": rows.read(tmp_path / "p")}
        return claims.read(tmp_path / "claims.toml", found, recorded.Results())

    return of


def toml(value: object) -> str:
    """A value as TOML has it: of tables within a line, keys have no quotes."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def compared(**keys) -> dict:
    """A claim of two rows."""
    return COMPUTED | {"compare": [{"rows": ["t/r", "t/q"], "metric": "top1", **keys}]}


def test_the_interval_is_that_of_students_t():
    values = [1.0, 2.5, 1.7, 2.2]
    low, high = verdict.interval(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert (low, high) == pytest.approx(scipy.stats.t.interval(0.95, 3, loc=statistics.mean(values), scale=error))
    assert verdict.interval([1.0]) == (-math.inf, math.inf)
    assert verdict.interval([1.0, 1.0, 1.0]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("differences", "says", "margin", "expected"),
    [
        ([], "better", 0.0, "not run"),
        ([9.0], "better", 0.0, "undecided"),
        ([9.0, 9.1], "better", 0.0, "undecided"),  # two seeds never decide
        ([1.0, 1.1, 0.9], "better", 0.0, "confirmed"),
        ([-1.0, -1.1, -0.9], "better", 0.0, "contradicted"),
        ([1.0, 3.0, -1.0], "better", 0.0, "undecided"),  # the interval holds 0
        ([0.0, 0.0, 0.0], "better", 0.0, "undecided"),
        ([1.0, 1.1, 0.9], "better", 0.9, "undecided"),
        ([-0.1, 0.0, 0.1], "no worse", 0.5, "confirmed"),
        ([-1.0, -1.1, -0.9], "no worse", 0.5, "contradicted"),
        ([5.0, 5.1, 4.9], "no worse", 0.5, "confirmed"),
        ([-0.1, 0.0, 0.1], "equal", 0.5, "confirmed"),
        ([5.0, 5.1, 4.9], "equal", 0.5, "contradicted"),
        ([-5.0, -5.1, -4.9], "equal", 0.5, "contradicted"),
        ([0.4, 0.5, 0.6], "equal", 0.5, "undecided"),
    ],
)
def test_a_verdict_follows_from_the_interval(differences, says, margin, expected):
    assert verdict.verdict(differences, says, margin) == expected


def test_of_several_comparisons_a_contradiction_needs_a_wider_interval(read):
    barely = [-0.6, -1.0, -1.4]
    assert verdict.verdict(barely) == "contradicted"
    assert verdict.verdict(barely, comparisons=4) == "undecided"
    ahead = [-lead for lead in barely]
    assert verdict.verdict(ahead, comparisons=4) == "confirmed"  # all must be
    values = {("r", "small"): barely, ("q", "small"): [0.0, 0.0, 0.0]}
    alone, beside = compared(), compared()
    beside["compare"] *= 4
    assert [read(claim, values=values)[0].verdict for claim in (alone, beside)] == ["contradicted", "undecided"]


def test_a_claim_of_several_comparisons_needs_all_of_them():
    confirmed, contradicted, undecided, not_run = verdict.VERDICTS
    assert verdict.together([confirmed, confirmed]) == confirmed
    assert verdict.together([confirmed, contradicted, not_run]) == contradicted
    assert verdict.together([confirmed, not_run]) == verdict.together([confirmed, undecided]) == undecided
    assert verdict.together([not_run, not_run]) == not_run


def test_seeds_are_compared_in_pairs_at_the_scale_with_most_of_them(read):
    small = {("r", "small"): [50, 60, 70], ("q", "small"): [49, 59.1, 68.9, 10]}
    [claim] = read(compared(), values=small)
    assert claim.comparisons[0].differences == pytest.approx([1.0, 0.9, 1.1])  # the fourth seed has no partner
    assert claim.verdict == "confirmed"
    assert claim.verdict_with_scale == "confirmed at scale small"
    assert "| `r` ahead of `q` | top-1 % | 60.00 / 59.00 | +1.00 points | +0.75 to +1.25 | 3 | small |" in "\n".join(
        claims_page.details(claim)
    )
    larger = small | {("r", "gpu"): [80], ("q", "gpu"): [90]}
    assert read(compared(), values=larger)[0].verdict_with_scale == "confirmed at scale small"
    assert read(compared(scale="gpu"), values=larger)[0].verdict_with_scale == "undecided"
    larger = small | {("r", "gpu"): [80, 80, 80], ("q", "gpu"): [90, 91, 92]}
    assert read(compared(), values=larger)[0].verdict_with_scale == "contradicted"


def test_smoke_runs_and_failed_runs_do_not_count(read):
    smoke = {("r", "smoke"): [50, 60, 70], ("q", "smoke"): [1, 2, 3]}
    assert read(compared(), values=smoke)[0].verdict_with_scale == "not run"
    failed = {("r", "small"): [50, "", "nan"], ("q", "small"): [1, 2, 3]}
    assert len(read(compared(), values=failed)[0].comparisons[0].differences) == 1


@pytest.mark.parametrize(("metric", "label"), [("loss", "loss, nats"), ("perplexity_256", "perplexity at 256")])
def test_a_smaller_loss_is_better_and_perplexities_are_compared_by_their_logarithms(metric, label, read):
    values = {("r", "small"): [2.0, 3.0, 4.0], ("q", "small"): [4.0, 6.0, 8.0]}
    [claim] = read(compared(metric=metric), values=values, metric=label)
    expected = [2.0, 3.0, 4.0] if metric == "loss" else [math.log(2)] * 3
    assert claim.comparisons[0].differences == pytest.approx(expected)
    assert claim.verdict == "confirmed"


def test_rows_may_be_compared_by_a_metric_of_each(read):
    values = {("r", "small"): [2.0], ("q", "small"): [4.0]}
    [claim] = read(compared(metric="top1_smallest_depth", other_metric="top1"), values=values)
    assert claim.verdict == "not run"  # the first row has no such value
    [claim] = read(compared(metric="top1", other_metric="top1"), values=values)
    assert claim.verdict == "undecided"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (BY_HAND | {"state": "true"}, "state 'true'; must be one of: confirmed, "),
        (BY_HAND | {"state": "confirmed"}, "confirmed without evidence"),
        (BY_HAND | {"state": "undecided", "evidence": "e"}, "undecided without ours"),
        (BY_HAND | {"rows": ["t/z"]}, "row 't/z': no such row"),
        (BY_HAND | {"rows": ["q/t/r"]}, "row 'q/t/r': no such row"),
        (BY_HAND | {"proof": "p"}, "unknown key 'proof'"),
        (COMPUTED, "missing key 'rows'"),
        (compared() | {"state": "confirmed"}, "unknown key 'state'"),
        (compared(rows=["t/r"]), "compare: 1 rows; must be 2"),
        (compared(rows=["t/r", "t/z"]), "row 't/z': no such row"),
        (compared(metric="quality"), "compare: metric 'quality': no such metric"),
        (compared(says="greater"), "compare: says 'greater'; must be one of: better, no worse, equal"),
        (compared(says="equal"), "compare: margin=0.0: must be > 0"),
        (compared(margin=-1.0), "compare: margin=-1.0: must be >= 0"),
        (compared(scale="tiny"), "compare: scale 'tiny'"),
        (compared(margins=1.0), "compare: unknown key 'margins'"),
    ],
)
def test_a_claim_that_cannot_be_decided_is_rejected(entry, message, read):
    assert "**Not run.** c" in "\n".join(claims_page.details(read(BY_HAND)[0]))
    with pytest.raises(schema.TableError, match=re.escape(f"claims.toml: claim 1: {message}")):
        read(entry)


def test_links_of_the_claims_lead_to_their_details_and_to_the_tables_of_their_rows():
    text = (RECIPES / "CLAIMS.md").read_text(encoding="utf-8")
    links = set(re.findall(r"\]\(([^)]+)\)", text))
    assert len(links) > 20
    headings = set()
    for path in (RECIPES / "CLAIMS.md", *RECIPES.glob("*/RESULTS.md")):
        home = "" if path.parent == RECIPES else f"{path.parent.name}/RESULTS.md"
        titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        headings |= {f"{home}#{layout.anchor(title)}" for title in titles}
    assert links <= headings


def test_every_paper_has_claims_and_every_claim_a_name_of_its_own():
    found = claims.read(RECIPES / "claims.toml", {paper.folder.name: paper for paper in PAPERS}, recorded.Results())
    assert {claim.paper for claim in found} == {"ringformer", "sret", "takase", "ilr", "kausik", "multi30k", "depth"}
    assert len({claim.name for claim in found}) == len(found)
