"""Any criterion of fairseq with the losses of other depths, for models with elastic depth.

Source: a loss for every pass through one output layer: Deeply-Supervised Nets (arXiv:1409.5185), for looped models as
in Ouro (arXiv:2510.25741), here without its gate and pass weights.
"""

from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics
from torch import Tensor, nn

from recurrence.elastic import at_depths, branches, stops, trained_depths
from recurrence.loop import Loop


def elastic_criterion(kind: type[FairseqCriterion]) -> type[FairseqCriterion]:
    """The class of a criterion with the methods of :class:`ElasticCriterion` before its own."""
    return type(kind.__name__, (ElasticCriterion, kind), {})


class ElasticCriterion(FairseqCriterion):
    """Adds the losses of other depths and earlier passes in training, and logs those of other depths in validation.

    The class that follows in the method resolution order computes each loss.
    """

    def forward(self, model, sample, reduce: bool = True):
        """As any criterion of fairseq: the loss, the sample size, and the log."""
        if not model.training:
            return self._at_reported_depths(model, sample, reduce)
        if model.pass_loss:
            return self._with_pass_loss(model, sample, reduce)
        return self._at_trained_depths(model, sample, reduce)

    def _at_trained_depths(self, model, sample, reduce: bool):
        """The mean loss of the depths that this update trains; the log is that of the full one at mixed depth."""
        found = []
        for depths in branches(model.loops_by_side().values()):
            with at_depths(depths):
                found.append(super().forward(model, sample, reduce))
        losses, sample_sizes, logs = zip(*found)
        return sum(losses) / len(losses), sample_sizes[0], logs[0]

    def _with_pass_loss(self, model, sample, reduce: bool):
        """Adds `pass_loss` times the mean loss of the earlier passes; the log has the loss of the last pass."""
        loop = model.loops_by_side()["decoder"]
        states: list[Tensor] = []

        def ask(module: Loop, inputs: tuple, options: dict) -> tuple[tuple, dict]:
            states.clear()
            return inputs, {**options, "states": states}

        with loop.register_forward_pre_hook(ask, with_kwargs=True):
            loss, sample_size, log = super().forward(model, sample, reduce)
        earlier = []
        for passes in stops(loop, len(loop.running), loop.training_depth.smallest):
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
                with at_depths(depths):
                    depth_log = super().forward(model, sample, reduce)[2]
            all_logs.update({f"{name}/{key}": value for key, value in depth_log.items()})
        return loss, sample_size, all_logs

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Also logs the loss at each reported depth, as `DEPTH_loss`."""
        super().reduce_metrics(logging_outputs)
        names = {key.split("/")[0] for log in logging_outputs for key in log if "/" in key}
        for name in sorted(names):
            logs = [_part(log, f"{name}/") for log in logging_outputs]
            with metrics.aggregate(new_root=True) as found:
                super().reduce_metrics(logs)
            weight = sum(log.get("sample_size", 0) for log in logs)
            metrics.log_scalar(f"{name}_loss", found["loss"].avg, weight, round=3)


def reported_depths(model: nn.Module) -> dict[str, dict[Loop, int]]:
    """The depths at which validation reports the loss, by name."""
    ends = {loop: trained_depths(loop) for loop in model.loops_by_side().values()}
    if all(smallest == largest for smallest, largest in ends.values()):
        return {}
    return {
        "smallest_depth": {loop: smallest for loop, (smallest, _) in ends.items()},
        "default_depth": {loop: loop.passes for loop in ends},
        "largest_depth": {loop: largest for loop, (_, largest) in ends.items()},
    }


def _part(log: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The entries with a prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in log.items() if key.startswith(prefix)}


class _GivenOutput:
    """A model that returns given logits (B, T, vocabulary) of so many passes; the rest is delegated to the real one."""

    def __init__(self, model: nn.Module, logits: Tensor, passes: int):
        self.model, self.logits, self.passes = model, logits, passes

    def __call__(self, **inputs: Any) -> tuple[Tensor, dict]:
        return self.logits, {"attn": [None], "passes": self.passes}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)
