"""Elastic depth in fairseq-train: `--criterion elastic_cross_entropy`, and what it needs of a model.

Source: see :mod:`recurrence.elastic`.
"""

import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import FairseqDataclass
from fairseq.distributed.utils import get_global_world_size
from fairseq.logging import metrics
from omegaconf import II
from torch import Tensor, nn

from fairseq_plugin.options import DEPTH_OPTIONS, ELASTIC, SIDES, flag, option
from recurrence import elastic as core
from recurrence.analysis.record import recorded_states
from recurrence.elastic import TrainingDepth
from recurrence.errors import FieldError, shown
from recurrence.loop import Loop, named_loops
from recurrence.papers.kausik import RecurrentStack

logger = logging.getLogger(__name__)

SKIPS_IDLE = ("c10d", "pytorch_ddp")  # backends that leave a gradient None if no rank has one
FILLS_ZEROS = ("no_c10d", "legacy_ddp")


@dataclass
class DepthConfig(FairseqDataclass):
    """How many passes an update runs, and which of them have a loss."""

    depth_range: str = option(
        "",
        "each update draws how many passes run, MIN-MAX; MIN-MAX,MIN-MAX if encoder and decoder differ. Validation "
        "reports the loss at the smallest, the full (that of inference) and the largest depth",
    )
    depth_warmup_updates: int = option(
        0,
        "number of updates over which the smallest depth that may be drawn (or that --pass-loss supervises) falls "
        "linearly from the full depth to its final value",
    )
    mixed_depth: bool = option(
        False,
        "train at two depths in every update, with the mean of their losses: the full depth, and the drawn one (or "
        "one run of each stored block, without --depth-range); the logged loss is that of the full depth",
    )
    pass_loss: float = option(
        0.0,
        "weight of the mean loss of the earlier passes at which a shallower model would end; the logged loss is that "
        "of the last pass only",
    )


@dataclass
class ElasticConfig(DepthConfig, LabelSmoothedCrossEntropyCriterionConfig):
    """The options of the criterion, and what it must know of other groups."""

    seed: int = II("common.seed")
    fp16: bool = II("common.fp16")
    bf16: bool = II("common.bf16")
    memory_efficient_fp16: bool = II("common.memory_efficient_fp16")
    memory_efficient_bf16: bool = II("common.memory_efficient_bf16")
    ddp_backend: str = II("distributed_training.ddp_backend")
    find_unused_parameters: bool = II("distributed_training.find_unused_parameters")
    max_update: int = II("optimization.max_update")


def loops_by_side(model: nn.Module) -> dict[str, Loop]:
    """The loops by side: "encoder", if there is one, and "decoder"."""
    sides = {side: getattr(model, side) for side in SIDES if hasattr(model, side)}
    return {side: loop for side, coder in sides.items() for loop in named_loops(coder).values()}


@contextmanager
def at_depths(model: nn.Module, depths: Mapping[str, int | None]) -> Iterator[None]:
    """Within the context, encoder and decoder run these numbers of passes, by side; None for all."""
    before = {side: getattr(model, side).passes for side in depths}
    try:
        for side, depth in depths.items():
            getattr(model, side).passes = depth
        yield
    finally:
        for side, depth in before.items():
            getattr(model, side).passes = depth


