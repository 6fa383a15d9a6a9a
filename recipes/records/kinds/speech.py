"""Rows of speech models: prepare the recordings, train, average checkpoints, decode every test set, count word errors.

All scales are in tables.toml.
"""

from collections.abc import Iterator
from shlex import split

from pydantic import PositiveInt

from kinds.base import Job, Kind, Stage
from recurrence.comparison.runs import Command

TASK = "--user-dir {root}/fairseq_plugin --task speech_to_text --config-yaml config.yaml"
TRAIN = (
    TASK
    + """ --train-subset {sets} --valid-subset {my.valid} {update} --max-update {updates} --no-epoch-checkpoints
--save-interval-updates {my.save} --keep-interval-updates {my.keep} --log-interval {log}"""
)
DECODE = f"""fairseq-generate {{binary}} {TASK} --path {{job.folder}}/average.pt --gen-subset {{subset}}
--max-tokens 50000 --scoring wer --required-batch-size-multiple 1"""


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
        yield job.prepare(self.data, *split(self.data_settings))
        binary, train = job.out / self.bin, TRAIN.replace("{update}", self.update)
        trainings = [("training-short", "train-short", self.short)] if self.short else []
        for stage, sets, updates in [*trainings, ("training", self.trained, self.updates)]:
            values = dict(binary=binary, sets=sets, updates=updates, log=max(1, self.save // 4))
            # A --max-update among the flags is the length of the whole training.
            length = ["--max-update", str(updates)] if stage == "training-short" else []
            yield self.fairseq_train(job, train, *job.flags, *length, stage=stage, **values)
        yield self.averaging(job, ["--num-update-checkpoints", str(self.keep)])
        for name, subset in self.tests.items():
            words = self.words(job, DECODE, binary=binary, subset=subset)
            yield f"decoding-{name}", Command.of(*words, *split(self.search), output=job.folder / f"{name}.log")
        yield self.scoring(job, "score_speech.py {job.folder} {binary}", *self.tests, binary=binary)
