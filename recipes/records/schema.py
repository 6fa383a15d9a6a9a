"""The keys of tables.toml: which there are, where they may stand, and which are required."""

from dataclasses import dataclass
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

BELOW_PAPER = ("smoke", "small", "long", "gpu")
SWITCHES = ("release", "code")  # sections with settings of the published code, where they differ from the paper's
OVERRIDES = ("smaller", *BELOW_PAPER)  # sections with settings below scale paper: at all scales, or at one
BATCH = "batch or tokens"  # one of both is required


class TableError(ValueError):
    """A tables.toml, or a request to run one of its rows, is invalid."""


@dataclass(frozen=True)
class Kind:
    """The settings that commands/KIND.sh reads.

    Args:
        scales: those it can run at.
        own_flags: whether it sets the trainer's flags itself below scale paper; `train` is then for scale paper only.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    scales: tuple[str, ...] = ("smoke", "small", "paper")
    own_flags: bool = False

    @property
    def keys(self) -> set[str]:
        """All settings."""
        keys = {*self.required, *self.optional, "scales", "precision", "micro_batch"}
        return keys - {BATCH} | {"batch", "tokens"} if BATCH in keys else keys


KINDS = {
    "translation": Kind(
        required=("data", "languages", "tests", BATCH, "micro_batch", "train", "search", "symbols"),
        optional=("average", "search_of", "tokenize", "scored", "width", "wide", "share", "decode"),
        scales=("smoke", "small", "gpu", "paper"),
        own_flags=True,
    ),
    "transduction": Kind(
        required=("data", "languages", "tests", BATCH, "micro_batch", "updates", "save", "log", "train", "average")
        + ("search", "symbols"),
        optional=(),
    ),
    "images": Kind(
        required=("data", "batch", "train"),
        optional=("classes", "divisor", "repeats"),
        scales=("smoke", "small", "gpu", "paper"),
        own_flags=True,
    ),
    "language": Kind(
        required=("data", "bin", "text", BATCH, "micro_batch", "updates", "train", "symbols"),
        optional=("data_settings", "lengths", "evaluate", "checkpoint", "tested", "pieces", "save", "log", "flops"),
    ),
    "sequence": Kind(
        required=("task", BATCH, "micro_batch", "updates", "log", "train", "symbols"),
        optional=("data", "data_settings", "bin", "text", "positions", "classes", "save", "subset", "checkpoint"),
    ),
    "speech": Kind(
        required=("data", "bin", "tokens", "micro_batch", "updates", "train", "trained", "valid", "tests", "search")
        + ("symbols",),
        optional=("data_settings", "save", "log", "keep", "short"),
    ),
    "count": Kind(  # at scale smoke the same as at scale paper
        required=("count",),
        optional=("throughput", "classes", "symbols", "text", "batch", "updates", "positions")
        + ("beside", "tokens", "rounds"),
        scales=("smoke", "paper"),
    ),
}
TABLE_REQUIRED = {"title", "name", "columns", "rows"}
TABLE_KEYS = TABLE_REQUIRED | {"source", "kind", "settings", "variants", "run", "note", "too_short"}
ROW_KEYS = {"label", "arch", "flags", "paper", "note", "settings", "released", "count_differs", "too_short", *OVERRIDES}
COLUMN_KEYS = {"metric", "variant", "table"}
LEFT_OUT_KEYS = {"table", "row", "column", "reason"}


def load_toml(path: Path) -> dict:
    """A TOML file.

    Raises:
        TableError: it cannot be read or parsed.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise TableError(f"{path.parent.name}/{path.name}: {error}") from error


def check_keys(where: str, entry: dict, allowed: set[str], required: set[str] = frozenset()) -> None:
    """Rejects unknown and missing keys.

    Raises:
        TableError: names the place and the key.
    """
    for key in entry:
        if key not in allowed:
            raise TableError(f"{where}: unknown key {key!r}; must be one of: {', '.join(sorted(allowed))}")
    for key in sorted(required):
        if key not in entry:
            raise TableError(f"{where}: missing key {key!r}")


def check_settings(where: str, section: dict, kind: Kind) -> None:
    """Rejects a section of settings that commands/KIND.sh cannot use.

    Raises:
        TableError: names the place and the key.
    """
    at_paper = "paper" in section.get("scales", kind.scales)
    required = set(kind.required) if at_paper or not kind.own_flags else set()
    check_keys(where, section, kind.keys | {*OVERRIDES, *SWITCHES}, required - {BATCH})
    if BATCH in required and ("batch" in section) == ("tokens" in section):
        raise TableError(f"{where}: must have either 'batch' or 'tokens'")
    for part in (*OVERRIDES, *SWITCHES):
        check_keys(f"{where}.{part}", section.get(part, {}), kind.keys | {"flags"})
