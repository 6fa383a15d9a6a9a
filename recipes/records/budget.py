"""How much data a recorded training has read, worked out from its recorded command."""

import re
import shlex
from functools import cache

from commands import stages
from request import read_request
from rows import RECIPES, read
from schema import TableError

TRAINER = re.compile(r"\b(fairseq-train|train_image\.py)\b")


def trainer(cmd: str) -> list[str]:
    """The trainer's command, as words, behind the command of a recipe; the last one if there are several.

    Raises:
        TableError: the row or its scale no longer exists.
    """
    words = shlex.split(cmd)
    start = next(index for index, word in enumerate(words) if "=" not in word)
    folder, recipe = words[start].removeprefix(f"{RECIPES.name}/").split("/")
    request = read_request(dict(word.split("=", 1) for word in words[:start]), words[start + 2 :])
    run = read(RECIPES / folder).tables[recipe.removesuffix(".sh")].run(words[start + 1])
    commands = [line for lines in stages(request, run, request.seeds[0]).values() for line in lines]
    return shlex.split([command for command in commands if TRAINER.search(command)][-1])


def update(words: list[str]) -> tuple[int, str]:
    """How much one update of a trainer's command reads, and the unit."""
    # If a flag is given twice, the last one counts.
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
    """The data of a training, such as "4.92M tokens"; empty if nothing was trained or the row no longer exists."""
    if not updates:
        return ""
    try:
        count, unit = update(trainer(cmd))
    except TableError:
        return ""
    total = count * int(updates)
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K"), (1, "")):
        if total >= size:
            return f"{total / size:.3g}{letter} {unit}"
    return ""
