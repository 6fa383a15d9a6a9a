"""Rows that count operations or measure speed. Nothing is trained, and scale smoke is the same as scale paper."""

from collections.abc import Iterator
from typing import Literal

from pydantic import PositiveInt

from kinds.base import Job, Kind, Stage, scoring


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
    classes: PositiveInt | None = None
    symbols: PositiveInt | None = None
    text: PositiveInt | None = None
    updates: PositiveInt | None = None
    positions: PositiveInt | None = None
    beside: str = ""
    rounds: PositiveInt | None = None

    def stages(self, job: Job) -> Iterator[Stage]:
        if self.count == "images":
            throughput = ["--throughput", self.throughput] if self.throughput else []
            yield scoring(job, "cost_image", job.arch, *job.kwargs, *throughput, *job.flags)
        elif self.count == "training":
            sizes = ["--symbols", self.symbols, "--text", self.text, "--texts", self.batch, "--updates", self.updates]
            yield scoring(job, "flops", *sizes, "--", "--arch", job.arch, *job.flags)
        else:
            sizes = ["--beside", self.beside, "--tokens", self.tokens, "--rounds", self.rounds]
            yield scoring(job, "speed", job.arch, *sizes, *job.flags)
