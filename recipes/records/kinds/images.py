"""Rows of image models: prepare the images, train, test.

Scales (a row keeps its depth at every scale):
  smoke  an eighth of the width, images of 64 pixels, one epoch on the 1,000 test images of CIFAR-10 if DATA_ROOT holds
         cifar10.tar, otherwise on scikit-learn's digits; only shows that the row works
  small  CIFAR-10 at 64 pixels, 2,000 updates of 50 images, widths divided by `divisor`
  long   CIFAR-10 at 64 pixels, 60 epochs of random crops and flips, widths divided by `divisor` if it is of this scale
  paper  the data and the settings of the table
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from kinds.base import PROCESSES, Job, Kind, Stage
from recurrence.comparison.runs import Command

SMALL = "--img-size 64 --crop-pct 1 --opt adamw --lr 1e-3 --weight-decay 0.05 --clip-grad 1"
GENTLE = f"{SMALL} --batch-size 50 --workers 0 --scale 0.5 1 --color-jitter 0"
SETTINGS = {
    "smoke": f"{GENTLE} --epochs 1 --warmup-epochs 0",
    "small": f"{GENTLE} --epochs 2 --warmup-epochs 0.2",
    "long": f"""{SMALL} --lr 2e-3 --epochs 60 --warmup-epochs 3 --batch-size 128 --workers 0 --resize 72
        --color-jitter 0""",
    "paper": "--batch-size {job.micro_batch} --grad-accum-steps {job.accumulate} --img-size 224 --workers 8",
}
FEWER = " --epochs 20 --warmup-epochs 2"  # of 5,000 images
NUMBERS = {"bf16": " --amp bfloat16", "fp16": " --amp float16", "fp32": ""}


class Images(Kind):
    """Attributes:
    divisor: of the widths at a scale below paper.
    repeats: copies of an image in a batch of all processes.
    held_out: train without the images held out of the training set, and score those.
    """

    at_paper = ("data", "batch", "train")

    data: str = ""
    classes: PositiveInt = 1000
    divisor: PositiveInt = 1
    repeats: PositiveInt | None = None
    held_out: Literal[True] | None = None

    def stages(self, job: Job) -> Iterator[Stage]:
        prepare, images, splits = self.images_of(job)
        yield prepare
        program = PROCESSES if job.gpus > 1 else "python"
        train = f"{program} {{root}}/recipes/train_image.py {{images}} {splits} --model {job.arch} --model-kwargs"
        output = self.words(job, f"--output {{job.folder}} --seed {job.seed} {self.settings_at(job)}")
        words = [*self.words(job, train, images=images), *self.size(job), *job.kwargs, *output]
        yield "training", Command.of(*words, *job.flags, "--resume")
        yield self.scoring(job, "score_image.py {job.folder}")

    def images_of(self, job: Job) -> tuple[Stage, Path, str]:
        """The preparation of the images, their folder, and flags for the splits."""
        if job.at_paper:
            return job.prepare(self.data), job.out / "data" / self.data, ""
        if job.cifar10 == "digits":
            return job.prepare("digits/prepare"), job.out / "digits" / "images", ""
        folder, form, splits = job.out / "cifar10", f"CIFAR10={job.cifar10}", "--val-split test"
        if job.scale != "smoke" and self.held_out:
            return job.prepare("cifar10/prepare", form, "HELD_OUT=1"), folder / f"{job.cifar10}-held-out", splits
        splits += " --dataset torch/cifar10" if job.cifar10 == "full" else ""
        splits += " --train-split test" if job.scale == "smoke" else ""
        return job.prepare("cifar10/prepare", form), folder / job.cifar10, splits

    def settings_at(self, job: Job) -> str:
        """Flags of the training, before those of the row."""
        flags = SETTINGS[job.scale]
        if job.at_paper:
            flags += f" --aug-repeats {self.repeats}" if self.repeats else ""
            return flags + NUMBERS[job.precision or self.precision]
        return flags + (FEWER if job.scale == "small" and job.cifar10 == "5000" else "")

    def size(self, job: Job) -> list[str]:
        """The constructor's arguments that make a model smaller below scale paper, unless the row has its own."""
        if job.at_paper or any(one.startswith("embed_dim=") for one in job.kwargs):
            return []
        return smaller_model(job.arch, 8 if job.scale == "smoke" else self.divisor)


def smaller_model(arch: str, divisor: int) -> list[str]:
    """The constructor's arguments of a model for images of 64 pixels; a model of timm's own has none.

    The width is divided and rounded to a multiple of twice the number of heads (in a pyramid, of the heads of its first
    stage); isotropic models get 64 patches.
    """
    import timm

    from timm_plugin import MODELS

    if arch not in MODELS:
        return []
    config = timm.create_model(arch, device="meta").config
    step = 2 * (config.num_heads if isinstance(config.num_heads, int) else config.num_heads[0])
    width = (config.embed_dim + divisor * step // 2) // (divisor * step) * step
    return [f"embed_dim={width}", *(["patch_size=8"] if hasattr(config, "patch_size") else [])]
