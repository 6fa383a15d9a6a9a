"""What all kinds have in common: settings in tables.toml, which pydantic checks, and parts of the commands."""

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

    @property
    def checkpoints(self) -> Path:
        """Where fairseq saves."""
        return self.folder / "checkpoints"

    @property
    def scores(self) -> Path:
        """The file of the results."""
        return self.folder / "scores.json"

    def prepare(self, script: str, *settings: str) -> Stage:
        """Prepares a data set: a script of recipes/data, or with a slash of recipes, and NAME=VALUE for it."""
        root = [f"DATA_ROOT={self.data_root}"] if self.data_root else []
        path = ROOT / "recipes" / (script if "/" in script else f"data/{script}")
        return "preparation", Command.of("env", "DRY_RUN=0", f"OUT={self.out}", *root, *settings, f"{path}.sh")

    def distributed(self) -> list[str]:
        """The words that start a program in several processes."""
        return ["torchrun", "--standalone", "--nproc_per_node", str(self.gpus)]


class Kind(BaseModel):
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

    def stages(self, job: Job) -> Iterator[Stage]:
        """The commands of a run in order: preparation, training, averaging, decoding, scoring."""
        raise NotImplementedError

    def fairseq_train(self, job: Job, *words: Any, data: Path | None = None, stage: str = "training") -> Stage:
        """fairseq-train at the row's precision, on the processes asked for.

        Without their number, fairseq starts one on every GPU of the machine.
        """
        program = [*job.distributed(), "-m", "fairseq_cli.train"] if job.gpus > 1 else ["fairseq-train"]
        precision = job.precision or self.precision
        own = ["--distributed-world-size", job.gpus, "--user-dir", ROOT / "fairseq_plugin", "--arch", job.arch]
        own += ["--save-dir", job.checkpoints, "--seed", job.seed, "--required-batch-size-multiple", 1]
        own += ["--update-epoch-batch-itr", True, *([] if precision == "fp32" else [f"--{precision}"])]
        return stage, Command.of(*program, *([data] if data else []), *own, *words)

    def update(self, job: Job) -> list[Any]:
        """The flags of fairseq-train that give the table's batch size."""
        unit = "--max-tokens" if self.tokens else "--batch-size"
        return [unit, job.micro_batch, "--update-freq", job.accumulate]


def words(text: str) -> list[str]:
    """The words of a setting, as a shell splits them."""
    return shlex.split(text)


def scoring(job: Job, metric: str, *arguments: Any) -> Stage:
    """A program of recipes/metrics that prints the scores."""
    program = ROOT / "recipes" / "metrics" / f"{metric}.py"
    return "scoring", Command.of("python", program, *arguments, output=job.scores)
