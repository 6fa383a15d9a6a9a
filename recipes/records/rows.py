"""The papers' tables as data: reads PAPER/tables.toml and checks it.

A file has the paper's name, the settings that its runs share, and its tables: columns, rows and every published cell,
as printed. A row with an architecture is run (or counted); one without it is only printed; one without a label is ours
alone. recipes/README.md describes the keys.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

RECIPES = Path(__file__).resolve().parents[1]
BELOW_PAPER = ("smoke", "small", "long", "gpu")
SWITCHES = ("release", "code")  # SETTINGS: whose settings of scale paper, where they differ from the paper's
COUNTED = ("params", "params_core")  # of the registered model; nothing has to be run
SOME_BATCH = "batch or tokens"


@dataclass(frozen=True)
class Kind:
    """Which keys the settings of commands/KIND.sh have, and at which scales."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    scales: tuple[str, ...] = ("smoke", "small", "gpu", "paper")
    budget: bool = True  # whether commands/KIND.sh has the trainer's flags of the smaller scales

    @property
    def keys(self) -> set[str]:
        """All of them."""
        both = {*self.required, *self.optional, "scales", "precision", "micro_batch"} - {SOME_BATCH}
        return both | {"batch", "tokens"} if SOME_BATCH in self.required else both


KINDS = {
    "translation": Kind(
        required=("data", "languages", "tests", SOME_BATCH, "micro_batch", "train", "search", "symbols"),
        optional=("average", "search_of", "tokenize", "scored", "width", "wide", "share", "decode"),
    ),
    "images": Kind(required=("data", "batch", "train"), optional=("classes", "divisor", "repeats")),
    "language": Kind(
        required=("data", "bin", "text", SOME_BATCH, "micro_batch", "updates", "train", "symbols"),
        optional=("data_settings", "lengths", "evaluate", "checkpoint", "tested", "pieces", "evaluated", "measure")
        + ("save", "log", "positions", "flops", "task"),
        scales=("smoke", "small", "paper"),
        budget=False,
    ),
    "sequence": Kind(
        required=("task", SOME_BATCH, "micro_batch", "updates", "log", "train", "symbols"),
        optional=("data", "bin", "text", "positions", "classes", "save", "subset", "checkpoint"),
        scales=("smoke", "small", "paper"),
        budget=False,
    ),
    "speech": Kind(
        required=("data", "bin", "tokens", "micro_batch", "updates", "train", "trained", "valid", "tests", "search")
        + ("symbols",),
        optional=("data_settings", "save", "log", "keep", "short"),
        scales=("smoke", "small", "paper"),
        budget=False,
    ),
    "count": Kind(
        required=("count",),
        optional=("throughput", "classes", "symbols", "text", "batch", "updates", "positions")
        + ("beside", "tokens", "rounds"),
        scales=("smoke", "paper"),  # which are the same
        budget=False,
    ),
}
TABLE_REQUIRED = {"title", "name", "columns", "rows"}
TABLE_KEYS = TABLE_REQUIRED | {"source", "kind", "settings", "variants", "run", "order", "note"}
ROW_KEYS = {"label", "arch", "flags", "paper", "note", "settings", "released", "count_differs", "smaller", *BELOW_PAPER}
VARIANT_KEYS = {"flags", "smaller", *BELOW_PAPER}


class TableError(ValueError):
    """A table file, or what is asked of it, cannot be."""


def known(where: str, found: dict, keys: set[str], required: set[str] = frozenset()) -> None:
    """Refuses keys that there are not, and those that are missing.

    Raises:
        TableError: names the place and the key.
    """
    for key in found:
        if key not in keys:
            raise TableError(f"{where}: unknown key {key!r}; must be one of: {', '.join(sorted(keys))}")
    for key in sorted(required):
        if key not in found:
            raise TableError(f"{where}: missing key {key!r}")


@dataclass(frozen=True)
class Column:
    """A column of the paper: its title, and the metric of ours that stands beside it ("": none).

    It is of the run of that name in another table of the paper where that is named, such as one that counts operations.
    """

    title: str
    metric: str
    variant: str = ""
    table: str = ""


@dataclass(frozen=True, eq=False)
class Row:
    """A row of a table, with the keys of its entry in the file."""

    name: str
    table: "Table" = field(repr=False)
    entry: dict = field(repr=False)

    def __getattr__(self, name: str):
        if name not in ROW_KEYS:
            raise AttributeError(name)
        return self.entry.get(name, {} if name in ("paper", "released") else "")

    def has(self, variant: str) -> bool:
        """Whether there is a run of a variant: where a row gives each its own flags, of those alone."""
        return not isinstance(self.flags, dict) or variant in self.flags

    @property
    def printed(self) -> bool:
        """Whether the paper has the row."""
        return "label" in self.entry


