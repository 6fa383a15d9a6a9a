"""Admin in fairseq: profiled on the first training batch, or read from a file of the published code.

Source: Liu et al. (arXiv:2004.08249); Takase & Kiyono (arXiv:2104.06022), section 3.

Differs from the published code: a single command profiles and trains; the published code needs two, and the file that
its first one writes can be used here.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor, nn

from fairseq_plugin.elastic import at_depths
from fairseq_plugin.options import Options, option
from recurrence.errors import FieldError
from recurrence.loop import named_loops
from recurrence.papers import admin

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


def profile_at_first_update(model: FairseqEncoderDecoderModel) -> None:
    """Lets a model profile Admin's vectors before its first forward pass of training, unless a checkpoint has them.

    Encoder and decoder have `passes`; the buffer `profiled` of the model says whether the vectors have their values.
    """
    model.may_be_fresh = True  # so that the buffer is read once: reading it at every step would wait for the GPU
    model.register_forward_pre_hook(_profile_once, with_kwargs=True)


def _profile_once(model: nn.Module, inputs: tuple, options: dict) -> None:
    if model.training and model.may_be_fresh:
        if not model.profiled:
            _profile(model, lambda: model.forward(*inputs, **options))  # without this hook
        model.may_be_fresh = False  # not before: after an error, such as too little memory, the next batch is profiled


def _profile(model: FairseqEncoderDecoderModel, run: Callable[[], Any]) -> None:
    """Sets the omegas from one batch, by an extra run of all passes without gradients, with the same dropout.

    All workers run together, and use the profile of the first one.
    """
    stacks = list(named_loops(model).values())
    devices = [torch.cuda.current_device()] if next(model.parameters()).is_cuda else []
    at_full_depth = at_depths(model, {"encoder": None, "decoder": None})
    with torch.random.fork_rng(devices), at_full_depth, _padding_hidden(model.decoder):
        admin.profile(stacks, run)
    torch.clear_autocast_cache()  # older torch would reuse the casts made here without gradients
    scalars = admin.read(stacks)
    group = distributed_utils.get_data_parallel_group()
    if group is not None:
        distributed_utils.broadcast(scalars, src=0, group=group)
    set_profile(model, scalars)
    logger.info(f"Admin: profiled {len(scalars)} sublayers, omegas from {scalars.min():.3f} to {scalars.max():.3f}")


def set_profile(model: nn.Module, scalars: Tensor) -> None:
    """Sets the omegas of a model: one number per sublayer in order of execution, the encoder's first."""
    admin.write(named_loops(model).values(), scalars)
    model.profiled.fill_(1)


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


def given_profile(args, stacks: Sequence[nn.Module]) -> Tensor | None:
    """The numbers of `--admin-profile`, the encoder's first: (sublayers,). They replace the path in the options.

    None without the option, or if a checkpoint is built at another depth: its weights bring the omegas. Raises
    FieldError if the file is invalid or belongs to another depth.
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
