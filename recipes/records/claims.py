"""The papers' claims: reads claims.toml, and decides each by what has been recorded."""

from dataclasses import dataclass
from pathlib import Path

from comparison import Comparison, split_name
from recorded import Results
from rows import Paper, Table
from schema import TableError, check_keys, load_toml
from verdict import VERDICTS, together

REQUIRED = {"paper", "name", "table", "claim", "figures", "test"}
COMPUTED = REQUIRED | {"compare", "rows", "note"}
BY_HAND = REQUIRED | {"state", "evidence", "ours", "rows", "note"}
LARGE_SCALES = ("paper", "gpu")  # a verdict from a smaller scale names the scale


@dataclass(frozen=True, eq=False)
class Claim:
    """A claim. The keys of its entry in claims.toml are attributes.

    Args:
        comparisons: those that decide it; empty if its verdict is written by hand.
        tables: the tables that it is about.
    """

    entry: dict
    comparisons: tuple[Comparison, ...]
    tables: tuple[Table, ...]

    def __getattr__(self, name: str) -> str:
        if name not in COMPUTED | BY_HAND:
            raise AttributeError(name)
        return self.entry.get(name, "")

    @property
    def verdict(self) -> str:
        return together([one.verdict for one in self.comparisons]) if self.comparisons else self.state

    @property
    def verdict_with_scale(self) -> str:
        """The verdict, with the scale if that is a small one."""
        scales = dict.fromkeys(one.scale for one in self.comparisons if one.scale)
        small = [scale for scale in scales if scale.split("-")[0] not in LARGE_SCALES]
        decided = self.verdict in ("confirmed", "contradicted")
        return f"{self.verdict} at scale {', '.join(small)}" if decided and small else self.verdict


def read(path: Path, papers: dict[str, Paper], results: Results) -> list[Claim]:
    """All claims of a file.

    Args:
        papers: by folder.

    Raises:
        TableError: a key is missing or unknown, there is no such row, or a verdict by hand lacks its evidence.
    """
    return [
        read_claim(f"{path.name}: claim {number}", entry, papers, results)
        for number, entry in enumerate(load_toml(path).get("claims", []), start=1)
    ]


def read_claim(where: str, entry: dict, papers: dict[str, Paper], results: Results) -> Claim:
    """One claim, checked."""
    if "compare" in entry:
        check_keys(where, entry, COMPUTED, REQUIRED)
    else:
        check_by_hand(where, entry)
    folder = entry["paper"]
    try:
        pairs = entry.get("compare", ())
        comparisons = tuple(Comparison.read(one, folder, papers, results, len(pairs)) for one in pairs)
        named = [table_of(name, folder, papers) for name in entry.get("rows", ())]
    except TableError as error:
        raise TableError(f"{where}: {error}") from error
    compared = [run.table for one in comparisons for run in (one.first, one.second)]
    return Claim(entry, comparisons, tuple(dict.fromkeys([*compared, *named])))


def check_by_hand(where: str, entry: dict) -> None:
    """Rejects a verdict by hand that is unknown, or has no evidence."""
    check_keys(where, entry, BY_HAND, REQUIRED | {"rows", "state"})
    if entry["state"] not in VERDICTS:
        raise TableError(f"{where}: state {entry['state']!r}; must be one of: {', '.join(VERDICTS)}")
    for key in ("evidence", "ours"):
        if entry["state"] != "not run" and not entry.get(key):
            raise TableError(f"{where}: {entry['state']} without {key}")


def table_of(name: str, folder: str, papers: dict[str, Paper]) -> Table:
    """The table of the row of this name, which may be one that is only printed."""
    table, row = split_name(name, folder, papers)
    if table is None or (row not in table.runs and row not in table.rows):
        raise TableError(f"row {name!r}: no such row")
    return table
