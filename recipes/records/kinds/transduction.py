"""Rows that map sequences to sequences: prepare the data, train, average checkpoints, decode every test set, score.

They are scored by exact matches or, with `scored = "pronunciation"`, by the error rates of one set. All scales are in
tables.toml.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import split
from typing import Literal

from pydantic import PositiveInt

from kinds.base import Job, Kind, Stage
from recurrence.comparison.runs import Command

PAIR = "--source-lang {data.source} --target-lang {data.target}"
DECODE = f"fairseq-generate {{data.binary}} --user-dir {{root}}/fairseq_plugin --path {{model}} {PAIR}"


@dataclass(frozen=True)
class Data:
    """A data set: how it is prepared, its binarized form, its languages; of each test set its name and references."""

    prepare: Stage
    binary: Path
    source: str
    target: str
    tests: dict[str, tuple[str, Path]]
    pieces: Path | None = None  # the vocabulary


class Sequences(Kind):
    """What translation and transduction have in common.

    Attributes:
    scored: "loss" scores a row by its last validation loss; nothing is decoded.
    """

    data: str = ""
    set: str = ""  # of a data set that has several
    languages: str = ""
    tests: dict[str, str] = {}
    symbols: PositiveInt | None = None
    average: str = ""
    search: str = ""
    scored: Literal["", "loss"] = ""

    def prepared(self, job: Job, references: str = "") -> Data:
        """The data set of the row; the references are in the target language, unless their files end otherwise."""
        folder, (source, target) = job.out / "data" / self.data / self.set, self.languages.split()
        raw = {subset: folder / "raw" / f"{subset}.{references or target}" for subset in self.tests.values()}
        tests = {name: (subset, raw[subset]) for name, subset in self.tests.items()}
        prepare = job.prepare(self.data, *([f"SET={self.set}"] if self.set else []))
        return Data(prepare, folder / "bin", source, target, tests)

    def decoding(self, job: Job, data: Data, model: object, name: str, *flags: str) -> Stage:
        """Decodes a test set."""
        subset, _ = data.tests[name]
        words = self.words(job, f"{DECODE} --gen-subset {subset}", data=data, model=model)
        return f"decoding-{name}", Command.of(*words, *flags, output=job.folder / f"generate-{name}.log")

    def loss(self, job: Job) -> Stage:
        """Scores the training by its last validation."""
        return self.scoring(job, "loss.py {job.folder}/train.log")

    def compared(self, job: Job, data: Data) -> list[str]:
        """The words of a metric that compares each test set with its references."""
        return [f"{job.folder}/generate-{name}.log={references}" for name, (_, references) in data.tests.items()]


class Transduction(Sequences):
    """Attributes:
    scored: also "pronunciation", for the error rates of the only test set.
    eight_bits: the checkpoint of another row, whose pronunciations are scored in eight bits; nothing is trained.
    """

    scored: Literal["", "pronunciation", "loss"] = ""
    data: str
    languages: str
    tests: dict[str, str]
    symbols: PositiveInt
    updates: PositiveInt
    save: PositiveInt
    log: PositiveInt
    average: str
    search: str
    eight_bits: str = ""

    def stages(self, job: Job) -> Iterator[Stage]:
        data = self.prepared(job, "references" if self.scored == "pronunciation" else "")
        yield data.prepare
        if self.eight_bits:
            ((_, references),) = data.tests.values()
            files = ["--letters", references.with_suffix(f".{data.source}"), "--references", references]
            yield self.scoring(job, "eight_bits.py", f"{self.eight_bits}={data.binary}", *files)
            return
        train = f"{PAIR} --log-format json {self.update} --max-update {self.updates} --no-epoch-checkpoints"
        train += f" --save-interval-updates {self.save} --log-interval {self.log}"
        yield self.fairseq_train(job, train, *job.flags, binary=data.binary, data=data)
        if self.scored == "loss":
            yield self.loss(job)
            return
        yield self.averaging(job, split(self.average))
        for name in data.tests:
            flags = ["--required-batch-size-multiple", "1", *split(self.search)]
            yield self.decoding(job, data, job.folder / "average.pt", name, *flags)
        metric = "pronunciation.py" if self.scored else "score.py"
        yield self.scoring(job, metric, *self.compared(job, data), *([] if self.scored else ["--exact"]))
