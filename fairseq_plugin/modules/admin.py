"""Admin in fairseq: profiled on the first batch of a training, or read from a file of the published code.

Source: Liu et al. (arXiv:2004.08249); Takase & Kiyono (arXiv:2104.06022), section 3.

Differs from the published code: one command profiles and trains, where that needs two; the file that its first one
writes is taken as it is.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor, nn

from fairseq_plugin.modules.options import Options, option
from recurrence import admin

logger = logging.getLogger("fairseq_plugin.admin")


@dataclass
class AdminOptions(Options):
    """The initialisation of the residual sums."""

    init: str = option(
        "default",
        "admin: residual sums f(x) + omega x, with a vector omega for each sublayer of each pass, which starts at what "
        "the first batch of the training shows (post-norm only)",
        choices=("default", "admin"),
    )
    admin_profile: Any = option(
        None,
        "with --init admin: file of the starts, in place of the first batch, one sublayer a line in the order of "
        "execution (the published code's profile.ratio.init)",
        where={"init": ("admin",)},
    )


class ProfiledModel(FairseqEncoderDecoderModel):
    """An encoder-decoder that profiles Admin's vectors, if it has any, in the first forward pass of training.

    It first runs the batch without gradients, with the dropout that it will draw itself. The profile of the first
    worker is that of all, and the checkpoint keeps it.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module):
        super().__init__(encoder, decoder)
        # No bool: fairseq's moving average multiplies every entry of a state dict.
        self.register_buffer("profiled", torch.zeros(()) if admin.admins(self) else None)
        # Looked up once: on an accelerator fairseq would wait for the answer at every step.
        self.may_be_fresh = self.profiled is not None

    @property
    def stacks(self) -> list[nn.Module]:
        """The encoder's loop and the decoder's."""
        return [self.encoder.loop, self.decoder.loop]

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **options):
        """fairseq's forward pass."""
        inputs = (src_tokens, src_lengths, prev_output_tokens)
        if self.training and self.may_be_fresh:
            if not self.profiled:
                self.profile(*inputs, **options)
            self.may_be_fresh = False
        return super().forward(*inputs, **options)

    def profile(self, *inputs: Tensor, **options) -> None:
        """Sets the omegas of a fresh model from one batch. Called on every worker at once, where there are several."""
        forward: Callable = super().forward
        devices = [torch.cuda.current_device()] if inputs[0].is_cuda else []
        with torch.random.fork_rng(devices):
            admin.profile(self.stacks, lambda: forward(*inputs, **options))
        torch.clear_autocast_cache()  # older torch would train on the casts that were made here, without gradients
        scalars = admin.read(self.stacks)
        group = distributed_utils.get_data_parallel_group()
        if group is not None:
            distributed_utils.broadcast(scalars, src=0, group=group)
        self.set_profile(scalars)
        logger.info(f"Admin: profiled {len(scalars)} sublayers, omegas from {scalars.min():.3f} to {scalars.max():.3f}")

    def set_profile(self, scalars: Tensor) -> None:
        """Sets the omegas: one number per sublayer, in the order of execution, the encoder's first."""
        admin.write(self.stacks, scalars)
        self.profiled.fill_(1)


def given_profile(args, stacks: list[nn.Module]) -> Tensor | None:
    """The numbers of `--admin-profile`, which they replace in the options, for a checkpoint is loaded without the file.

    Args:
        args: the model's options.
        stacks: the encoder's loop and the decoder's.

    Returns:
        (sublayers,), the encoder's first; None where the first batch decides.

    Raises:
        ValueError: if the file cannot be read, is none, or belongs to another depth.
    """
    given = args.admin_profile
    if given is None:
        return None
    if isinstance(given, str):
        args.admin_profile = read_profile(given)
    counts = [len(admin.admins(stack)) for stack in stacks]
    if len(args.admin_profile) != sum(counts):
        raise ValueError(
            f"--admin-profile={given}: has {len(args.admin_profile)} sublayers, but the encoder has {counts[0]} and "
            f"the decoder {counts[1]}"
        )
    return torch.tensor(list(args.admin_profile))


def read_profile(path: str) -> list[float]:
    """The numbers of a file: the last of each line; the published code writes the sublayer's own number before it.

    Raises:
        ValueError: if it cannot be read or holds anything else.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--admin-profile={path}: cannot be read ({error})") from None
    return [_number(path, at, line) for at, line in enumerate(lines, start=1)]


def _number(path: str, at: int, line: str) -> float:
    try:
        *index, omega = map(float, line.split())
    except ValueError:
        index, omega = [], math.nan
    if len(index) > 1 or not 0 < omega < math.inf:
        raise ValueError(f"--admin-profile={path}: line {at} must be a positive number, or a sublayer's number and one")
    return omega
