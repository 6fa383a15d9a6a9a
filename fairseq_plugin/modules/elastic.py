"""Elastic depth in fairseq-train: the options, the model, its losses, and support in the trainer.

The options take effect when fairseq's trainer gets the model, not when the model is built, because a checkpoint is also
built at depths to which its training range does not apply.

Source: see :mod:`recurrence.elastic`. A loss for every pass through one output layer: Deeply-Supervised Nets
(arXiv:1409.5185), for looped models as in Ouro (arXiv:2510.25741), here without its gate and pass weights.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.distributed.legacy_distributed_data_parallel import LegacyDistributedDataParallel
from fairseq.logging import metrics
from fairseq.models import distributed_fairseq_model
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from torch import Tensor, nn

from fairseq_plugin.modules.hooks import call_after, call_before, replace
from fairseq_plugin.modules.options import ConfiguredModel, Options, option
from recurrence import elastic as core
from recurrence.analysis.record import recorded_states
from recurrence.errors import FieldError
from recurrence.loop import Loop, named_loops

logger = logging.getLogger(__name__)


@dataclass
class DepthOptions(Options):
    """How many passes an update runs, and which of them have a loss."""

    depth_range: str | None = option(
        None,
        "each update draws how many passes run, MIN-MAX; MIN-MAX,MIN-MAX if encoder and decoder differ. Validation "
        "reports the loss at the smallest, the full (that of inference) and the largest depth",
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
    loop_after_updates: int | None = option(
        None,
        "late loops: run each stored block once until this update, then all passes. A checkpoint from before runs what "
        "it was trained at",
    )


OPTIONS = tuple(DepthOptions.known())


def check(args: Any, sides: int) -> None:
    """Checks the options of a model of one or two stacks before it is built.

    Raises:
        FieldError: naming the option, the value and the rule.
    """
    given = _given(args)
    if "depth_range" in given:
        _ranges(given["depth_range"], sides)
    if "depth_apart" in given and sides == 1:
        raise FieldError("depth_apart", True, "needs an encoder and a decoder")
    if "depth_apart" in given and "depth_range" not in given:
        raise FieldError("depth_apart", True, "needs {depth_range}")
    core.check_options(given)


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
        return {name.partition(".")[0]: loop for name, loop in named_loops(self).items()}

    def set_loops(self, args: Any, step: int = 1, prefix_only: bool = False) -> None:
        """Sets what training recomputes and compiles, and stores the depth options until it starts."""
        for loop in self.loops_by_side().values():
            loop.checkpointing = args.checkpoint_activations
            if args.compile:
                loop.compile_blocks(backend=args.compile)
        self.elastic, self.step, self.prefix_only = _given(args), step, prefix_only

    def train_elastic(self, seed: int) -> None:
        """Makes training draw depths according to the options.

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
            with self.options.flags_in_errors(side):
                try:
                    core.make_elastic(loop, depth_range, **given, stream=stream)
                except FieldError as error:
                    raise FieldError(error.field, error.value, f"{error.rule} ({side})", **error.others) from None
        with self.options.flags_in_errors():
            core.check_effects(list(loops.values()), given.get("loop_after_updates", 0), self.pass_loss)

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq's trainer calls this before each update. Late loops begin here; the log says so.

        So do those of a checkpoint from before its loops began, if this training has none.
        """
        loops = self.loops_by_side()
        late = {side: loop for side, loop in loops.items() if loop.training_depth.loop_after or loop.chosen}
        before = [(loop.chosen, loop.training_depth.updates is None) for loop in late.values()]
        super().set_num_updates(num_updates)
        if before != [(loop.chosen, False) for loop in late.values()]:
            logger.info("update %d: %s", num_updates, core.describe_late(loops))


def elastic_criterion(kind: type[FairseqCriterion]) -> type[FairseqCriterion]:
    """The class of a criterion with the methods of :class:`ElasticCriterion` before its own."""
    about = {"__module__": kind.__module__}  # it is whose the criterion is
    return type(kind.__name__, (ElasticCriterion, kind), about)


class ElasticCriterion(FairseqCriterion):
    """Adds the losses of other depths and earlier passes in training, and logs those of other depths in validation.

    The class that follows in the method resolution order computes each loss.
    """

    def forward(self, model, sample, reduce: bool = True):
        if not model.training:
            return self._at_reported_depths(model, sample, reduce)
        if model.pass_loss:
            return self._with_pass_loss(model, sample, reduce)
        return self._at_trained_depths(model, sample, reduce)

    def _at_trained_depths(self, model, sample, reduce: bool):
        """The mean loss of the depths that this update trains; the log is that of the full one at mixed depth."""
        found = []
        for depths in core.branches(model.loops_by_side().values()):
            with core.at_depths(depths):
                found.append(super().forward(model, sample, reduce))
        losses, sample_sizes, logs = zip(*found)
        return sum(losses) / len(losses), sample_sizes[0], logs[0]

    def _with_pass_loss(self, model, sample, reduce: bool):
        """Adds `pass_loss` times the mean loss of the earlier passes; the log has the loss of the last pass."""
        loop = model.loops_by_side()["decoder"]
        with recorded_states(loop) as found:
            loss, sample_size, log = super().forward(model, sample, reduce)
        (states,), earlier = found.values(), []
        for passes in core.stops(loop, len(loop.running), loop.training_depth.smallest, model.step):
            logits = model.decoder.output_layer(model.decoder.finish(states[passes - 1]))
            earlier.append(super().forward(_GivenOutput(model, logits, passes), sample, reduce)[0])
        mean = sum(earlier) / len(earlier) if earlier else 0
        return loss + model.pass_loss * mean, sample_size, log

    def _at_reported_depths(self, model, sample, reduce: bool):
        """The loss at full depth; its log also has the values at each reported depth, as `DEPTH/KEY`."""
        loss, sample_size, log = super().forward(model, sample, reduce)
        all_logs = dict(log)
        for name, depths in reported_depths(model).items():
            depth_log = log
            if any(depth != loop.passes for loop, depth in depths.items()):
                with core.at_depths(depths):
                    depth_log = super().forward(model, sample, reduce)[2]
            all_logs.update({f"{name}/{key}": value for key, value in depth_log.items()})
        return loss, sample_size, all_logs

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Also logs the loss at each reported depth, as `DEPTH_loss`."""
        super().reduce_metrics(logging_outputs)
        names = {key.split("/")[0] for log in logging_outputs for key in log if "/" in key}
        for name in sorted(names):
            start = f"{name}/"
            logs = [
                {key.removeprefix(start): value for key, value in log.items() if key.startswith(start)}
                for log in logging_outputs
            ]
            with metrics.aggregate(new_root=True) as found:
                super().reduce_metrics(logs)
            weight = sum(log.get("sample_size", 0) for log in logs)
            metrics.log_scalar(f"{name}_loss", found["loss"].avg, weight, round=3)


