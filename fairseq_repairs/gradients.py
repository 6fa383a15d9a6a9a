"""Gradients: clipping on the CPU of a machine with a GPU, loss scaling with `--amp`, a loss that left out symbols and
was summed in half precision, what the gradients of an epoch's last update are divided by, and what R-Drop reports.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch.nn.functional as F
from fairseq import utils
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.trainer import Trainer
from torch import Tensor

from fairseq_repairs.half import in_float32
from fairseq_repairs.replace import after, instead


@instead(utils, "clip_grad_norm_")
def clip_gradients_on_cpu(
    clip: Callable, params: Tensor | Iterable[Tensor], max_norm: float, aggregate_norm_fn: Callable | None = None
) -> Tensor:
    """Lets `--cpu` clip gradients on a machine with a GPU.

    If there is a GPU, fairseq sums the norms on it and then cannot scale gradients on the CPU by the sum.
    """
    params = [params] if isinstance(params, Tensor) else list(params)
    if any(param.device.type != "cpu" for param in params):
        return clip(params, max_norm, aggregate_norm_fn)
    aggregate = aggregate_norm_fn or (lambda norm: norm)
    return clip(params, max_norm, lambda norm: aggregate(norm.cpu()))


@instead(Trainer, "train_step")
def count_batches_before_an_empty_one(step: Callable, trainer: Trainer, samples: list, *args, **kwargs) -> Any:
    """Counts the batches of an update with `--update-freq` on a rank whose last one is empty, at the end of an epoch.

    fairseq then leaves all of the rank's batches out of what the gradients are divided by, but not their gradients.
    Sharded ranks, and those that exchange tokens (`--base-layers`), must run equally many batches, so they keep it.
    """
    filled = [sample for sample in samples if sample]
    equally = trainer.is_fsdp or getattr(trainer.cfg.model, "base_layers", 0) > 0
    return step(trainer, samples if equally or not filled else filled, *args, **kwargs)


@instead(AMPOptimizer, "step")
def unscale_gradients_once(step: Callable, optimizer: AMPOptimizer) -> None:
    """Lets `--amp` divide the gradients by the loss scale once.

    fairseq unscales the gradients of the inner optimizer before it clips them, but then steps with its wrapper, for
    which torch's scaler unscales them again. Updates then become smaller and smaller as the scale grows.
    """
    optimizer.scaler.step(optimizer.optimizer)
    optimizer.scaler.update()


@after(AMPOptimizer, "__init__")
def grow_scale_by_its_own_option(built: None, optimizer: AMPOptimizer, cfg: Any, *args, **kwargs) -> None:
    """Lets `--amp-scale-window` set after how many updates the scale doubles; fairseq takes `--amp-init-scale`."""
    window = getattr(cfg.common, "amp_scale_window", None)
    if window is not None:
        optimizer.scaler.set_growth_interval(window)


@instead(AdaptiveLoss, "forward")
def count_every_symbol_of_a_band(forward: Callable, criterion: AdaptiveLoss, model: Any, *args, **kwargs) -> tuple:
    """Lets `adaptive_loss` count the second symbol of each later band, which fairseq neither trains nor validates.

    Symbols are numbered anew in each band, and fairseq ignores the number of the padding in all of them. The sum is in
    float32; fairseq's is in the type of the features, in which 65,504 nats are infinite with `--fp16`.
    """
    first, softmax = criterion.padding_idx + 1, model.decoder.adaptive_softmax
    dtype = next(softmax.parameters()).dtype

    def widen(model: Any, inputs: tuple, output: tuple) -> tuple:
        return in_float32(output[0]), *output[1:]  # fairseq sums in this type

    def narrow(softmax: Any, inputs: tuple) -> tuple:
        return inputs[0].to(dtype), *inputs[1:]

    def move(softmax: Any, inputs: tuple, output: tuple[list, list]) -> None:
        logits, targets = output
        logits[:] = [None if band is None else in_float32(band) for band in logits]
        for band, inside in list(enumerate(targets))[1:]:
            if inside is not None and (inside == criterion.padding_idx).any():
                logits[band], targets[band] = F.pad(logits[band], (first, 0), value=float("-inf")), inside + first

    before, after = softmax.register_forward_pre_hook(narrow), softmax.register_forward_hook(move)
    with model.register_forward_hook(widen), before, after:
        return forward(criterion, model, *args, **kwargs)


try:
    from fairseq.criterions.label_smoothed_cross_entropy_with_rdrop import RdropLabelSmoothedCrossEntropyCriterion
except ImportError:  # a version of fairseq that does not have it
    R_DROP: tuple[type, ...] = ()
else:
    R_DROP = (RdropLabelSmoothedCrossEntropyCriterion,)


@instead(R_DROP, "forward")
def double_batches_in_training_only(
    forward: Callable, criterion: Any, model: Any, sample: dict, reduce: bool = True, net_output: Any = None
) -> tuple:
    """Lets R-Drop (`--rdrop-alpha`) run a batch twice in training only, and log the mean of both runs.

    fairseq doubles it in validation, too, where both halves are equal: it reports twice the loss and the square of the
    perplexity, and `--eval-bleu` fails with an IndexError, because the sources stay doubled.
    """
    given = net_output is not None or "encoder_out" in sample["net_input"]  # of fairseq's multitask criterions
    if given or criterion.rdrop_alpha <= 0:
        return forward(criterion, model, sample, reduce, net_output)
    if model.training:
        loss, size, log = forward(criterion, model, sample, reduce)
        return loss, size, {**log, "nll_loss": log["nll_loss"] / 2}
    alpha, criterion.rdrop_alpha = criterion.rdrop_alpha, 0.0
    try:
        return forward(criterion, model, sample, reduce)
    finally:
        criterion.rdrop_alpha = alpha
