"""Rows of speech models: prepare the recordings, train, average checkpoints, decode every test set, count word errors.

All scales are in tables.toml.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import PositiveInt

from kinds.base import ROOT, Job, Kind, Stage, scoring, words
from kinds.translation import averaging
from recurrence.comparison.runs import Command

TASK = ["--user-dir", ROOT / "fairseq_plugin", "--task", "speech_to_text", "--config-yaml", "config.yaml"]


class Speech(Kind):
    """Attributes:
    trained, valid: the sets of training and validation.
    keep: checkpoints to keep, and to average.
    short: updates at the beginning on short sequences only; otherwise attention takes long to find an alignment.
    """

    data: str
    bin: str
    updates: PositiveInt
    symbols: PositiveInt
    trained: str
    valid: str
    tests: dict[str, str]
    search: str
    save: PositiveInt
    keep: PositiveInt
    data_settings: str = ""
    short: PositiveInt | None = None

    def stages(self, job: Job) -> Iterator[Stage]:
        yield job.prepare(self.data, *words(self.data_settings))
        if self.short:
            yield self.train_on(job, "train-short", self.short, stage="training-short")
        yield self.train_on(job, self.trained, self.updates)
        yield averaging(job, ["--num-update-checkpoints", str(self.keep)])
        for name, subset in self.tests.items():
            flags = ["--path", job.folder / "average.pt", "--gen-subset", subset, "--max-tokens", 50000]
            flags += ["--scoring", "wer", "--required-batch-size-multiple", 1, *words(self.search)]
            generate = ["fairseq-generate", job.out / self.bin, *TASK, *flags]
            yield f"decoding-{name}", Command.of(*generate, output=job.folder / f"{name}.log")
        yield scoring(job, "score_speech", job.folder, job.out / self.bin, *self.tests)

    def train_on(self, job: Job, sets: str, updates: int, **stage: Any) -> Stage:
        """Trains on these sets up to this number of updates."""
        flags = [*TASK, "--train-subset", sets, "--valid-subset", self.valid, *self.update(job)]
        flags += ["--max-update", updates, "--no-epoch-checkpoints", "--save-interval-updates", self.save]
        flags += ["--keep-interval-updates", self.keep, "--log-interval", max(1, self.save // 4)]
        return self.fairseq_train(job, *flags, *job.flags, data=job.out / self.bin, **stage)
