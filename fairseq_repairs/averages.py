"""Averages of the weights in training, `--store-ema`: of every model, and from every checkpoint."""

from collections.abc import Callable
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models.ema.ema import EMA
from fairseq.trainer import Trainer

from fairseq_repairs.replace import after, before, instead


@before(Trainer, "_build_ema")
def average_in_float32(trainer: Trainer, *args, **kwargs) -> None:
    """Lets `--store-ema` average in float32 with `--fp16` and `--bf16`, too, as `--ema-fp32` does.

    In half precision, a ten-thousandth of a weight is rounded away, so the average stays where training began.
    """
    if trainer.cfg.common.fp16 or trainer.cfg.common.bf16:
        trainer.cfg.ema.ema_fp32 = True


@instead(EMA, "restore")
def average_adaptive_softmax(restore: Callable, ema: EMA, state_dict: dict | None, *args, **kwargs) -> None:
    """Lets `--store-ema` average a model with an adaptive softmax.

    fairseq leaves marks of versions out of the average, which the adaptive softmax then rejects as "no longer
    supported".
    """
    if state_dict is None:  # see begin_average_with_weights
        return
    versions = {key: tensor for key, tensor in ema.model.state_dict().items() if "version" in key}
    restore(ema, {**versions, **state_dict}, *args, **kwargs)


@after(checkpoint_utils, "load_checkpoint_to_cpu")
def begin_average_with_weights(state: dict[str, Any], *args, **kwargs) -> None:
    """Lets `--store-ema` begin from a checkpoint without an average, with its weights; fairseq stops (KeyError).

    The average, a copy of the model, is only made after the model has loaded them.
    """
    if isinstance(state.get("extra_state"), dict):
        state["extra_state"].setdefault("ema", None)


@after(Trainer, "load_checkpoint")
def release_average(extra: dict[str, Any] | None, *args, **kwargs) -> None:
    """Forgets the average that training has loaded; fairseq-train would keep it to its end."""
    if extra is not None:
        for name in ("ema", "ema_fp32_params"):
            extra.pop(name, None)