def reported_depths(model: nn.Module) -> dict[str, dict[Loop, int]]:
    """The depths at which validation reports the loss, by name."""
    ends = {loop: core.trained_depths(loop) for loop in model.loops_by_side().values()}
    if all(smallest == largest for smallest, largest in ends.values()):
        return {}
    return {
        "smallest_depth": {loop: smallest for loop, (smallest, _) in ends.items()},
        "default_depth": {loop: loop.passes for loop in ends},
        "largest_depth": {loop: largest for loop, (_, largest) in ends.items()},
    }


class _GivenOutput:
    """A model that returns given logits (B, T, vocabulary) of so many passes; the rest is delegated to the real one."""

    def __init__(self, model: nn.Module, logits: Tensor, passes: int):
        self.model, self.logits, self.passes = model, logits, passes

    def __call__(self, **inputs: Any) -> tuple[Tensor, dict]:
        return self.logits, {"attn": [None], "passes": self.passes}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


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
    updates, late = cfg.optimization.max_update, "loop_after_updates" in model.elastic
    for name in ("depth_warmup_updates", "loop_after_updates"):
        number = model.elastic.get(name, 0)
        if 0 < updates <= number:
            flag = name.replace("_", "-")
            logger.warning("--%s=%d: not reached within the %d updates of this training", flag, number, updates)
    # Before late loops begin, passes have no momentum yet.
    kept = late and not getattr(cfg.optimizer, "weight_decay", 0)
    kept = kept or cfg.common.memory_efficient_fp16 or cfg.common.memory_efficient_bf16
    for name in ("fp16", "bf16"):
        if getattr(cfg.common, name) and not kept and _may_skip_parameters(model):
            raise ValueError(
                f"--{name}: its optimizer moves and decays all parameters at every update, even those of passes that "
                f"did not run; must be --amp or --memory-efficient-{name}"
            )
    criterion.__class__ = elastic_criterion(type(criterion))


def _may_skip_parameters(model: ElasticModel) -> bool:
    """Whether some parameters get no gradient in updates with few passes."""
    return any(core.may_idle(loop) for loop in model.loops_by_side().values())


def support_elastic_training() -> None:
    """Makes fairseq's trainer and data parallelism support elastic models."""
    call_before(Trainer, "__init__", prepare)
    replace(distributed_fairseq_model, "DistributedDataParallel", _find_unused)
    call_after(LegacyDistributedDataParallel, "all_reduce_grads", _skip_idle)


def _find_unused(data_parallel: Callable, module: nn.Module, *args, **kwargs) -> nn.Module:
    if isinstance(module, ElasticModel) and _may_skip_parameters(module):
        kwargs["find_unused_parameters"] = True
    return data_parallel(module, *args, **kwargs)


def _skip_idle(reduced: None, parallel: LegacyDistributedDataParallel) -> None:
    model = parallel.module
    if isinstance(model, ElasticModel) and model.elastic and not parallel.accumulate_grads:
        for loop in model.loops_by_side().values():
            for parameter in core.idle(loop, loop.running):
                parameter.grad = None  # instead of zeros, to which an optimizer applies momentum and decay
