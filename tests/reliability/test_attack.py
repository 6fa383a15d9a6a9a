"""Hostile files of many kinds against every command that reads a file.

Each attack copies a folder of honest files, spoils one of them, and runs a command that reads it. The command may work,
or reject the file in one line. It may not change or run anything outside the folder, take long, or fill the memory.

`make fuzz` tries more than the other tests, with other files each time. ATTACKS names a file for a line about each.
"""

import itertools
import os
import random
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.reliability.kinds import Spoil, kinds
from tests.reliability.readers import make_folders, readers
from tests.support import warm

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("ROUNDS", 0))
TRIED, TOGETHER = (30 * ROUNDS, 4) if ROUNDS else (12, 2)  # the second: at once
SEED = int(os.environ.get("SEED", random.randrange(10**6) if ROUNDS else 45))  # whose files are made quickly
CACHES = ("TMPDIR", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR")  # variables
SECONDS, MEMORY = 300, 2 << 30  # the most that a command may take
# Lines of the report: the memory, and programs that our commands start, or matplotlib.
PROGRAMS = ("-m', 'timm_plugin", "-m', 'fairseq_cli", "comparison.starter", "prepare.sh", "'git'", "fc-list")
ALLOWED = re.compile(f"memory |subprocess.Popen .*({'|'.join(PROGRAMS)})")


class Attack(NamedTuple):
    """A file, how it is spoiled, and a command that reads it."""

    file: str
    spoil: Spoil
    words: list[str]

    @property
    def kind(self) -> str:
        return f"{Path(self.file).suffix[1:]} {self.spoil.__name__}"


def untouched(file: Path, chance: random.Random) -> None:
    """Leaves an honest file, so that no command fails for another reason."""


def attacks() -> Iterator[Attack]:
    """One of each kind against each file, in any order, then again with other commands."""
    found = [(file, spoil) for file in readers() for spoil in kinds(file)]
    random.Random(SEED).shuffle(found)
    commands = readers()
    for turn in itertools.count():
        for number, (file, spoil) in enumerate(found):
            yield Attack(file, spoil, commands[file][(turn + number) % len(commands[file])])


def chosen() -> list[Attack]:
    """The attacks that are tried; where there is time, every command reads its honest files first."""
    commands = readers().items() if ROUNDS else ()
    honest = {tuple(words): Attack(file, untouched, words) for file, found in commands for words in found}
    return [*honest.values(), *itertools.islice(attacks(), TRIED)]


def wrong(honest: Path, attack: Attack, number: int, place: Path) -> list[str]:
    """What a command has done to the files and the machine that it must not do."""
    f, beside, report = place / "f", place / "outside", place / "report"
    shutil.copytree(honest, f)
    for made in (beside / "home", f / "tmp"):
        made.mkdir(parents=True)
    (beside / "thesis.txt").write_text("mine")
    os.mkfifo(f / "fifo")
    attack.spoil(f / attack.file, random.Random(f"{SEED} {number}"))
    before = contents(beside)
    env = {"HOME": str(beside / "home"), **dict.fromkeys(CACHES, str(f / "tmp"))}
    job = dict(argv=attack.words, cwd=f, env=env, kill_after=SECONDS, stdin=honest / "lines.txt")
    (ended,) = warm.run({**job, "confine": {"folder": str(f), "report": str(report)}})
    effects = report.read_text().splitlines() if report.exists() else []
    found = faults(attack, ended, effects) + [str(path) for path, _ in contents(beside).items() ^ before.items()]
    if log := os.environ.get("ATTACKS"):
        with open(log, "a") as file:
            words = " ".join(" ".join(attack.words).split())[-90:]
            file.write(f"{attack.file}, {attack.kind}, {words}: {ended.status}, {found}, {ended.last_line[:300]}\n")
    shutil.rmtree(place)
    return found


def faults(attack: Attack, ended: warm.Ended, effects: list[str]) -> list[str]:
    """What is wrong with how a command has ended, and its effects that it must not have."""
    found = [line for line in effects if not ALLOWED.match(line)]
    if ended.status not in ((0,) if attack.spoil is untouched else (0, 1, 2)):
        found.append(f"status {ended.status}: {ended.last_line}")
    if "Traceback" in ended.log or "Exception ignored" in ended.log:
        found.append(f"traceback: {ended.last_line}")
    peak = max((int(line.split()[1]) for line in effects if line.startswith("memory ")), default=0)
    if peak > MEMORY or re.search("can't allocate|MemoryError|bad_alloc", ended.log):
        found.append(f"{peak >> 20} MB")
    return found


def contents(folder: Path) -> dict[Path, bytes | None]:
    """The files of a folder, and what is in them, less what onnxruntime notes about its use when it is imported."""
    found = [path for path in folder.rglob("*") if ".cache" not in path.parts]
    return {path: path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 30 else None for path in found}


def test_hostile_files_do_nothing_but_fail(honest, tmp_path):
    tried = chosen()
    make_folders(honest, ((attack.file, *attack.words) for attack in tried))
    with ThreadPoolExecutor(TOGETHER) as pool:
        numbers = range(len(tried))
        found = list(pool.map(lambda number: wrong(honest, tried[number], number, tmp_path / str(number)), numbers))
    commands = {tuple(attack.words) for attack in tried}
    kinds = {attack.kind for attack in tried}
    print(f"{len(tried)} files of {len(kinds)} kinds, {len(commands)} commands, seed {SEED}")
    assert [(attack.file, attack.kind, attack.words, each) for attack, each in zip(tried, found) if each] == []