@register_criterion(ELASTIC, dataclass=ElasticConfig)
class ElasticCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """fairseq's label_smoothed_cross_entropy at drawn depths, at two depths or at every pass; see the options.

    Also for an adaptive softmax, without label smoothing. Validation in fairseq-train also logs the loss at the
    smallest, the full and the largest depth.

    Raises:
        ValueError: naming the option, the value and the rule; of those that depend on the model, in the first update.
    """

    def __init__(self, task, cfg: ElasticConfig):
        super().__init__(task, cfg.sentence_avg, cfg.label_smoothing, cfg.ignore_prefix_size, cfg.report_accuracy)
        self.cfg = cfg
        self.given = {name: getattr(cfg, name) for name in DEPTH_OPTIONS if getattr(cfg, name)}
        self.depths: dict[str, TrainingDepth] | None = None
        with flags_in_errors():
            core.check_options(self.given)

    def forward(self, model, sample, reduce: bool = True):
        # fairseq-validate may run a model at a depth to which the options do not apply.
        if not self.given or not (model.training or self.depths):
            if model.training:
                self._check_trainer(idle=False, adaptive=_adapts(model))
            return super().forward(model, sample, reduce)
        if self.depths is None:
            self.depths = self.training_depths(model)
        if not model.training:
            return self._at_reported_depths(model, sample, reduce)
        if "pass_loss" in self.given:
            return self._with_pass_loss(model, sample, reduce)
        branches = core.branches(list(self.depths.values()), model.num_updates)
        losses, sample_sizes, logs = zip(*(self._at(depths, model, sample, reduce) for depths in branches))
        return sum(losses) / len(losses), sample_sizes[0], logs[0]

    def _at(self, depths, model, sample, reduce: bool):
        """What fairseq's criterion gives with these numbers of passes."""
        with at_depths(model, dict(zip(self.depths, depths))):
            return super().forward(model, sample, reduce)

    def _with_pass_loss(self, model, sample, reduce: bool):
        """Adds `pass_loss` times the mean loss of the earlier passes; the log has the loss of the last pass."""
        decoder, update, earlier = model.decoder, model.num_updates, []
        with recorded_states(decoder) as found:
            drawn = [depth.depth(update) for depth in self.depths.values()]
            loss, sample_size, log = self._at(drawn, model, sample, reduce)
        (states,) = found.values()
        for passes in self.depths["decoder"].stops(update):
            logits = decoder.output_layer(decoder.finish(states[passes - 1]))
            with at_depths(model, {"decoder": passes}):
                earlier.append(self.compute_loss(model, (logits, {}), sample, reduce)[0])
        mean = sum(earlier) / len(earlier) if earlier else 0
        return loss + self.cfg.pass_loss * mean, sample_size, log

    def _at_reported_depths(self, model, sample, reduce: bool):
        """The loss at full depth; its log also has the loss at each reported depth."""
        loss, sample_size, log = super().forward(model, sample, reduce)
        reported = self.reported_depths()
        losses = {
            name: loss if depths == reported["default_depth"] else self._at(depths, model, sample, reduce)[0]
            for name, depths in reported.items()
        }
        return loss, sample_size, {**log, **{f"{name}_loss": found.data for name, found in losses.items()}}

    def reported_depths(self) -> dict[str, list[int]]:
        """The depths of each loop at which validation reports the loss, by name; none if training has only one."""
        smallest, largest = map(list, zip(*(depth.ends for depth in self.depths.values())))
        if smallest == largest:
            return {}
        full = [len(depth.order) for depth in self.depths.values()]
        return {"smallest_depth": smallest, "default_depth": full, "largest_depth": largest}

    def compute_loss(self, model, net_output, sample, reduce: bool = True) -> tuple[Tensor, Tensor]:
        """The smoothed loss and the plain one; both the same with an adaptive softmax."""
        softmax = getattr(getattr(model, "decoder", None), "adaptive_softmax", None)
        if softmax is None:
            return super().compute_loss(model, net_output, sample, reduce)
        if self.eps or self.ignore_prefix_size:
            name = "label_smoothing" if self.eps else "ignore_prefix_size"
            raise ValueError(f"{flag(name)}={getattr(self.cfg, name)}: conflicts with an adaptive softmax")
        logits, targets = softmax(net_output[0], model.get_targets(sample, net_output).flatten())
        loss = 0
        for band, (scores, symbols) in enumerate(zip(logits, targets)):
            if symbols is not None:  # numbered anew in each band; the padding is in the first
                padding = dict(ignore_index=self.padding_idx) if band == 0 else {}
                # A sum in half precision would overflow.
                scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
                loss = loss + F.cross_entropy(scores, symbols, reduction="sum", **padding)
        return loss, loss

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Also logs the loss at each reported depth, as `DEPTH_loss`."""
        super().reduce_metrics(logging_outputs)
        size = sum(log.get("sample_size", 0) for log in logging_outputs)
        for name in sorted({name for log in logging_outputs for name in log if name.endswith("_depth_loss")}):
            loss = sum(log.get(name, 0) for log in logging_outputs)
            metrics.log_scalar(name, loss / size / math.log(2), size, round=3)

    def training_depths(self, model: nn.Module) -> dict[str, TrainingDepth]:
        """The depth of each loop in training, by side.

        Raises:
            ValueError: if the model has no loops, or an option conflicts with them or with the trainer.
        """
        loops = loops_by_side(model)
        name, value = next(iter(self.given.items()))
        if not loops or isinstance(getattr(model.decoder, "stack", None), RecurrentStack):
            raise ValueError(f"{shown_flag(name, value)}: needs a model that loops over depth")
        text = self.given.get("depth_range")
        found = {}
        with flags_in_errors():
            ranges = dict.fromkeys(loops) if text is None else dict(zip(loops, depth_ranges(text, len(loops))))
            for side, loop in loops.items():
                given = {**self.given, "depth_range": ranges[side]}
                if side == "encoder":
                    given.pop("pass_loss", None)
                try:
                    found[side] = core.training_depth(loop.order, **given, seed=self.cfg.seed, **model.depth_rules)
                except FieldError as error:
                    raise FieldError(error.field, error.value, f"{error.rule} ({side})", **error.others) from None
        idle = any(core.may_idle(loops[side], depth) for side, depth in found.items())
        self._check_trainer(idle, _adapts(model))
        for side, depth in found.items():
            if not depth.trains_full:
                rule = f"no update runs all {len(depth.order)} passes of the {side}, as validation and inference do"
                remedy = "" if "pass_loss" in self.given else "; --mixed-depth would"
                logger.warning("%s: %s%s", shown_flag("depth_range", text), rule, remedy)
        updates, warmup = self.cfg.max_update, self.given.get("depth_warmup_updates", 0)
        if 0 < updates <= warmup:
            rule = f"not reached within the {updates} updates of this training"
            logger.warning("%s: %s", shown_flag("depth_warmup_updates", warmup), rule)
        return found

    def _check_trainer(self, idle: bool, adaptive: bool) -> None:
        """Raises ValueError if the trainer cannot leave parameters without a gradient as they are.

        `idle`: those of passes that did not run; `adaptive`: bands of an adaptive softmax, which may move.
        """
        cfg = self.cfg
        for name in ("fp16", "bf16"):
            if idle and getattr(cfg, name) and not (cfg.memory_efficient_fp16 or cfg.memory_efficient_bf16):
                raise ValueError(
                    f"--{name}: its optimizer moves and decays all parameters at every update, even those of passes "
                    "that did not run; must be --amp"
                )
        if get_global_world_size() == 1:
            return
        if adaptive and idle:
            rule = "in several processes, none fits an adaptive softmax and passes that own parameters but do not run"
            raise ValueError(f"--ddp-backend={cfg.ddp_backend}: {rule}; must be one process")
        if adaptive and cfg.ddp_backend not in FILLS_ZEROS:
            rule = "must be legacy_ddp with an adaptive softmax, some bands of which may have no target"
            raise ValueError(f"--ddp-backend={cfg.ddp_backend}: {rule}")
        if idle and cfg.ddp_backend not in SKIPS_IDLE:
            rule = "gives zero gradients to passes that did not run, so that momentum moves their parameters"
            raise ValueError(f"--ddp-backend={cfg.ddp_backend}: {rule}; must be pytorch_ddp")
        if cfg.mixed_depth and (idle or cfg.find_unused_parameters):
            raise ValueError("--mixed-depth: its two runs of the model conflict with --find-unused-parameters")
        if idle and not cfg.find_unused_parameters:
            rule = "must be given in several processes, because parameters of passes that do not run have no gradient"
            raise ValueError(f"--find-unused-parameters: {rule}")


def _adapts(model: nn.Module) -> bool:
    """Whether the output layer is an adaptive softmax."""
    return getattr(getattr(model, "decoder", None), "adaptive_softmax", None) is not None


def depth_ranges(text: str, sides: int) -> list[tuple[int, int]]:
    """MIN and MAX of each side, of a `--depth-range`. Raises FieldError if it is none."""
    if not re.fullmatch(r"\d+-\d+" + (r"(,\d+-\d+)?" if sides == 2 else ""), text):
        also = ", or two of them for encoder and decoder" if sides == 2 else ""
        raise FieldError("depth_range", text, f"must be MIN-MAX, such as 1-6{also}")
    ends = [part.split("-") for part in text.split(",")]
    pairs = [(int(smallest), int(largest)) for smallest, largest in ends]
    return pairs if len(pairs) == sides else pairs * sides


def trained_with(cfg: Any) -> list[str]:
    """The options of depth in the configuration of a checkpoint, as flags; earlier versions had them in the model's."""
    groups = [group for group in (cfg.criterion, cfg.model) if group is not None]
    given = {name: value for name in DEPTH_OPTIONS for group in groups if (value := getattr(group, name, None))}
    return [shown_flag(name, value) for name, value in given.items()]


def shown_flag(name: str, value: Any) -> str:
    """An option as a user writes it: `--depth-range=1-6`, `--mixed-depth`."""
    return shown(flag(name), None if value is True else value)


@contextmanager
def flags_in_errors() -> Iterator[None]:
    """Turns `depth_range=4: ...` into `--depth-range=4: ...`."""
    try:
        yield
    except FieldError as error:
        raise ValueError(error.message(shown_flag)) from None
