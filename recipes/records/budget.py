"""How much data a recorded training has read, from the command that is recorded of it."""

import re
import shlex
from functools import cache

import run as program
from rows import RECIPES, TableError, read

TRAINER = re.compile(r"\b(fairseq-train|train_image\.py)\b")


def trainer(cmd: str) -> list[str]:
    """The words of the last trainer's command that a recorded one carries out.

    Raises:
        TableError: its row or its scale is none (any more).
    """
    words = shlex.split(cmd)
    start = next(index for index, word in enumerate(words) if "=" not in word)
    folder, script = words[start].removeprefix(f"{RECIPES.name}/").split("/")
    call = program.call_of(dict(word.split("=", 1) for word in words[:start]), words[start + 2 :])
    run = read(RECIPES / folder).tables[script.removesuffix(".sh")].run(words[start + 1])
    stages = program.stages(call, run, call.seeds[0])
    return shlex.split([line for lines in stages.values() for line in lines if TRAINER.search(line)][-1])


def update(words: list[str]) -> tuple[int, str]:
    """How much an update of a trainer's command reads, and of what. Of a flag that stands twice the last holds."""
    flags = {flag: int(value) for flag, value in zip(words, words[1:]) if flag.startswith("--") and value.isdecimal()}
    if not any("fairseq-train" in word for word in words):
        return flags["--batch-size"] * flags.get("--grad-accum-steps", 1), "images"
    times = flags.get("--update-freq", 1)
    if "--max-tokens" in flags:
        return flags["--max-tokens"] * times, f"{'frames' if 'speech_to_text' in words else 'tokens'} at most"
    if "--tokens-per-sample" in flags:
        return flags["--batch-size"] * flags["--tokens-per-sample"] * times, "tokens"
    return flags["--batch-size"] * times, "texts"


@cache
def data(cmd: str, updates: str) -> str:
    """What a training of so many updates has read, "4.92M tokens"; nothing where nothing was trained."""
    try:
        count, unit = update(trainer(cmd)) if updates else (0, "")
    except TableError:  # an old row: what it read can no longer be told
        return ""
    total = count * int(updates or 0)
    size, letter = next((one for one in ((1e9, "B"), (1e6, "M"), (1e3, "K")) if total >= one[0]), (1, ""))
    return f"{total / size:.3g}{letter} {unit}" if total else ""
