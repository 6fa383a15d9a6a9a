"""Rows that map sequences to sequences: prepare the data, train, average checkpoints, decode every test set, score.

They are scored by exact matches or, with `score = "pronunciation"`, by the error rates of one set. All scales are in
tables.toml.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import PositiveInt

from kinds.base import ROOT, Job, Kind, Stage, scoring, words
from kinds.translation import averaging
from recurrence.comparison.runs import Command


class Transduction(Kind):
    data: str
    set: str = ""
    score: Literal["", "pronunciation"] = ""
    languages: str
    tests: dict[str, str]
    symbols: PositiveInt
    updates: PositiveInt
    save: PositiveInt
    log: PositiveInt
    average: str
    search: str

    def stages(self, job: Job) -> Iterator[Stage]:
        folder, (source, target) = job.out / "data" / self.data / self.set, words(self.languages)
        pair, binary = ["--source-lang", source, "--target-lang", target], folder / "bin"
        yield job.prepare(self.data, *([f"SET={self.set}"] if self.set else []))
        flags = [*pair, "--log-format", "json", *self.update(job), "--max-update", self.updates]
        flags += ["--no-epoch-checkpoints", "--save-interval-updates", self.save, "--log-interval", self.log]
        yield self.fairseq_train(job, *flags, *job.flags, data=binary)
        yield averaging(job, words(self.average))
        scored, references = [], "references" if self.score else target
        for name, subset in self.tests.items():
            found = job.folder / f"generate-{name}.log"
            flags = ["--path", job.folder / "average.pt", *pair, "--gen-subset", subset]
            flags += ["--required-batch-size-multiple", 1, *words(self.search)]
            generate = ["fairseq-generate", binary, "--user-dir", ROOT / "fairseq_plugin", *flags]
            yield f"decoding-{name}", Command.of(*generate, output=found)
            scored.append(f"{found}={folder / 'raw' / f'{subset}.{references}'}")
        yield scoring(job, "pronunciation", *scored) if self.score else scoring(job, "score", *scored, "--exact")
