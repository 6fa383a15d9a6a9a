"""Elastic depth in fairseq-train: options, losses at other depths, and support in the trainer.

Training options take effect when fairseq's trainer gets the model, not when the model is built, because a checkpoint is
also built at depths for which the range of its training means nothing.

Source: see :mod:`recurrence.elastic`; a loss for every pass through one output layer: Deeply-Supervised Nets
(arXiv:1409.5185), for looped models as in Ouro (arXiv:2510.25741), here without its gate and pass weights.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.distributed.legacy_distributed_data_parallel import LegacyDistributedDataParallel
from fairseq.logging import metrics
from fairseq.models import distributed_fairseq_model
from fairseq.trainer import Trainer
from torch import Tensor, nn

from fairseq_plugin.hostfix.replace import replace
from fairseq_plugin.modules.options import ConfiguredModel, Options, option
from recurrence.elastic import DISTRIBUTIONS, at_depths, idle, make_elastic, may_idle, stops
from recurrence.errors import FieldError
from recurrence.loop import Loop


@dataclass
class DepthOptions(Options):
    """How many passes an update runs, and which of them have gradients."""

    depth_range: str | None = option(
        None,
        "each update draws how many passes run, MIN-MAX; MIN-MAX,MIN-MAX if encoder and decoder differ. Validation "
        "reports the loss at the smallest, the default and the largest depth",
    )
    depth_distribution: str | None = option(
        None,
        "how depths are drawn: uniform (default), or the log-normal Poisson distribution of Huginn around the default "
        "depth",
        choices=DISTRIBUTIONS,
    )
    pass_loss: float | None = option(
        None,
        "weight of the mean loss of the earlier passes at which a shorter model would end; the logged loss is that of "
        "the last pass only",
    )
    backprop_passes: int | None = option(
        None,
        "backpropagate through this many last passes of each stack only, so that memory does not grow with depth",
    )


OPTIONS = tuple(DepthOptions.known())


def check(args: Any, options: type[Options], sides: int) -> None:
    """Checks the options before the model is built.

    Args:
        args: the model's options.
        options: the family's options.
        sides: number of stacks.

    Raises:
        ValueError: naming the option, the value and the rule.
    """
    given = _given(args)
    if given and not issubclass(options, DepthOptions):
        name, arch = next(iter(given)), getattr(args, "arch", None) or getattr(args, "_name", None)
        rule = f"{arch} has no loop of which fewer passes would be a model"
        raise ValueError(f"--{name.replace('_', '-')}={given[name]}: {rule}")
    if "depth_range" in given:
        _ranges(given["depth_range"], sides)
    if "pass_loss" in given and not 0 < given["pass_loss"] < float("inf"):
        raise FieldError("pass_loss", given["pass_loss"], "must be > 0")
    if given.get("backprop_passes", 1) < 1:
        raise FieldError("backprop_passes", given["backprop_passes"], "must be >= 1")


def _given(args: Any) -> dict[str, Any]:
    values = {name: getattr(args, name, None) for name in OPTIONS}
    return {name: value for name, value in values.items() if value is not None}


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
        step, beyond: see :func:`recurrence.elastic.depths_of`.
        pass_loss: weight of the losses of earlier passes; 0 for none.
    """

    elastic: dict[str, Any] = {}
    step, beyond, pass_loss = 1, True, 0.0

    def loops(self) -> dict[str, Loop]:
        """The loops by side; the decoder's comes last."""
        decoder = self.decoder
        if hasattr(decoder, "stack"):
            return {"decoder": decoder.stack.loop}
        return {"encoder": self.encoder.loop, "decoder": decoder.loop}

    def set_elastic(self, args: Any, step: int = 1, beyond: bool = True) -> None:
        """Stores the depth options until training starts."""
        self.elastic, self.step, self.beyond = _given(args), step, beyond

    def train_elastic(self, seed: int) -> None:
        """Makes training draw depths and cut gradients as the options say.

        Raises:
            ValueError: naming the option, the value and the rule.
        """
        given, loops = dict(self.elastic), self.loops()
        self.pass_loss = given.pop("pass_loss", 0.0)
        text = given.pop("depth_range", None)
        ranges = [None] * len(loops) if text is None else _ranges(text, len(loops))
        for (side, loop), depth_range in zip(loops.items(), ranges):
            with self.options.named(side), _of(side):
                make_elastic(loop, depth_range, **given, seed=seed, step=self.step, beyond=self.beyond)
        if self.pass_loss:
            most = loop.passes if loop.draw is None else max(loop.draw.depths)
            if not stops(loop, most):
                raise ValueError(
                    f"--pass-loss={self.pass_loss}: no earlier pass of the decoder is the end of a model of fewer "
                    f"passes, in the order {' '.join(map(str, loop.order))}"
                )


@contextmanager
def _of(side: str) -> Iterator[None]:
    """Adds the side to an error message."""
    try:
        yield
    except FieldError as error:
        raise FieldError(error.field, error.value, f"{error.rule} ({side})", **error.others) from None


