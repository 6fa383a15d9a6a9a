"""What a recipe is asked to run: settings and flags, checked before anything starts. run.py lists them."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from kinds.base import SCALES, SWITCHES
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from rows import RECIPES, Run, TableError

from recurrence.comparison.runs import cores

Seed = Annotated[int, Field(ge=0, le=32767)]
# Variables that the user may set for a recipe; the last two are for the preparation of data.
KNOWN = ("SCALE", "SEED", "SEEDS", "SETTINGS", "OUT", "RESULTS", "DRY_RUN", "PRECISION", "DATA_ROOT", "THREADS")
KNOWN += ("MICRO_BATCH", "GPUS", "PREPARED", "VERIFY")
OWN = {"--scale": "SCALE", "--seed": "SEEDS"}
# The trainer's flags that a row sets, and later stages and results.csv rely on.
FIXED = {"--arch": "ROW", "-a": "ROW", "--model": "ROW", "--save-dir": "OUT", "--output": "OUT"}


class Request(BaseModel):
    """The settings of one call of a recipe.

    Attributes:
        settings: whose settings of scale paper to use.
        results: the results.csv to append to; empty: the default one.
        micro_batch: what one process takes at once, in the unit of the table's batch; None: the table's own.
        flags: passed on to the trainer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    scale: Literal[SCALES] = "smoke"
    seeds: Annotated[list[Seed], Field(min_length=1)] = [1]
    settings: Literal[("paper", *SWITCHES)] = "paper"
    out: Path = RECIPES.parent / "out"
    results: str = ""
    dry_run: Literal["0", "1"] = "0"
    precision: Literal["", "bf16", "fp16", "fp32"] = ""
    threads: PositiveInt
    micro_batch: PositiveInt | None = None
    gpus: PositiveInt = 1
    data_root: str = ""
    flags: list[str] = []

    @property
    def cifar10(self) -> str:
        """Which small images to use: scikit-learn's digits, or a form of CIFAR-10, see cifar10/prepare.sh."""

        def has(name: str) -> bool:
            return bool(self.data_root) and Path(self.data_root, name).is_file()

        if self.scale == "smoke":
            return "5000" if has("cifar10.tar") else "digits"
        if not self.data_root:
            return "full"
        return "jpeg" if self.scale == "paper" or has("cifar10_full.tgz") else "5000"

    @property
    def processes(self) -> int:
        """How many processes train a row: GPUS, unless fairseq's flag says otherwise."""
        given = re.findall(r"--distributed-world-size[ =](\d+)", " ".join(self.flags))
        return int(given[-1]) if given else self.gpus

    def recorded_scale(self, run: Run) -> str:
        """The scale under which a run is recorded, with whatever makes it another experiment."""
        parts = [self.scale]
        if self.settings != "paper":
            parts.append(self.settings)
        on_cifar10 = run.table.kind == "images" or run.settings(self.scale).keys.get("data") == "cifar10/prepare"
        if on_cifar10 and self.scale not in ("smoke", "paper"):
            # jpeg, of which the recorded results are, has no part; 5000 is a number of images.
            parts += {"5000": ["5000"], "full": ["full"]}.get(self.cifar10, [])
        if self.scale != "smoke":
            parts += re.findall(r"--(?:max-update|epochs)[ =](\d+)", " ".join(self.flags))
        return "-".join(parts)