@dataclass(frozen=True)
class Settings:
    """What a run's commands are made of."""

    keys: dict
    kwargs: list[str]  # key=value of the model's constructor
    flags: list[str]  # of the trainer


def split_flags(*texts: str) -> tuple[list[str], list[str]]:
    """The leading key=value of each text, and all that follows them."""
    kwargs, flags = [], []
    for text in texts:
        words = shlex.split(text)
        head = next((n for n, word in enumerate(words) if not re.match(r"\w+=", word)), len(words))
        kwargs += words[:head]
        flags += words[head:]
    return kwargs, flags


@dataclass(frozen=True, eq=False)
class Run:
    """What is trained or counted: a row, or one of its variants."""

    name: str
    row: Row
    variant: str = ""

    @property
    def table(self) -> "Table":
        return self.row.table

    @cached_property
    def section(self) -> dict:
        """The settings that the row names, or its table."""
        return self.table.section(self.row)

    @property
    def flags(self) -> str:
        """Those of the row; of one that gives each variant its own, those of this one."""
        return self.row.flags[self.variant] if isinstance(self.row.flags, dict) else self.row.flags

    @property
    def scales(self) -> tuple[str, ...]:
        """Scales at which it can be run."""
        return tuple(self.section.get("scales", KINDS[self.table.kind].scales))

    @property
    def switches(self) -> tuple[str, ...]:
        """What SETTINGS may be."""
        return ("paper", *(name for name in SWITCHES if name in self.section))

    def settings(self, scale: str = "paper", switch: str = "paper") -> Settings:
        """Everything at a scale; of the flags, {ROW} still stands for the folder of another row's run."""
        kind, entry = KINDS[self.table.kind], self.row.entry
        variant = self.table.variants.get(self.variant, {})
        other = self.section.get(switch, {})
        section = self.section | other
        names = ("smaller", scale) if scale != "paper" else ()
        ours, theirs = [section.get(name, {}) for name in names], [entry.get(name, {}) for name in names]
        theirs += [variant.get(name, {}) for name in names]
        keys: dict = {}
        for found in (section, *ours, entry, variant, *theirs):
            keys |= {key: value for key, value in found.items() if key in kind.keys}
        train = [] if kind.budget and scale != "paper" else [str(keys.pop("train", ""))]
        keys.pop("train", None)
        row = {"flags": self.flags}
        texts = [found.get("flags", "") for found in (other, *ours, row, variant, *theirs)]
        return Settings(keys, *split_flags(*train, *texts))


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a paper, or of ours alone."""

    paper: "Paper" = field(repr=False)
    key: str
    entry: dict = field(repr=False)

    @property
    def title(self) -> str:
        return self.entry["title"]

    @property
    def name(self) -> str:
        """The table's name in results.csv."""
        return self.entry["name"]

    @property
    def kind(self) -> str:
        return self.entry.get("kind", "")

    @property
    def source(self) -> str:
        """The table's name among the published numbers."""
        return self.entry.get("source", "")

    @property
    def variants(self) -> dict[str, dict]:
        return self.entry.get("variants", {})

    @property
    def ordered(self) -> bool:
        """Whether the paper's ordering of the rows is a statement."""
        return self.entry.get("order", True)

    @cached_property
    def columns(self) -> list[Column]:
        found = self.entry["columns"].items()
        return [Column(title, **one) if isinstance(one, dict) else Column(title, one) for title, one in found]

    @cached_property
    def rows(self) -> dict[str, Row]:
        return {name: Row(name, self, entry) for name, entry in self.entry["rows"].items()}

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Every run by its name, in the order of the rows."""
        pattern, variants = self.entry.get("run", "{row}"), self.variants or [""]
        both = ((row, variant) for row in self.rows.values() if row.arch for variant in variants if row.has(variant))
        return {name: Run(name, *one) for one in both if (name := pattern.format(row=one[0].name, variant=one[1]))}

    def run(self, name: str) -> Run:
        """One of them.

        Raises:
            TableError: there is none of that name.
        """
        if name not in self.runs:
            raise TableError(f"ROW={name}: must be all, list or one of: {' '.join(self.runs)}")
        return self.runs[name]

    def section(self, row: Row) -> dict:
        """The settings of a row."""
        return self.paper.settings[row.settings or self.entry["settings"]]

    def check(self) -> None:
        """Refuses what the file must not say.

        Raises:
            TableError: names the place and the key.
        """
        where = f"{self.paper.file}: {self.key}"
        known(where, self.entry, TABLE_KEYS, TABLE_REQUIRED)
        for title, column in self.entry["columns"].items():
            if isinstance(column, dict):
                known(f"{where}.columns.{title}", column, {"metric", "variant", "table"}, {"metric"})
                if column.get("table", self.key) not in self.paper.tables:
                    raise TableError(f"{where}.columns.{title}: table {column['table']!r}: no such table")
                if self.variants and column.get("variant", "") not in ("", *self.variants):
                    raise TableError(f"{where}.columns.{title}: variant {column['variant']!r}: not among the variants")
        if any(row.arch for row in self.rows.values()):
            known(where, self.entry, TABLE_KEYS, {"kind", "settings"})
            if self.kind not in KINDS:
                raise TableError(f"{where}: kind {self.kind!r}; must be one of: {', '.join(KINDS)}")
        for name, variant in self.variants.items():
            known(f"{where}.variants.{name}", variant, VARIANT_KEYS | KINDS[self.kind].keys)
        for row in self.rows.values():
            self.check_row(f"{where}.rows.{row.name}", row)

    def check_row(self, where: str, row: Row) -> None:
        """The same of one row."""
        keys = KINDS[self.kind].keys if self.kind else set()
        known(where, row.entry, ROW_KEYS | keys, {"paper"} if row.printed else {"note", "arch"})
        known(f"{where}.paper", row.paper, set(self.entry["columns"]))
        known(f"{where}.released", row.released, {*self.entry["columns"], "source"})
        for scale in ("smaller", *BELOW_PAPER):
            known(f"{where}.{scale}", row.entry.get(scale, {}), {"flags", *keys})
        if isinstance(row.flags, dict):
            known(f"{where}.flags", row.flags, set(self.variants))
        if row.arch:
            name = row.settings or self.entry["settings"]
            if name not in self.paper.settings:
                raise TableError(f"{where}: settings {name!r}; must be one of: {', '.join(self.paper.settings)}")
            self.paper.check_settings(name, KINDS[self.kind])


@dataclass(frozen=True, eq=False)
class Paper:
    """All tables of one folder."""

    folder: Path
    entry: dict = field(repr=False)

    @property
    def file(self) -> str:
        return f"{self.folder.name}/tables.toml"

    @property
    def name(self) -> str:
        return self.entry["paper"]

    @cached_property
    def settings(self) -> dict[str, dict]:
        """The sections by name, each with the keys of the one above that it is `like`."""
        whole: dict[str, dict] = {}
        for name, section in self.entry.get("settings", {}).items():
            like = section.get("like")
            if like is not None and like not in whole:
                raise TableError(f"{self.file}: settings.{name}: like {like!r}: no such section above it")
            whole[name] = whole.get(like, {}) | {key: value for key, value in section.items() if key != "like"}
        return whole

    @property
    def left_out(self) -> list[dict]:
        """Printed cells that no row carries, each with the reason."""
        return self.entry.get("left_out", [])

    @cached_property
    def tables(self) -> dict[str, Table]:
        others = ("paper", "settings", "left_out")
        return {key: Table(self, key, entry) for key, entry in self.entry.items() if key not in others}

    def check_settings(self, name: str, kind: Kind) -> None:
        """Refuses settings that commands/KIND.sh cannot use."""
        where, section = f"{self.file}: settings.{name}", self.settings[name]
        paper = "paper" in section.get("scales", kind.scales)
        required = set(kind.required) if paper or not kind.budget else set()
        known(where, section, kind.keys | {"smaller", *BELOW_PAPER, *SWITCHES}, required - {SOME_BATCH})
        if SOME_BATCH in required and ("batch" in section) == ("tokens" in section):
            raise TableError(f"{where}: must have either 'batch' or 'tokens'")
        for part in ("smaller", *BELOW_PAPER, *SWITCHES):
            known(f"{where}.{part}", section.get(part, {}), kind.keys | {"flags"})


def load(path: Path) -> dict:
    """A TOML file.

    Raises:
        TableError: it is none.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise TableError(f"{path.parent.name}/{path.name}: {error}") from error


def read(folder: Path) -> Paper:
    """The tables of a folder, checked.

    Raises:
        TableError: the file is no TOML, or has a missing or unknown key; names the place.
    """
    paper = Paper(folder, load(folder / "tables.toml"))
    known(paper.file, paper.entry, {"paper", *paper.entry}, {"paper"})
    for entry in paper.left_out:
        known(f"{paper.file}: left_out", entry, left := {"table", "row", "column", "reason"}, left)
    for key, table in paper.tables.items():
        if not isinstance(table.entry, dict):
            raise TableError(f"{paper.file}: unknown key {key!r}")
        table.check()
    return paper


def papers(recipes: Path = RECIPES) -> Iterator[Paper]:
    """Every folder that has tables."""
    for path in sorted(recipes.glob("*/tables.toml")):
        yield read(path.parent)
