"""Elastic depth in fairseq-train: the options, the model, and support in the trainer.

The options take effect when fairseq's trainer gets the model, not when the model is built, because a checkpoint is also
built at depths to which its training range does not apply.

Source: see :mod:`recurrence.elastic` and :mod:`fairseq_plugin.criterions.elastic`.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.distributed.legacy_distributed_data_parallel import LegacyDistributedDataParallel
from fairseq.models import distributed_fairseq_model
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from torch import nn

from fairseq_plugin.criterions.elastic import elastic_criterion
from fairseq_plugin.modules.options import ConfiguredModel, Options, option
from fairseq_plugin.repairs.replace import call_after, call_before, replace
from recurrence.depth import forget_safe
from recurrence.elastic import DISTRIBUTIONS, check_options, describe_late, idle, make_elastic, may_idle, stops
from recurrence.errors import FieldError
from recurrence.loop import Loop, named_loops

logger = logging.getLogger(__name__)


@dataclass
class DepthOptions(Options):
    """How many passes an update runs, and which of them have gradients."""

    depth_range: str | None = option(
        None,
        "each update draws how many passes run, MIN-MAX; MIN-MAX,MIN-MAX if encoder and decoder differ. Validation "
        "reports the loss at the smallest, the full (that of inference) and the largest depth",
    )
    depth_distribution: str | None = option(
        None,
        "how depths are drawn: uniform (default), or by the log-normal Poisson distribution of Huginn around the full "
        "depth",
        choices=DISTRIBUTIONS,
    )
    depth_apart: bool = option(
        False, "encoder and decoder draw their depths separately, so that they also work at depths that differ"
    )
    depth_warmup_updates: int | None = option(
        None,
        "number of updates over which the smallest depth that may be drawn (or that --pass-loss supervises) falls "
        "linearly from the full depth to its final value",
    )
    mixed_depth: bool = option(
        False,
        "train at two depths in every update, with the mean of their losses: the full depth, and the drawn one (or "
        "one run of each stored block, without --depth-range); the logged loss is that of the full depth",
    )
    pass_loss: float | None = option(
        None,
        "weight of the mean loss of the earlier passes at which a shallower model would end; the logged loss is that "
        "of the last pass only",
    )
    backprop_passes: int | None = option(
        None,
        "backpropagate only through the last N passes of each stack, so that memory does not grow with depth",
    )
    loop_after_updates: int | None = option(
        None,
        "late loops: run each stored block once until this update, then all passes. A checkpoint from before runs what "
        "it was trained at",
    )


OPTIONS = tuple(DepthOptions.known())


def check(args: Any, sides: int) -> None:
    """Checks the options before the model is built.

    Args:
        args: the model's options.
        sides: number of stacks.

    Raises:
        ValueError: naming the option, the value and the rule.
    """
    given = _given(args)
    if "depth_range" in given:
        _ranges(given["depth_range"], sides)
    if "depth_apart" in given and sides == 1:
        raise FieldError("depth_apart", True, "needs an encoder and a decoder")
    if "depth_apart" in given and "depth_range" not in given:
        raise FieldError("depth_apart", True, "needs {depth_range}", depth_range=None)
    check_options(given)


def _given(args: Any) -> dict[str, Any]:
    values = {name: getattr(args, name, None) for name in OPTIONS}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def _ranges(text: str, sides: int) -> list[tuple[int, int]]:
    """MIN and MAX of each side."""
    if not re.fullmatch(r"\d+-\d+" + (r"(,\d+-\d+)?" if sides == 2 else ""), text):
        also = ", or two of them for encoder and decoder" if sides == 2 else ""
        raise FieldError("depth_range", text, f"must be MIN-MAX, such as 1-6{also}")
    ends = [part.split("-") for part in text.split(",")]
    pairs = [(int(smallest), int(largest)) for smallest, largest in ends]
    return pairs if len(pairs) == sides else pairs * sides


class ElasticModel(ConfiguredModel):
    """A model whose loops may run at other depths in training.

    Attributes:
        elastic: the depth options that were given, by name.
        step, prefix_only: see :func:`recurrence.elastic.depths_of`.
        pass_loss: weight of the losses of earlier passes; 0 for none.
    """

    elastic: dict[str, Any] = {}
    step, prefix_only, pass_loss = 1, False, 0.0

    def loops_by_side(self) -> dict[str, Loop]:
        """The loops by side: "encoder", if there is one, and "decoder"."""
        raise TypeError(f"{type(self).__name__}: must define loops_by_side")

    def set_elastic(self, args: Any, step: int = 1, prefix_only: bool = False) -> None:
        """Stores the depth options until training starts."""
        self.elastic, self.step, self.prefix_only = _given(args), step, prefix_only

    def train_elastic(self, seed: int) -> None:
        """Makes training draw depths and truncate gradients according to the options.

        Raises:
            ValueError: naming the option, the value and the rule.
        """
        given, loops = dict(self.elastic), self.loops_by_side()
        self.pass_loss = given.pop("pass_loss", 0.0)
        text = given.pop("depth_range", None)
        ranges = [None] * len(loops) if text is None else _ranges(text, len(loops))
        streams = range(len(loops)) if given.pop("depth_apart", False) else [0] * len(loops)
        given |= dict(seed=seed, step=self.step, prefix_only=self.prefix_only)
        for (side, loop), depth_range, stream in zip(loops.items(), ranges, streams):
            with self.options.flags_in_errors(side), _naming_side(side):
                make_elastic(loop, depth_range, **given, stream=stream)
        late = given.get("loop_after_updates")
        if late and not any(loop.training_depth.loop_after for loop in loops.values()):
            raise ValueError(f"--loop-after-updates={late}: needs a block that runs again, but each runs once")
        decoder = loops["decoder"]
        if self.pass_loss and not stops(decoder, max(decoder.training_depth.depths)):
            raise ValueError(
                f"--pass-loss={self.pass_loss}: no earlier pass of the decoder is the end of a model of fewer "
                f"passes, in the order {' '.join(map(str, decoder.order))}"
            )

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq's trainer calls this before each update. Late loops begin here; the log says so."""
        loops = self.loops_by_side()
        late = {side: loop for side, loop in loops.items() if loop.training_depth.loop_after}
        before = [(loop.chosen, loop.training_depth.updates is None) for loop in late.values()]
        super().set_num_updates(num_updates)
        if before != [(loop.chosen, False) for loop in late.values()]:
            logger.info("update %d: %s", num_updates, describe_late(loops))


