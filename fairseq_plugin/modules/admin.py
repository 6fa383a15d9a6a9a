"""Admin in fairseq: profiled on the first training batch, or read from a file of the published code.

Source: Liu et al. (arXiv:2004.08249); Takase & Kiyono (arXiv:2104.06022), section 3.

Differs from the published code: a single command profiles and trains; the published code needs two, and the file that
its first one writes can be used here.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor, nn

from fairseq_plugin.modules.elastic import at_depths
from fairseq_plugin.modules.options import Options, option
from recurrence import admin
from recurrence.errors import FieldError
from recurrence.loop import named_loops

logger = logging.getLogger("fairseq_plugin.admin")


@dataclass
class AdminOptions(Options):
    """The initialisation of the residual sums."""

    init: str = option(
        "default",
        "admin: residual sums f(x) + omega x, with one vector omega per sublayer and pass, initialised from the first "
        "training batch (post-norm only)",
        choices=("default", "admin"),
    )
    admin_profile: Any = option(
        None,
        "with --init admin: read initial omegas from this file, one sublayer per line in order of execution (the "
        "published code's profile.ratio.init)",
        where={"init": ("admin",)},
    )


class ProfiledModel(FairseqEncoderDecoderModel):
    """An encoder-decoder that profiles Admin's vectors, if it has any, before the first forward pass of training.

    It runs the batch once more without gradients, with the same dropout. All workers use the profile of the first one,
    and the checkpoint stores it.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module):
        super().__init__(encoder, decoder)
        # Not a bool, because fairseq's moving average multiplies every entry of a state dict.
        self.register_buffer("profiled", torch.zeros(()) if admin.admins(self) else None)
        # Read the buffer once: reading it at every step would wait for the GPU.
        self.may_be_fresh = self.profiled is not None

    @property
    def stacks(self) -> list[nn.Module]:
        return list(named_loops(self).values())

    def profile(self, *inputs: Tensor, **options) -> None:
        """Sets the omegas of a new model from one batch, as forward gets it; called on all workers together."""
        forward: Callable = super().forward
        devices = [torch.cuda.current_device()] if inputs[0].is_cuda else []
        at_full_depth = at_depths(self, {"encoder": None, "decoder": None})
        with torch.random.fork_rng(devices), at_full_depth, _padding_hidden(self.decoder):
            admin.profile(self.stacks, lambda: forward(*inputs, **options))
        torch.clear_autocast_cache()  # older torch would reuse the casts made here without gradients
        scalars = admin.read(self.stacks)
        group = distributed_utils.get_data_parallel_group()
        if group is not None:
            distributed_utils.broadcast(scalars, src=0, group=group)
        self.set_profile(scalars)
        logger.info(f"Admin: profiled {len(scalars)} sublayers, omegas from {scalars.min():.3f} to {scalars.max():.3f}")

    def set_profile(self, scalars: Tensor) -> None:
        """Sets the omegas: one number per sublayer in order of execution, encoder first."""
        admin.write(self.stacks, scalars)
        self.profiled.fill_(1)


@contextmanager
def _padding_hidden(decoder: nn.Module) -> Iterator[None]:
    """Within the context, the decoder treats padding after a text as in evaluation; its layers go on training.

    In training, what it computes at padding has no effect, except on statistics.
    """
    before, decoder.training = decoder.training, False
    try:
        yield
    finally:
        decoder.training = before


def given_profile(args, stacks: list[nn.Module]) -> Tensor | None:
    """The numbers of `--admin-profile`, the encoder's first: (sublayers,). They replace the path in the options.

    None without the option, or if a checkpoint is built at another depth than the trained one, for whose passes the
    weights have omegas. Raises FieldError if the file is invalid or belongs to another depth.
    """
    given = args.admin_profile
    if given is None:
        return None
    if isinstance(given, str):
        args.admin_profile = read_profile(given)
    counts = [len(admin.admins(stack)) for stack in stacks]
    if len(args.admin_profile) != sum(counts):
        if not isinstance(given, str):
            return None
        rule = f"has {len(args.admin_profile)} sublayers, but the encoder has {counts[0]} and the decoder {counts[1]}"
        raise FieldError("admin_profile", given, rule)
    return torch.tensor(list(args.admin_profile))


def read_profile(path: str) -> list[float]:
    """The last number of each line of a file; the published code writes the sublayer's index before it.

    Raises FieldError if the file cannot be read or contains anything else.
    """
    try:
        omegas = np.loadtxt(path, ndmin=2)[:, -1]
    except (OSError, ValueError, IndexError) as error:
        raise FieldError("admin_profile", path, f"cannot be read ({error})") from None
    if not (omegas > 0).all() or np.isinf(omegas).any():
        raise FieldError("admin_profile", path, "each line must end with a positive number")
    return omegas.tolist()
