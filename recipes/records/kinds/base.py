"""What all kinds have in common: settings in tables.toml, which pydantic checks, and parts of the commands."""

import abc
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationInfo, model_validator

from recurrence.comparison.runs import Command

SCALES = ("smoke", "small", "long", "paper")
SWITCHES = ("body", "release", "code")  # settings of the paper's body, or of the published code, where they differ
OVERRIDES = ("smaller", *SCALES[:-1])  # settings below scale paper: at all scales, or at one
PARTS = (*OVERRIDES, *SWITCHES)
ROOT = Path(__file__).resolve().parents[3]

# Of fairseq-train, for all rows. Without the number of processes, fairseq starts one on every GPU of the machine.
TRAIN = """{binary} --distributed-world-size {job.gpus} --user-dir {root}/fairseq_plugin --arch {job.arch}
--save-dir {job.folder}/checkpoints --seed {job.seed} --required-batch-size-multiple 1 --update-epoch-batch-itr True"""
PROCESSES = "torchrun --standalone --nproc_per_node {job.gpus}"

Stage = tuple[str, Command]  # the name of a stage, and one of its commands


@dataclass(frozen=True)
class Job:
    """What the commands of a run depend on beside the settings of its row.

    Attributes:
        arch, kwargs, flags: the model, key=value arguments of its constructor (timm's), and flags of the trainer.
        scale, seed, gpus: as requested.
        precision: as requested; empty: that of the row.
        micro_batch, accumulate: batch of a process, and batches per update; 0 where the scale has its own.
        folder, out: of this run, and of all output.
        data_root: the user's folder of data; may be empty.
        cifar10: the form of CIFAR-10, or digits (see :class:`request.Request`).
    """

    arch: str
    kwargs: list[str]
    flags: list[str]
    scale: str
    seed: int
    gpus: int
    precision: str
    micro_batch: int
    accumulate: int
    folder: Path
    out: Path
    data_root: str
    cifar10: str

    @property
    def at_paper(self) -> bool:
        """Whether the run has the data and the settings of the paper."""
        return self.scale == "paper"

    def prepare(self, script: str, *settings: str) -> Stage:
        """Prepares a data set: a script of recipes/data, or with a slash of recipes, and NAME=VALUE for it."""
        root = [f"DATA_ROOT={self.data_root}"] if self.data_root else []
        path = ROOT / "recipes" / (script if "/" in script else f"data/{script}")
        return "preparation", Command.of("env", "DRY_RUN=0", f"OUT={self.out}", *root, *settings, f"{path}.sh")


class Kind(BaseModel, abc.ABC):
    """The settings that all kinds have in common.

    Attributes:
        at_paper: what scale paper requires, where a kind has settings of its own for the smaller scales.
        batches: whether an update needs a batch size, in sequences (batch) or in tokens.
        default_scales: at which a row can run, unless its settings say otherwise.
        micro_batch: the most that a process takes at once; a larger batch is accumulated.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    at_paper: ClassVar[tuple[str, ...]] = ()
    batches: ClassVar[bool] = True
    default_scales: ClassVar[tuple[str, ...]] = ("smoke", "small", "paper")

    scales: list[Literal[SCALES]] = []
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    batch: PositiveInt | None = None
    tokens: PositiveInt | None = None
    micro_batch: PositiveInt = 128
    train: str = ""

    @model_validator(mode="after")
    def complete(self, info: ValidationInfo) -> "Kind":
        """Rejects settings that lack what their scale requires; the context names the scale."""
        if self.at_paper and info.context["scale"] != "paper":
            return self
        missing = [name for name in self.at_paper if name not in self.model_fields_set]
        if missing:
            raise ValueError(f"missing key {missing[0]!r}")
        if self.batches and (self.batch is None) == (self.tokens is None):
            raise ValueError("must have either 'batch' or 'tokens'")
        return self

    @abc.abstractmethod
    def stages(self, job: Job) -> Iterator[Stage]:
        """The commands of a run in order: preparation, training, averaging, decoding, scoring."""

    def words(self, job: Job, text: str, **values: Any) -> list[str]:
        """The words of a text. In them, {job.NAME}, {my.NAME}, {root} and {VALUE} stand for what they name."""
        return [word.format(job=job, my=self, root=ROOT, **values) for word in shlex.split(text)]

    def fairseq_train(self, job: Job, text: str, *flags: str, stage: str = "training", **values: Any) -> Stage:
        """fairseq-train at the row's precision, on the processes asked for, with further flags as a text and as words.

        Among the values are `binary`, the binarized data, if the task reads any.
        """
        program = f"{PROCESSES} -m fairseq_cli.train" if job.gpus > 1 else "fairseq-train"
        own = TRAIN if values.get("binary") else TRAIN.removeprefix("{binary}")
        precision = job.precision or self.precision
        number = "" if precision == "fp32" else f"--{precision}"
        return stage, Command.of(*self.words(job, f"{program} {own} {number} {text}", **values), *flags)

    @property
    def update(self) -> str:
        """The flags of fairseq-train that give the table's batch size."""
        unit = "--max-tokens" if self.tokens else "--batch-size"
        return unit + " {job.micro_batch} --update-freq {job.accumulate}"

    def averaging(self, job: Job, flags: list[str]) -> Stage:
        """Averages checkpoints into average.pt; without flags, or with `best`, it is the best one."""
        average = job.folder / "average.pt"
        if flags in ([], ["best"]):
            return "averaging", Command.of("cp", job.folder / "checkpoints" / "checkpoint_best.pt", average)
        words = self.words(job, "python -m fairseq_plugin.average --inputs {job.folder}/checkpoints")
        return "averaging", Command.of(*words, *flags, "--output", average)

    def scoring(self, job: Job, text: str, *flags: Any, output: str = "scores.json", **values: Any) -> Stage:
        """A program of recipes/metrics, which prints the scores."""
        command = self.words(job, "python {root}/recipes/metrics/" + text, **values)
        return "scoring", Command.of(*command, *flags, output=job.folder / output)
