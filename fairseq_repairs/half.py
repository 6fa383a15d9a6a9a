"""Half precision: weights before rounding, and what decides on the loss scale, are saved and restored; exact sums."""

from typing import Any

import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer

from fairseq_repairs.replace import after

# Keys in the state of an optimizer.
EXACT = "float32_weights"  # the weights before rounding
SCALER = "scaler"  # what decides when the loss scale changes


def in_float32(x: torch.Tensor) -> torch.Tensor:
    """The same numbers in at least float32, to be summed without rounding."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _exact(optimizer: FP16Optimizer) -> list[torch.Tensor]:
    """The float32 copy of the weights: a tensor for each of them, or one for all of a device."""
    weights = optimizer.fp32_params
    return [one.detach() for one in (weights.values() if isinstance(weights, dict) else weights)]


@after(FP16Optimizer, "state_dict")
def save_float32_weights(state: dict[str, Any], optimizer: FP16Optimizer) -> None:
    """Stores the weights of `--fp16` and `--bf16` as they are before rounding, for :func:`restore_float32_weights`."""
    state[EXACT] = _exact(optimizer)


@after(FP16Optimizer, "load_state_dict")
def restore_float32_weights(loaded: None, optimizer: FP16Optimizer, state: dict[str, Any], *args, **kwargs) -> None:
    """Resumes `--fp16` and `--bf16` from the weights before rounding.

    fairseq stores the rounded weights only and starts its float32 copy anew from these, so a resumed run ends with
    other weights than an uninterrupted one. A weight of the model that has been changed since is not the rounded form
    of the saved one, and is kept as it is.
    """
    for now, saved in zip(_exact(optimizer), state.get(EXACT, ())):
        if now.shape != saved.shape:  # on a GPU, --fp16 has one tensor of all weights, of any size for torch
            raise ValueError("loaded state dict contains a parameter group of another size")  # as torch's own error
        exact = saved.to(now.device)
        rounded = exact.to(optimizer.fp16_params[0].dtype).float()
        now.copy_(torch.where(rounded == now, exact, now))


@after((FP16Optimizer, MemoryEfficientFP16Optimizer), "state_dict")
def save_counts_of_scaler(state: dict[str, Any], optimizer: FP16Optimizer | MemoryEfficientFP16Optimizer) -> None:
    """Stores the scaler's counts of updates and overflows, for :func:`restore_counts_of_scaler`."""
    if optimizer.scaler is not None:  # as with --bf16
        # Its other attributes are options, and the scale, which fairseq stores.
        state[SCALER] = {name: count for name, count in vars(optimizer.scaler).items() if name.startswith("_")}


@after((FP16Optimizer, MemoryEfficientFP16Optimizer), "load_state_dict")
def restore_counts_of_scaler(
    loaded: None, optimizer: FP16Optimizer | MemoryEfficientFP16Optimizer, state: dict[str, Any], *args, **kwargs
) -> None:
    """Lets the loss scale of `--fp16` change after the same update as in an uninterrupted run.

    fairseq stores the scale only and restarts the counts, so a resumed run skips other batches.
    """
    if optimizer.scaler is not None:
        vars(optimizer.scaler).update(state.get(SCALER, {}))


@after(AMPOptimizer, "state_dict")
def save_scaler(state: dict[str, Any], optimizer: AMPOptimizer) -> None:
    """Stores the state of torch's scaler, for :func:`restore_scaler`."""
    state[SCALER] = optimizer.scaler.state_dict()


@after(AMPOptimizer, "load_state_dict")
def restore_scaler(loaded: None, optimizer: AMPOptimizer, state: dict[str, Any], *args, **kwargs) -> None:
    """Resumes `--amp` with its loss scale, which fairseq restarts, so that a resumed run skips other batches.

    The options of the scaler are those of the command: torch doubles the scale when the count of updates is equal to
    the window, so the count is kept below a smaller window.
    """
    now, saved = optimizer.scaler.state_dict(), state.get(SCALER)
    if now and saved:  # empty without a GPU
        count = min(saved["_growth_tracker"], now["growth_interval"] - 1)
        optimizer.scaler.load_state_dict({**now, "scale": saved["scale"], "_growth_tracker": count})