def prepare(cfg: Any, model: nn.Module, criterion: FairseqCriterion) -> None:
    """Makes training elastic if the model's options say so.

    Raises:
        ValueError: naming the option, the value and the rule.
    """
    if not getattr(model, "elastic", None):
        return
    model.train_elastic(cfg.common.seed)
    whole = cfg.common.memory_efficient_fp16 or cfg.common.memory_efficient_bf16
    for name in ("fp16", "bf16"):
        if getattr(cfg.common, name) and not whole and any(map(may_idle, model.loops().values())):
            raise ValueError(
                f"--{name}: its optimizer moves and decays all parameters at every update, those of passes that did "
                f"not run too; must be --amp or --memory-efficient-{name}"
            )
    criterion.__class__ = elastic_criterion(type(criterion))


def elastic_criterion(kind: type[FairseqCriterion]) -> type[FairseqCriterion]:
    """A criterion that adds the losses of earlier passes in training, and of other depths in validation.

    Args:
        kind: the criterion that computes each loss.
    """

    class Elastic(kind):
        def forward(self, model, sample, reduce: bool = True):
            if not model.training:
                return self._at_all_depths(model, sample, reduce)
            if not model.pass_loss:
                return super().forward(model, sample, reduce)
            loop, found = list(model.loops().values())[-1], []
            with loop.register_forward_hook(lambda module, inputs, output: found.append(output[1])):
                loss, sample_size, log = super().forward(model, sample, reduce)
            states = [found[-1][depth - 1] for depth in stops(loop, len(loop.running))]
            answers = (_Answered(model, model.decoder.output_layer(model.decoder.finish(state))) for state in states)
            earlier = [super(Elastic, self).forward(answer, sample, reduce)[0] for answer in answers]
            mean = sum(earlier) / len(earlier) if earlier else 0
            return loss + model.pass_loss * mean, sample_size, log

        def _at_all_depths(self, model, sample, reduce: bool):
            loss, sample_size, log = super().forward(model, sample, reduce)
            found = dict(log)
            for name, depths in reported_depths(model).items():
                other = log
                if any(depth != loop.passes for loop, depth in depths.items()):
                    with at_depths(depths):
                        other = super().forward(model, sample, reduce)[2]
                found.update({f"{name}/{key}": value for key, value in other.items()})
            return loss, sample_size, found

        @classmethod
        def reduce_metrics(cls, logging_outputs) -> None:
            super().reduce_metrics(logging_outputs)
            names = {key.split("/")[0] for log in logging_outputs for key in log if "/" in key}
            for name in sorted(names):
                start = f"{name}/"
                logs = [{k[len(start) :]: v for k, v in log.items() if k.startswith(start)} for log in logging_outputs]
                with metrics.aggregate(new_root=True) as found:
                    super().reduce_metrics(logs)
                weight = sum(log.get("sample_size", 0) for log in logs)
                metrics.log_scalar(f"{name}_loss", found["loss"].avg, weight, round=3)

    Elastic.__name__ = Elastic.__qualname__ = kind.__name__
    return Elastic


def reported_depths(model: nn.Module) -> dict[str, dict[Loop, int]]:
    """The depths at which validation reports the loss, by name."""
    loops = list(model.loops().values())
    if any(loop.draw is None for loop in loops):
        return {}
    return {
        "smallest_depth": {loop: loop.draw.depths[0] for loop in loops},
        "default_depth": {loop: loop.passes for loop in loops},
        "largest_depth": {loop: loop.draw.depths[-1] for loop in loops},
    }


class _Answered:
    """A model whose output is given; everything else is delegated."""

    def __init__(self, model: nn.Module, output: Tensor):
        self.model, self.output = model, output

    def __call__(self, **inputs: Any) -> tuple[Tensor, dict]:
        return self.output, {"attn": [None]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def install() -> None:
    """Adds elastic models to fairseq's trainer and data parallelism."""

    def prepare_elastic(initialise: Callable) -> Callable:
        def __init__(self, cfg, task, model, criterion, *args, **kwargs):
            prepare(cfg, model, criterion)
            initialise(self, cfg, task, model, criterion, *args, **kwargs)

        return __init__

    def find_idle(data_parallel: Callable) -> Callable:
        def DistributedDataParallel(module, *args, **kwargs):
            if isinstance(module, ElasticModel) and any(map(may_idle, module.loops().values())):
                kwargs["find_unused_parameters"] = True
            return data_parallel(module, *args, **kwargs)

        return DistributedDataParallel

    def leave_idle(reduce_all: Callable) -> Callable:
        def all_reduce_grads(self) -> None:
            reduce_all(self)
            if isinstance(self.module, ElasticModel) and self.module.elastic and not self.accumulate_grads:
                for loop in self.module.loops().values():
                    for parameter in idle(loop, len(loop.running)):
                        parameter.grad = None  # instead of zeros, to which an optimizer applies momentum and decay

        return all_reduce_grads

    replace(Trainer, "__init__", prepare_elastic)
    replace(distributed_fairseq_model, "DistributedDataParallel", find_idle)
    replace(LegacyDistributedDataParallel, "all_reduce_grads", leave_idle)
