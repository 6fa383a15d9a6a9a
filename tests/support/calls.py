"""Python calls, and files of this project, that a model takes on the way of a tensor; torch's own do not count."""

import collections
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import fairseq
import timm
import torch
from torch import nn

from tests.support import cli, public

OURS = tuple(
    f"{cli.REPOSITORY / package}/" for package in ("recurrence", "fairseq_plugin", "timm_plugin", "fairseq_repairs")
)
HOSTS = tuple(f"{Path(package.__file__).parent}/" for package in (fairseq, timm))
SYMBOLS = 1000


class Calls(NamedTuple):
    """All calls of functions of the project and its hosts, and the files of the project among theirs."""

    number: int
    files: set[str]


def count(run: Callable[[], Any]) -> Calls:
    """The calls of a function that has run once before, so that caches are filled."""
    run()
    found: collections.Counter = collections.Counter()

    def see(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith((*OURS, *HOSTS)):
            found[frame.f_code.co_filename] += 1

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        run()
    finally:
        sys.setprofile(before)
    return Calls(found.total(), {file for file in found if file.startswith(OURS)})


def forward(name: str) -> Calls:
    """Of a training forward of a registered model at its own size."""
    if name in public.ARCHITECTURES:
        inputs = (tokens(8, 20),)
        if public.task_name(name) == "translation":
            inputs = tokens(8, 20), torch.full((8,), 20), tokens(8, 20)
        model: nn.Module = text_model(name)
    else:
        inputs = (torch.randn(2, 3, 224, 224),)
        model = timm.create_model(name)
    model.train()
    return count(lambda: model(*inputs))


def decoding_step(arch: str) -> float:
    """The calls of a step of cached decoding, as the mean over steps 2 to 4."""
    model = text_model(arch).eval()
    source, previous, lengths = tokens(2, 6), tokens(2, 6), torch.full((2,), 6)

    def read(steps: int) -> None:
        state: dict = {}
        with torch.no_grad():
            memory = model.encoder(source, src_lengths=lengths)
            for end in range(1, steps + 1):
                model.decoder(previous[:, :end], encoder_out=memory, incremental_state=state)

    return (count(lambda: read(4)).number - count(lambda: read(1)).number) / 3


def text_model(arch: str) -> nn.Module:
    """An architecture at its own size, except for the number of symbols."""
    return public.build(arch, symbols=(SYMBOLS, SYMBOLS))


def tokens(rows: int, length: int) -> torch.Tensor:
    """Random sentences without padding: (rows, length)."""
    return torch.randint(4, SYMBOLS, (rows, length))
