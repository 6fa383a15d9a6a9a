"""Rows that use one of the plugin's own tasks, scored per text: prepare the data, if there are any, train, score.

All scales are in tables.toml.
"""

from collections.abc import Iterator
from pathlib import Path
from shlex import split

from pydantic import PositiveInt

from kinds.base import Job, Stage
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
        script, binary = self.data_of(job)
        if binary:
            form = [f"CIFAR10={job.cifar10}"] if script == "cifar10/prepare" else []
            yield job.prepare(script, *form, *split(self.data_settings))
        train = f"--task {self.task} " + (f"--tokens-per-sample {self.text} " if self.text else "")
        train += f"--log-format json {self.update} --max-update {self.updates} --no-epoch-checkpoints "
        # Both: where an epoch ends, fairseq does not validate for --save-interval-updates alone.
        often = f"--save-interval-updates {self.save} --validate-interval-updates {self.save} " if self.save else ""
        train += f"{often}--keep-interval-updates 1 " if often else ""
        yield self.fairseq_train(job, f"{train} --log-interval {self.log}", *job.flags, binary=binary)
        trained = "--path {job.folder}/checkpoints/checkpoint_{my.checkpoint}.pt"
        if self.score:
            yield self.scoring(job, f"automaton.py {trained}", *split(self.score))
            return
        # The published standard error depends on the batch of an update.
        text = f"answers.py {'{binary} ' if binary else ''}{trained} --subset {self.subset} --batch {self.batch}"
        yield self.scoring(job, text, binary=binary)

    def data_of(self, job: Job) -> tuple[str, Path | None]:
        """The script that prepares the data, and where it writes them; None if the task reads none."""
        if self.data != "cifar10/prepare":
            return self.data, job.out / self.bin if self.data else None
        if job.cifar10 == "digits":
            return "digits/prepare", job.out / "digits" / "images"
        size = self.data_settings.removeprefix("SIZE=")
        return self.data, job.out / "cifar10" / "-".join(filter(None, [job.cifar10, size]))
