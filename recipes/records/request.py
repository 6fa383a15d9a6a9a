"""What a recipe is asked to run: the settings of the environment, checked before anything starts. run.py lists them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rows import RECIPES, Run
from schema import BELOW_PAPER, KINDS, SWITCHES, TableError

PRECISIONS = ("bf16", "fp16", "fp32")
# Below scale paper, translation models are trained on Multi30k.
LANGUAGES, PAIR = ("cs", "de", "en", "fr"), ("de", "en")
TESTS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")


@dataclass(frozen=True)
class Request:
    """The settings of one call of a recipe.

    Args:
        switch: whose settings of scale paper to use: "paper", or one of SWITCHES.
        results: the results.csv to append to; empty: the default one.
        micro_batch: what one process takes at once, in the unit of the table's batch; None: the table's own.
        master: address and port of node 0.
        pair, tests: source and target language, and the test sets, of Multi30k.
        flags: passed on to the trainer.
    """

    scale: str
    seeds: list[int]
    switch: str
    out: Path
    results: str
    dry_run: bool
    precision: str
    threads: int
    micro_batch: int | None
    gpus: int
    nodes: int
    node_rank: int
    master: tuple[str, int]
    data_root: str
    pair: tuple[str, ...]
    tests: tuple[str, ...]
    flags: list[str]

    @property
    def processes(self) -> int:
        return self.gpus * self.nodes

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

    def recorded_scale(self, run: Run) -> str:
        """The scale under which a run is recorded, with whatever makes it another experiment."""
        parts = [self.scale]
        if self.switch != "paper":
            parts.append(self.switch)
        on_cifar10 = run.table.kind == "images" or run.settings(self.scale).keys.get("data") == "cifar10/prepare"
        if on_cifar10 and self.cifar10 == "5000" and self.scale not in ("smoke", "paper"):
            parts.append("5000")  # images
        if self.pair != PAIR:
            parts += self.pair
        return "-".join(parts)


def integer(
    environment: Mapping[str, str], name: str, default: int | None, minimum: int = 1, maximum: int | None = None
) -> int | None:
    """A whole number of the environment.

    Raises:
        TableError: it is not a number, or out of range.
    """
    text = environment.get(name, "")
    if not text:
        return default
    number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1
    if number < minimum or (maximum is not None and number > maximum):
        limit = f" of at least {minimum}" if maximum is None else f" from {minimum} to {maximum}"
        raise TableError(f"{name}={text}: must be a whole number{limit}")
    return number


def choice(environment: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    """One of the allowed words.

    Raises:
        TableError: it is another word.
    """
    word = environment.get(name) or default
    if word not in allowed:
        raise TableError(f"{name}={word}: must be {', '.join(allowed[:-1])} or {allowed[-1]}")
    return word


def language_pair(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Source and target language.

    Raises:
        TableError: they are not two different languages of Multi30k.
    """
    pair = tuple((environment.get("PAIR") or " ".join(PAIR)).split())
    if len(pair) != 2 or len({*pair} & {*LANGUAGES}) != 2:
        raise TableError(f"PAIR={' '.join(pair)}: must be two of {', '.join(LANGUAGES)}")
    return pair


def read_request(environment: Mapping[str, str], flags: list[str]) -> Request:
    """Reads the environment.

    Raises:
        TableError: names the setting, its value and the rule.
    """
    seeds = (environment.get("SEEDS") or environment.get("SEED") or "1").split()
    tests = (environment.get("TESTS") or TESTS[0]).split()
    nodes = integer(environment, "NODES", 1)
    port = integer(environment, "MASTER_PORT", 29500, maximum=65535)
    threads = integer(environment, "THREADS", None) or integer(environment, "OMP_NUM_THREADS", None)
    request = Request(
        scale=choice(environment, "SCALE", (*BELOW_PAPER, "paper"), "smoke"),
        seeds=[integer({"SEED": seed}, "SEED", None, minimum=0, maximum=32767) for seed in seeds],
        switch=choice(environment, "SETTINGS", ("paper", *SWITCHES), "paper"),
        out=Path(environment.get("OUT") or RECIPES.parent / "out").absolute(),
        results=environment.get("RESULTS", ""),
        dry_run=choice(environment, "DRY_RUN", ("0", "1"), "0") == "1",
        precision=choice(environment, "PRECISION", ("", *PRECISIONS), ""),
        threads=threads or len(os.sched_getaffinity(0)),
        micro_batch=integer(environment, "MICRO_BATCH", None),
        gpus=integer(environment, "GPUS", 1),
        nodes=nodes,
        node_rank=integer(environment, "NODE_RANK", 0, minimum=0, maximum=nodes - 1),
        master=(environment.get("MASTER_ADDR") or "localhost", port),
        data_root=environment.get("DATA_ROOT", ""),
        pair=language_pair(environment),
        tests=tuple(choice({"TESTS": test}, "TESTS", TESTS, TESTS[0]) for test in tests),
        flags=flags,
    )
    for name, found in (("SEEDS" if environment.get("SEEDS") else "SEED", request.seeds), ("TESTS", request.tests)):
        if not found:
            raise TableError(f"{name}={environment[name]}: must name at least one")
    if request.scale != "paper" and request.processes > 1:
        raise TableError(f"GPUS={request.gpus}, NODES={request.nodes}: must be 1 at scale {request.scale}")
    if request.scale != "paper" and request.switch != "paper":
        raise TableError(f"SETTINGS={request.switch}: differs from the paper's only at scale paper")
    return request


def check(request: Request, run: Run) -> None:
    """Rejects settings that a row does not have.

    Raises:
        TableError: names the setting and the values it may have.
    """
    for name, value, allowed in (("SCALE", request.scale, run.scales), ("SETTINGS", request.switch, run.switches)):
        if value not in allowed:
            raise TableError(f"{name}={value}: must be one of {', '.join(allowed)} for {run.table.name}, {run.name}")
    if request.precision and run.table.kind == "images" and request.scale != "paper":
        raise TableError(f"PRECISION={request.precision}: only at scale paper for {run.table.name}")
    on_multi30k = run.table.kind == "translation" and request.scale != "paper"
    if (request.pair, request.tests) != (PAIR, TESTS[:1]) and not on_multi30k:
        given = f"PAIR={' '.join(request.pair)}, TESTS={' '.join(request.tests)}"
        raise TableError(f"{given}: only for translation on Multi30k, below scale paper")
    accumulation(request, run, run.settings(request.scale, request.switch).keys)


def accumulation(request: Request, run: Run, keys: dict) -> dict[str, int]:
    """How the table's batch is split: MICRO_BATCH for one process at once, ACCUMULATE times for an update.

    Empty where commands/KIND.sh has a batch of its own for the scale.

    Raises:
        TableError: processes times MICRO_BATCH does not divide the batch.
    """
    unit = next((name for name in ("batch", "tokens") if name in keys), "")
    own_batch = KINDS[run.table.kind].own_flags and request.scale != "paper"
    if not unit or run.table.kind == "count" or own_batch:
        return {}
    batch = keys[unit]
    micro = min(request.micro_batch or keys.get("micro_batch", 128), batch // request.processes)
    if not micro or batch % (request.processes * micro):
        given = f"GPUS={request.gpus}, NODES={request.nodes}, MICRO_BATCH={micro or request.micro_batch or 1}"
        raise TableError(f"{given}: their product must divide the {unit} of an update, {batch}")
    return {"MICRO_BATCH": micro, "ACCUMULATE": batch // (request.processes * micro)}