@contextmanager
def _naming_side(side: str) -> Iterator[None]:
    """Adds the side to an error message."""
    try:
        yield
    except FieldError as error:
        raise FieldError(error.field, error.value, f"{error.rule} ({side})", **error.others) from None


def prepare(
    trainer: Trainer, cfg: Any, task: FairseqTask, model: nn.Module, criterion: FairseqCriterion, *args, **kwargs
) -> None:
    """Applies the model's depth options, if it has any, to the model and the criterion.

    Raises:
        ValueError: naming the option, the value and the rule.
    """
    if not getattr(model, "elastic", None):
        return
    model.train_elastic(cfg.common.seed)
    warmup, updates = model.elastic.get("depth_warmup_updates", 0), cfg.optimization.max_update
    if 0 < updates <= warmup:
        logger.warning("--depth-warmup-updates=%d: the smallest depth is not trained in %d updates", warmup, updates)
    late = model.elastic.get("loop_after_updates", 0)
    if 0 < updates <= late:
        logger.warning("--loop-after-updates=%d: the loops do not begin in %d updates", late, updates)
    memory_efficient = cfg.common.memory_efficient_fp16 or cfg.common.memory_efficient_bf16
    for name in ("fp16", "bf16"):
        # Before late loops begin, passes have no momentum yet.
        kept = late and not getattr(cfg.optimizer, "weight_decay", 0)
        if getattr(cfg.common, name) and not memory_efficient and not kept and _may_skip_parameters(model):
            raise ValueError(
                f"--{name}: its optimizer moves and decays all parameters at every update, even those of passes that "
                f"did not run; must be --amp or --memory-efficient-{name}"
            )
    criterion.__class__ = elastic_criterion(type(criterion))


def _may_skip_parameters(model: ElasticModel) -> bool:
    """Whether some parameters get no gradient in updates with few passes."""
    return any(may_idle(loop) for loop in model.loops_by_side().values())


def support_elastic_training() -> None:
    """Makes fairseq's trainer and data parallelism support elastic models."""

    def find_unused(data_parallel: Callable) -> Callable:
        def DistributedDataParallel(module, *args, **kwargs):
            if isinstance(module, ElasticModel) and _may_skip_parameters(module):
                kwargs["find_unused_parameters"] = True
            return data_parallel(module, *args, **kwargs)

        return DistributedDataParallel

    call_before(Trainer, "__init__", prepare)
    call_after(Trainer, "load_checkpoint", _forget_safe_depths)
    replace(distributed_fairseq_model, "DistributedDataParallel", find_unused)
    call_after(LegacyDistributedDataParallel, "all_reduce_grads", _skip_idle)


def _forget_safe_depths(extra: dict[str, Any] | None, trainer: Trainer, *args, **kwargs) -> None:
    forget_safe(named_loops(trainer.get_model()).values())


def _skip_idle(reduced: None, parallel: LegacyDistributedDataParallel) -> None:
    model = parallel.module
    if isinstance(model, ElasticModel) and model.elastic and not parallel.accumulate_grads:
        for loop in model.loops_by_side().values():
            for parameter in idle(loop, loop.running):
                parameter.grad = None  # instead of zeros, to which an optimizer applies momentum and decay
