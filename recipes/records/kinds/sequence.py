"""Rows that use one of the plugin's own tasks, scored per text: prepare the data, if there are any, train, score.

All scales are in tables.toml.
"""

from collections.abc import Iterator
from pathlib import Path

from pydantic import PositiveInt

from kinds.base import Job, Stage, scoring, words
from kinds.language import Text


class Sequence(Text):
    """Attributes:
    score: options of metrics/automaton.py, which then scores instead of metrics/answers.py.
    """

    task: str
    log: PositiveInt
    positions: PositiveInt | None = None
    classes: PositiveInt | None = None
    subset: str = "valid"
    score: str = ""

    def stages(self, job: Job) -> Iterator[Stage]:
        script, data = self.data_of(job)
        if data:
            yield job.prepare(script, f"CIFAR10={job.cifar10}", *words(self.data_settings))
        flags = ["--task", self.task, *(["--tokens-per-sample", self.text] if self.text else [])]
        flags += ["--log-format", "json", *self.update(job), "--max-update", self.updates, "--no-epoch-checkpoints"]
        flags += ["--save-interval-updates", self.save, "--keep-interval-updates", 1] if self.save else []
        yield self.fairseq_train(job, *flags, "--log-interval", self.log, *job.flags, data=data)
        trained = ["--path", job.checkpoints / f"checkpoint_{self.checkpoint}.pt"]
        if self.score:
            yield scoring(job, "automaton", *trained, *words(self.score))
            return
        # The published standard error depends on the batch of an update.
        flags = [*trained, "--subset", self.subset, "--batch", self.batch]
        yield scoring(job, "answers", *([data] if data else []), *flags)

    def data_of(self, job: Job) -> tuple[str, Path | None]:
        """The script that prepares the data, and where it writes them; None if the task reads none."""
        if self.data != "cifar10/prepare":
            return self.data, job.out / self.bin if self.data else None
        if job.cifar10 == "digits":
            return "digits/prepare", job.out / "digits" / "images"
        size = self.data_settings.removeprefix("SIZE=")
        return self.data, job.out / "cifar10" / "-".join(filter(None, [job.cifar10, size]))
