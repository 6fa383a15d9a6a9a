"""The papers' tables as data: reads PAPER/tables.toml.

A file has the paper's name, settings that its rows share, and its tables: columns, rows and every published cell, as
printed. A row with an architecture can be run (or counted), a row without one is only shown; a row without a label is
not in the paper. recipes/README.md describes the keys; kinds those of a row's settings.
"""

import difflib
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from kinds import KINDS
from kinds.base import PARTS, SWITCHES, Kind
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from recurrence.files import read_text

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

RECIPES = Path(__file__).resolve().parents[1]
# Metrics that need no run: they are counted from the registered model.
COUNTED = ("params", "params_core", "params_embedding", "params_head")
PLAIN = {"extra_forbidden": "unknown key", "missing": "missing key"}  # pydantic's errors in our words
PRINTED = ("label", "note", "paper", "released", "count_differs")  # what `like` does not take from another row


class TableError(ValueError):
    """A tables.toml, or a request to run one of its rows, is invalid."""


def inherit(entries: dict, own: Collection[str] = ()) -> dict:
    """Entries by name. One has all keys of the earlier entry that its `like` names, except those of `own`.

    Raises:
        ValueError: `like` names no earlier entry.
    """
    found: dict = {}
    for name, entry in entries.items():
        like = entry.get("like") if isinstance(entry, dict) else None
        if like is None:
            found[name] = entry
        elif isinstance(found.get(like), dict):
            taken = {key: value for key, value in found[like].items() if key not in own}
            found[name] = taken | {key: value for key, value in entry.items() if key != "like"}
        else:
            raise ValueError(f"{name}: like {like!r}: no such entry above it")
    return found


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Column(Strict):
    """A column of the paper's table.

    Attributes:
        metric: ours to show beside it; empty: none.
        variant: which of a row's runs it shows.
        table: the key of another table, whose row of the same name it shows, for example one that counts operations.
    """

    metric: str
    variant: str = ""
    table: str = ""


class Row(BaseModel):
    """A row of a table. Every other key is a setting of its kind, or a part with settings for some scales."""

    model_config = ConfigDict(extra="allow", strict=True)
    label: str | None = None
    arch: str = ""
    flags: str | dict[str, str] = ""
    settings: str = ""
    paper: dict[str, str] = {}
    released: dict[str, str] = {}
    note: str = ""
    count_differs: str = ""
    too_short: list[str] = []

    @property
    def printed(self) -> bool:
        """Whether the paper has the row."""
        return self.label is not None

    @model_validator(mode="after")
    def complete(self) -> "Row":
        for name in ("paper",) if self.printed else ("note", "arch"):
            if name not in self.model_fields_set:
                raise ValueError(f"missing key {name!r}")
        if self.model_extra and not self.arch:
            raise ValueError(f"unknown key {next(iter(self.model_extra))!r}")
        return self


class LeftOut(Strict):
    """Printed cells that no row shows, with the reason."""

    table: str
    row: str
    column: str
    reason: str


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


@cache
def split_flags(text: str) -> tuple[list[str], list[str]]:
    """The leading key=value words of a text, and the words after them."""
    words = shlex.split(text)
    split = next((index for index, word in enumerate(words) if not re.match(r"\w+=", word)), len(words))
    return words[:split], words[split:]


@dataclass(frozen=True, eq=False)
class Run:
    """What is trained or counted: a row, or one of its variants."""

    name: str
    table: "Table"
    row: Row
    variant: str = ""

    @property
    def kind(self) -> type[Kind]:
        return KINDS[self.table.kind]

    @property
    def section(self) -> dict:
        """The section of settings that the row names, or else its table."""
        return self.table.sections[self.row.settings or self.table.settings]

    @property
    def flags(self) -> str:
        """The row's flags, or those it has for this variant."""
        return self.row.flags[self.variant] if isinstance(self.row.flags, dict) else self.row.flags

    @property
    def scales(self) -> tuple[str, ...]:
        """Scales at which it can run."""
        return tuple(self.section.get("scales", self.kind.default_scales))

    @property
    def switches(self) -> tuple[str, ...]:
        """Possible values of SETTINGS."""
        return ("paper", *(name for name in SWITCHES if name in self.section))

    @property
    def too_short(self) -> list[str]:
        """Scales whose runs are too short to show the row's effect; results.csv has them, no table shows them."""
        return self.table.too_short + self.row.too_short

    def settings(self, scale: str = "paper", switch: str = "paper") -> Settings:
        """The settings at a scale. {ROW} in a flag still stands for the folder of another row's run.

        Later sources override earlier ones: the section, its parts for the scale, the row, its variant, and their parts
        for the scale.
        """
        row, variant = self.row.model_extra, self.table.variants.get(self.variant, {})
        switched = self.section.get(switch, {})
        parts = ("smaller", scale) if scale != "paper" else ()
        section_parts = [self.section.get(part, {}) for part in parts]
        row_parts = [entry.get(part, {}) for entry in (row, variant) for part in parts]
        sources = [self.section, switched, *section_parts, row | {"flags": self.flags}, variant, *row_parts]

        keys = {key: value for source in sources for key, value in source.items() if key not in (*PARTS, "flags")}
        texts = [] if self.kind.at_paper and scale != "paper" else [keys.get("train", "")]
        texts += [source.get("flags", "") for source in sources]
        kwargs, flags = zip(*map(split_flags, texts))
        return Settings(keys, sum(kwargs, []), sum(flags, []))

    def check(self) -> None:
        """Checks the settings at every scale.

        Raises:
            ValidationError: a setting is unknown, missing, or of another type.
        """
        for scale in self.scales:
            for switch in self.switches if scale == "paper" else ("paper",):
                self.kind.model_validate(self.settings(scale, switch).keys, context={"scale": scale})


