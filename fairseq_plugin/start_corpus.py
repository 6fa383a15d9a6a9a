"""The raw text of a new project: read, checked, and divided into training, validation and test."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_repairs.files import LONGEST_LINE
from recurrence.files import require_regular

Row = tuple[str, ...]  # a line of each side

LONGEST = 1000  # characters in a sentence of a pair; the models read 1,024 pieces
COPIED = 100  # characters from which a line that is in two texts is no coincidence
# Texts without a row in common, and what to do about one that is in both.
APART = {
    ("train", "valid"): "the training text, or validation would measure how well it was memorised",
    ("train", "test"): "the training text, or the score would measure how well it was memorised",
    ("valid", "test"): "the validation text, or the checkpoint would be chosen by what scores it",
}
LEAST = {1: 20, 2: 50}  # rows for training, by the number of sides
HELD_OUT, MOST_VALID, MOST_TEST = 0.05, 500, 1000  # the share of rows, and the largest number of pairs


@dataclass
class Corpus:
    """Rows of each set, and what has been done to them, a sentence each."""

    sets: dict[str, list[Row]]
    notes: list[str]

    @property
    def characters(self) -> int:
        """How long the training text is, all sides together."""
        return sum(len(line) for row in self.sets["train"] for line in row)

    @property
    def alphabet(self) -> int:
        """How many different characters the training text has, all sides together."""
        return len({character for row in self.sets["train"] for line in row for character in line})


def read_corpus(train: Sequence[Path], valid: Sequence[Path], test: Sequence[Path]) -> Corpus:
    """The text of a language model (one file a set) or of a translator (two files, whose lines are pairs).

    Blanks within a line become single spaces. Without files for validation or test, rows of the training text are held
    out: pairs at random, of running text its end.

    Raises:
        OSError: a file cannot be read.
        ValueError: naming file and line, if a text is not UTF-8, sides have unequal lengths, a row is in two of the
            texts, or a text has no row that can be used.
    """
    files = {name: paths for name, paths in dict(train=train, valid=valid, test=test).items() if paths}
    given = {name: read_rows(paths) for name, paths in files.items()}
    for (kept, name), remedy in APART.items():
        if kept in given and name in given:
            reject_copies(files[kept][0], given[kept], files[name][0], given[name], remedy)
    corpus = Corpus({name: [row for row in rows if is_kept(row)] for name, rows in given.items()}, [])
    for name in given:
        if not corpus.sets[name]:
            raise ValueError(f"{files[name][0]}: has no line that can be used")
        if left := len(given[name]) - len(corpus.sets[name]) if len(train) == 2 else 0:
            corpus.notes.append(f"{name}: pairs left out, with an empty line or over {LONGEST:,} characters: {left:,}")
    for name, most in (("test", MOST_TEST), ("valid", MOST_VALID)):
        if name not in given:
            hold_out(corpus, name, most, pairs=len(train) == 2)
    if len(train) == 2:
        corpus.notes += shared_sources(corpus)
    if (rows := len(corpus.sets["train"])) < LEAST[len(train)]:
        raise ValueError(f"{train[0]}: leaves {rows} lines to train on: must be at least {LEAST[len(train)]}")
    return corpus


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """The lines of one or two files, side by side. Raises as :func:`read_corpus`."""
    sides = [read_lines(path) for path in paths]
    if len({*map(len, sides)}) > 1:
        counts = ", ".join(f"{path} has {len(side):,} lines" for path, side in zip(paths, sides))
        raise ValueError(f"{counts}: must be equal, because line N of one translates line N of the other")
    return list(zip(*sides))


def read_lines(path: Path) -> list[str]:
    """The lines of a file."""
    require_regular(path)
    found = []
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), start=1):
            if len(line) > LONGEST_LINE:
                raise ValueError(f"{path}:{number}: must have <= {LONGEST_LINE:,} bytes")
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            found.append(decoded(line, f"{path}:{number}"))
    return found


def decoded(line: bytes, place: str) -> str:
    """A line with single spaces. Raises ValueError with its place if it is not UTF-8."""
    try:
        return " ".join(line.decode("utf-8").split())
    except UnicodeDecodeError as error:
        wrong = f"byte {line[error.start]:#04x} at column {error.start + 1}"
        rule = "must be UTF-8 text: convert the file, as with iconv -f LATIN1 -t UTF-8"
        raise ValueError(f"{place}: {wrong}: {rule}") from None


def reject_copies(first: Path, rows: list[Row], second: Path, others: list[Row], remedy: str) -> None:
    """Raises ValueError if a row of the second text is one of the first, which should lose it, as the remedy says.

    Running text may repeat short lines, such as headings.
    """
    places = {row: number for number, row in enumerate(rows, start=1)}
    copies = [
        (number, places[row])
        for number, row in enumerate(others, start=1)
        if row in places and (all(row) if len(row) == 2 else len(row[0]) >= COPIED)
    ]
    if copies:
        number, place = copies[0]
        raise ValueError(
            f"{second}:{number}: is also line {place} of {first}, the first of {len(copies):,} such lines: remove "
            f"them from {remedy}"
        )


def shared_sources(corpus: Corpus) -> list[str]:
    """A note for each set with sources that the training text has, too, with another translation."""
    trained = {source for source, _ in corpus.sets["train"]}
    counts = {name: sum(source in trained for source, _ in corpus.sets[name]) for name in ("valid", "test")}
    return [
        f"{name}: {count:,} of {len(corpus.sets[name]):,} sources are in the training text, too"
        for name, count in counts.items()
        if count
    ]


def is_kept(row: Row) -> bool:
    """Whether a row is of use: not an empty line of running text, nor a pair with an empty side or one too long."""
    return all(row) and (len(row) == 1 or max(map(len, row)) <= LONGEST)


def hold_out(corpus: Corpus, name: str, most: int, pairs: bool) -> None:
    """Takes a set from the training rows: pairs at random, with all of the same source, or the end of running text."""
    rows = corpus.sets["train"]
    count = max(1, int(HELD_OUT * len(rows)))
    chosen = random.Random(1).sample(rows, min(count, most)) if pairs else rows[-count:]
    taken = {source for source, *_ in chosen}  # another translation of it would give the model a hint
    corpus.sets["train"] = [row for row in rows if row[0] not in taken] if pairs else rows[:-count]
    corpus.sets[name] = chosen
    corpus.notes.append(f"{name}: {len(chosen):,} lines of the training text were held out")
