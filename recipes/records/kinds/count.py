"""Rows that count operations or measure speed. Nothing is trained, and scale smoke is the same as scale paper."""

from collections.abc import Iterator
from typing import Literal

from pydantic import PositiveInt

from kinds.base import Job, Kind, Stage

COUNTS = {
    "images": "cost_image.py {job.arch}",
    "training": "flops.py --symbols {my.symbols} --text {my.text} --texts {my.batch} -- --arch {job.arch}"
    " --max-update {my.updates}",
    "speed": "speed.py {job.arch} --beside {my.beside} --tokens {my.tokens} --rounds {my.rounds}",
}


class Count(Kind):
    """Attributes:
    count: "images" for the operations of an image, and with `throughput` (images per batch) also images per second
        relative to DeiT-Tiny; "training" for those of training a language model; "speed" for tokens per second in
        training steps of `tokens`, in turn with the architecture `beside`, so many `rounds`.
    """

    batches = False
    default_scales = ("smoke", "paper")

    count: Literal["images", "training", "speed"]
    throughput: PositiveInt | None = None
    symbols: PositiveInt | None = None
    text: PositiveInt | None = None
    updates: PositiveInt | None = None
    beside: str = ""
    rounds: PositiveInt | None = None

    def stages(self, job: Job) -> Iterator[Stage]:
        throughput = ["--throughput", self.throughput] if self.throughput else []
        yield self.scoring(job, COUNTS[self.count], *job.kwargs, *throughput, *job.flags)