def own_flags(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The recipe's own flags, --scale NAME and --seed NUMBER, as settings, and the trainer's.

    `--scale` with a number is the trainer's, of image models.

    Raises:
        TableError: a value is missing, or the flag is one that the recipe sets.
    """
    found, rest = {}, []
    left = iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        taken = [word]
        if flag in OWN and not equals:
            value = next(left, "")
            taken.append(value)
        if flag in FIXED:
            raise TableError(f"{flag}: set by the recipe; choose {FIXED[flag]} instead")
        if flag in OWN and not value:
            raise TableError(f"{flag}: needs a value")
        if flag in OWN and not (flag == "--scale" and re.match(r"[\d.]", value)):
            found[OWN[flag]] = value
        else:
            rest += taken
    return found, rest


def reject_misspelt(environment: Mapping[str, str]) -> None:
    """Rejects a variable that is nearly one of a recipe's, such as SCALES.

    Raises:
        TableError: names it, its value, and the right one.
    """
    for name, value in environment.items():
        near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.85)
        if near and name not in KNOWN:
            raise TableError(f"{name}={value}: unknown setting; did you mean {near[0]}?")


def read_request(environment: Mapping[str, str], words: list[str]) -> Request:
    """Reads the environment, and the flags behind a row.

    Raises:
        TableError: names the setting, its value and the rule.
    """
    reject_misspelt(environment)
    own, flags = own_flags(words)
    given = {name: value for name, value in {**environment, **own}.items() if name in KNOWN and value}
    named = "SEEDS" if "SEEDS" in given else "SEED"
    values = {name.lower(): value for name, value in given.items() if name.lower() in Request.model_fields}
    if named in given:
        values["seeds"] = given[named].split()
    outer, *_nested = environment.get("OMP_NUM_THREADS", "").split(",")
    values["threads"] = given.get("THREADS") or outer or cores()
    try:
        request = Request(flags=flags, **values)
    except ValidationError as error:
        first = error.errors()[0]
        name = {"seeds": named}.get(first["loc"][0], first["loc"][0].upper())
        value = given.get(name, first["input"])
        raise TableError(f"{name}={value}: {first['msg'][0].lower()}{first['msg'][1:]}") from error
    if request.scale != "paper":
        for name, value, default in (("GPUS", request.gpus, 1), ("SETTINGS", request.settings, "paper")):
            if value != default:
                raise TableError(f"{name}={value}: must be {default} at scale {request.scale}")
    return request.model_copy(update={"out": request.out.absolute()})


def check(request: Request, run: Run) -> None:
    """Rejects settings that a row does not have.

    Raises:
        TableError: names the setting and the values it may have.
    """
    for name, value, allowed in (("SCALE", request.scale, run.scales), ("SETTINGS", request.settings, run.switches)):
        if value not in allowed:
            raise TableError(f"{name}={value}: must be one of {', '.join(allowed)} for {run.table.name}, {run.name}")
    keys = run.settings(request.scale, request.settings).keys
    precise = run.table.kind != "count" and (run.table.kind != "images" or request.scale == "paper")
    split = accumulation(request, run, keys)
    for name, value, used in (("PRECISION", request.precision, precise), ("MICRO_BATCH", request.micro_batch, split)):
        if value and not used:
            raise TableError(f"{name}={value}: has no effect on {run.table.name} at scale {request.scale}")
    if keys.get("eight_bits") and request.flags:
        raise TableError(f"{' '.join(request.flags)}: {run.name} scores another row's checkpoint and takes no flags")
    repeats = keys.get("repeats") if request.scale == "paper" else None
    if repeats and request.gpus == 1 and not any(flag.startswith("--aug-repeats") for flag in request.flags):
        raise TableError(
            f"GPUS=1: repeated augmentation ({repeats} copies of an image in a batch) is spread over processes; "
            "set GPUS to 2 or more, or train without it: --aug-repeats 0"
        )


def accumulation(request: Request, run: Run, keys: dict) -> dict[str, int]:
    """How the table's batch is split: `micro_batch` for one process at once, `accumulate` times for an update.

    Empty where the kind has a batch of its own for the scale.

    Raises:
        TableError: processes times MICRO_BATCH does not divide the batch, or MICRO_BATCH holds no text.
    """
    unit = next((name for name in ("batch", "tokens") if name in keys), "")
    own_batch = run.kind.at_paper and request.scale != "paper"
    if not unit or run.table.kind == "count" or own_batch:
        return {}
    batch = keys[unit]
    micro = min(request.micro_batch or keys.get("micro_batch", 128), batch // request.gpus)
    given = f"GPUS={request.gpus}, MICRO_BATCH={micro or request.micro_batch or 1}"
    if not micro or batch % (request.gpus * micro):
        raise TableError(f"{given}: their product must divide the {unit} of an update, {batch}")
    if unit == "tokens" and micro < keys.get("text", 0):  # fairseq would skip the text
        raise TableError(f"{given}: a process takes {micro} tokens at once, but a text has {keys['text']}")
    return {"micro_batch": micro, "accumulate": batch // (request.gpus * micro)}