class Table(Strict):
    """A table of a paper, or one of ours.

    Attributes:
        key, folder, sections: its name and place, and the settings of its file.
        name: in results.csv.
        source: the table's name among the published numbers.
        run: how a run is called, from the names of its row and variant.
    """

    model_config = ConfigDict(ignored_types=(cached_property,))
    key: str
    folder: Path
    sections: dict[str, dict]
    title: str
    name: str
    columns: dict[str, Column]
    rows: dict[str, Row]
    source: str = ""
    kind: str = ""
    settings: str = ""
    variants: dict[str, dict] = {}
    run: str = "{row}"
    note: str = ""
    too_short: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def written_out(cls, entry: dict) -> dict:
        """A column that is a text has that metric, and a row what it takes from another."""
        full = dict(entry)
        if "columns" in entry:
            columns = entry["columns"].items()
            full["columns"] = {title: {"metric": one} if isinstance(one, str) else one for title, one in columns}
        if isinstance(entry.get("rows"), dict):
            full["rows"] = inherit(entry["rows"], own=PRINTED)
        return full

    @model_validator(mode="after")
    def complete(self) -> "Table":
        if any(row.arch for row in self.rows.values()) and self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r}: must be one of {', '.join(KINDS)}")
        for column in self.columns.values():
            if column.variant not in ("", *self.variants):
                raise ValueError(f"variant {column.variant!r}: must be one of {', '.join(self.variants)}")
        for name, row in self.rows.items():
            given = [*row.paper, *row.released.keys() - {"source"}]
            for title in given:
                if title not in self.columns:
                    raise ValueError(f"rows.{name}: unknown column {title!r}")
            section = row.settings or self.settings
            if row.arch and section not in self.sections:
                raise ValueError(f"rows.{name}: settings {section!r}: must be one of {', '.join(self.sections)}")
            if isinstance(row.flags, dict) and not row.flags.keys() <= self.variants.keys():
                raise ValueError(f"rows.{name}: flags: must be by variant, {', '.join(self.variants)}")
        return self

    @property
    def script(self) -> str:
        """The script that runs its rows."""
        return f"recipes/{self.folder.name}/{self.key}.sh"

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Every run by name, in the order of the rows."""
        found = {}
        for name, row in self.rows.items():
            for variant in self.variants or [""]:
                if row.arch and (not isinstance(row.flags, dict) or variant in row.flags):
                    run = Run(self.run.format(row=name, variant=variant), self, row, variant)
                    found[run.name] = run
        return found

    def find(self, name: str) -> Run:
        """The run of this name.

        An architecture's name stands for its only row, for its only one without flags, or for the one named after it.

        Raises:
            TableError: there is none.
        """
        if name in self.runs:
            return self.runs[name]
        of_arch = [run for run in self.runs.values() if run.row.arch == name]
        plain = [run for run in of_arch if not run.flags]
        for found in (of_arch, plain, [run for run in plain if name.endswith(f"_{run.name}")]):
            if len(found) == 1:
                return found[0]
        if of_arch:
            raise TableError(f"ROW={name}: several rows have it: {', '.join(run.name for run in of_arch)}")
        names = [*self.runs, *(run.row.arch for run in self.runs.values())]
        near = dict.fromkeys(difflib.get_close_matches(name, names, cutoff=0.5))
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise TableError(f"ROW={name}: no such row{meant} (`{self.script} list` shows all)")


class Paper(Strict):
    """All tables of one folder."""

    folder: Path
    paper: str
    tables: dict[str, Table]
    left_out: list[LeftOut] = []


def plain(file: str, error: ValidationError, place: str = "") -> TableError:
    """The first of pydantic's errors in one line, with the place."""
    first = error.errors()[0]
    where = ".".join(filter(None, [place, *map(str, first["loc"])])).removeprefix("tables.")
    message = PLAIN.get(first["type"], first["msg"].removeprefix("Value error, "))
    return TableError(f"{file}: {where}: {message}" if where else f"{file}: {message}")


def read(folder: Path) -> Paper:
    """The tables of a folder, checked.

    Raises:
        TableError: tables.toml cannot be parsed, or a key is missing or unknown; names the place.
    """
    file = f"{folder.name}/tables.toml"
    try:
        entry = tomllib.loads(read_text(folder / "tables.toml"))
    except (OSError, ValueError) as error:  # of TOML, too
        raise TableError(f"{file}: {error}") from error
    common = {key: entry.pop(key) for key in ("paper", "left_out") if key in entry}
    try:
        shared = inherit(entry.pop("settings", {}))
    except ValueError as error:
        raise TableError(f"{file}: settings.{error}") from error
    place = {"folder": folder, "sections": shared}
    tables = {key: one | {"key": key, **place} if isinstance(one, dict) else one for key, one in entry.items()}
    where = ""
    try:
        paper = Paper.model_validate(common | {"folder": folder, "tables": tables})
        for table in paper.tables.values():
            for run in table.runs.values():
                where = f"{table.key}.rows.{run.name}"
                run.check()
    except ValidationError as error:
        raise plain(file, error, where) from error
    for table in paper.tables.values():
        for column in table.columns.values():
            if column.table not in ("", *paper.tables):
                raise TableError(f"{file}: {table.key}: table {column.table!r}: no such table")
    return paper


def papers() -> Iterator[Paper]:
    """Every folder that has tables."""
    for path in sorted(RECIPES.glob("*/tables.toml")):
        yield read(path.parent)
