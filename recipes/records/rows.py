"""The papers' tables as data: reads PAPER/tables.toml.

A file has the paper's name, settings that its rows share, and its tables: columns, rows and every published cell, as
printed. A row with an architecture can be run (or counted), a row without one is only shown; a row without a label is
not in the paper. recipes/README.md describes the keys, schema.py lists them.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import schema
from schema import KINDS, OVERRIDES, SWITCHES, TableError, check_keys, check_settings, load_toml

RECIPES = Path(__file__).resolve().parents[1]
COUNTED = ("params", "params_core")  # metrics that need no run: they are counted from the registered model


@dataclass(frozen=True)
class Column:
    """A column of the paper's table.

    Args:
        title: as printed.
        metric: ours to show beside it; empty: none.
        variant: which of a row's runs it shows.
        table: the key of another table, whose row of the same name it shows, for example one that counts operations.
    """

    title: str
    metric: str
    variant: str = ""
    table: str = ""


@dataclass(frozen=True, eq=False)
class Row:
    """A row of a table. The keys of its entry in the file are attributes."""

    name: str
    table: "Table" = field(repr=False)
    entry: dict = field(repr=False)

    def __getattr__(self, name: str):
        if name not in schema.ROW_KEYS:
            raise AttributeError(name)
        return self.entry.get(name, {} if name in ("paper", "released") else "")

    @property
    def printed(self) -> bool:
        """Whether the paper has the row."""
        return "label" in self.entry

    def has(self, variant: str) -> bool:
        """Whether the row has a run of this variant. If its flags are given by variant, it only has those."""
        return not isinstance(self.flags, dict) or variant in self.flags


@dataclass(frozen=True)
class Settings:
    """A run's settings at one scale.

    Args:
        keys: by their names in tables.toml.
        kwargs: key=value arguments of a timm constructor.
        flags: of the trainer.
    """

    keys: dict
    kwargs: list[str]
    flags: list[str]


def split_flags(text: str) -> tuple[list[str], list[str]]:
    """The leading key=value words of a text, and the words after them."""
    words = shlex.split(text)
    split = next((index for index, word in enumerate(words) if not re.match(r"\w+=", word)), len(words))
    return words[:split], words[split:]


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
        """The section of settings that the row names, or else its table."""
        return self.table.paper.settings[self.row.settings or self.table.entry["settings"]]

    @property
    def flags(self) -> str:
        """The row's flags, or those it has for this variant."""
        return self.row.flags[self.variant] if isinstance(self.row.flags, dict) else self.row.flags

    @property
    def scales(self) -> tuple[str, ...]:
        """Scales at which it can run."""
        return tuple(self.section.get("scales", KINDS[self.table.kind].scales))

    @property
    def too_short(self) -> tuple[str, ...]:
        """Scales whose runs are too short to show the row's effect; results.csv has them, no table shows them."""
        return (*self.table.entry.get("too_short", ()), *(self.row.too_short or ()))

    @property
    def switches(self) -> tuple[str, ...]:
        """Possible values of SETTINGS."""
        return ("paper", *(name for name in SWITCHES if name in self.section))

    def settings(self, scale: str = "paper", switch: str = "paper") -> Settings:
        """The settings at a scale. {ROW} in a flag still stands for the folder of another row's run.

        Later sources override earlier ones: the section, its parts for the scale, the row, its variant, and their parts
        for the scale.
        """
        kind, row = KINDS[self.table.kind], self.row.entry
        variant = self.table.variants.get(self.variant, {})
        switched = self.section.get(switch, {})
        parts = ("smaller", scale) if scale != "paper" else ()
        section_parts = [self.section.get(part, {}) for part in parts]
        row_parts = [entry.get(part, {}) for entry in (row, variant) for part in parts]
        sources = [self.section, switched, *section_parts, row | {"flags": self.flags}, variant, *row_parts]

        keys = {key: value for source in sources for key, value in source.items() if key in kind.keys}
        train = keys.pop("train", "")
        texts = [] if kind.own_flags and scale != "paper" else [train]
        texts += [source.get("flags", "") for source in sources]
        kwargs, flags = zip(*map(split_flags, texts))
        return Settings(keys, sum(kwargs, []), sum(flags, []))


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a paper, or one of ours."""

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

    @cached_property
    def columns(self) -> list[Column]:
        found = self.entry["columns"].items()
        return [Column(title, **one) if isinstance(one, dict) else Column(title, one) for title, one in found]

    @cached_property
    def rows(self) -> dict[str, Row]:
        return {name: Row(name, self, entry) for name, entry in self.entry["rows"].items()}

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Every run by name, in the order of the rows."""
        pattern = self.entry.get("run", "{row}")
        found = {}
        for row in self.rows.values():
            for variant in self.variants or [""]:
                name = pattern.format(row=row.name, variant=variant)
                if row.arch and row.has(variant):
                    found[name] = Run(name, row, variant)
        return found

    def run(self, name: str) -> Run:
        """The run of this name.

        Raises:
            TableError: there is none.
        """
        if name not in self.runs:
            raise TableError(f"ROW={name}: must be all, list or one of: {' '.join(self.runs)}")
        return self.runs[name]

    def check(self) -> None:
        """Checks the table's entry.

        Raises:
            TableError: names the place and the key.
        """
        where = f"{self.paper.file}: {self.key}"
        check_keys(where, self.entry, schema.TABLE_KEYS, schema.TABLE_REQUIRED)
        for title, column in self.entry["columns"].items():
            if isinstance(column, dict):
                self.check_column(f"{where}.columns.{title}", column)
        if any(row.arch for row in self.rows.values()):
            check_keys(where, self.entry, schema.TABLE_KEYS, {"kind", "settings"})
            if self.kind not in KINDS:
                raise TableError(f"{where}: kind {self.kind!r}; must be one of: {', '.join(KINDS)}")
        for name, variant in self.variants.items():
            check_keys(f"{where}.variants.{name}", variant, {"flags", *OVERRIDES} | KINDS[self.kind].keys)
        for row in self.rows.values():
            self.check_row(f"{where}.rows.{row.name}", row)

    def check_column(self, where: str, column: dict) -> None:
        check_keys(where, column, schema.COLUMN_KEYS, {"metric"})
        if column.get("table", self.key) not in self.paper.tables:
            raise TableError(f"{where}: table {column['table']!r}: no such table")
        if self.variants and column.get("variant", "") not in ("", *self.variants):
            raise TableError(f"{where}: variant {column['variant']!r}: not among the variants")

    def check_row(self, where: str, row: Row) -> None:
        keys = KINDS[self.kind].keys if self.kind else set()
        check_keys(where, row.entry, schema.ROW_KEYS | keys, {"paper"} if row.printed else {"note", "arch"})
        check_keys(f"{where}.paper", row.paper, set(self.entry["columns"]))
        check_keys(f"{where}.released", row.released, {*self.entry["columns"], "source"})
        for part in OVERRIDES:
            check_keys(f"{where}.{part}", row.entry.get(part, {}), {"flags", *keys})
        if isinstance(row.flags, dict):
            check_keys(f"{where}.flags", row.flags, set(self.variants))
        if row.arch:
            name, sections = row.settings or self.entry["settings"], self.paper.settings
            if name not in sections:
                raise TableError(f"{where}: settings {name!r}; must be one of: {', '.join(sections)}")
            check_settings(f"{self.paper.file}: settings.{name}", sections[name], KINDS[self.kind])


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
        """The sections of settings by name. A section has all keys of the earlier one that its `like` names.

        Raises:
            TableError: `like` names no earlier section.
        """
        found: dict[str, dict] = {}
        for name, section in self.entry.get("settings", {}).items():
            like = section.get("like")
            if like is not None and like not in found:
                raise TableError(f"{self.file}: settings.{name}: like {like!r}: no such section above it")
            found[name] = found.get(like, {}) | {key: value for key, value in section.items() if key != "like"}
        return found

    @property
    def left_out(self) -> list[dict]:
        """Printed cells that no row shows, each with the reason."""
        return self.entry.get("left_out", [])

    @cached_property
    def tables(self) -> dict[str, Table]:
        others = ("paper", "settings", "left_out")
        return {key: Table(self, key, entry) for key, entry in self.entry.items() if key not in others}


def read(folder: Path) -> Paper:
    """The tables of a folder, checked.

    Raises:
        TableError: tables.toml cannot be parsed, or a key is missing or unknown; names the place.
    """
    paper = Paper(folder, load_toml(folder / "tables.toml"))
    check_keys(paper.file, paper.entry, set(paper.entry), {"paper"})
    for entry in paper.left_out:
        check_keys(f"{paper.file}: left_out", entry, schema.LEFT_OUT_KEYS, schema.LEFT_OUT_KEYS)
    for key, table in paper.tables.items():
        if not isinstance(table.entry, dict):
            raise TableError(f"{paper.file}: unknown key {key!r}")
        table.check()
    return paper


def papers() -> Iterator[Paper]:
    """Every folder that has tables."""
    for path in sorted(RECIPES.glob("*/tables.toml")):
        yield read(path.parent)
