"""Gradient clipping on the CPU of a machine with a GPU."""

from collections.abc import Callable, Iterable

import torch
from fairseq import utils
from torch import Tensor

from fairseq_plugin.repairs.replace import replace


def clip_gradients_on_cpu() -> None:
    """Lets ``--cpu`` clip gradients on a machine with a GPU.

    If there is a GPU, fairseq sums the norms on it and then cannot scale gradients on the CPU by the sum.
    """

    def on_the_cpu(clip: Callable) -> Callable:
        def clip_grad_norm_(
            params: Tensor | Iterable[Tensor], max_norm: float, aggregate_norm_fn: Callable | None = None
        ) -> Tensor:
            params = [params] if isinstance(params, Tensor) else list(params)
            grads = [param.grad.detach() for param in params if getattr(param, "grad", None) is not None]
            experts = any(hasattr(param, "expert") for param in params)
            if len(grads) < 2 or experts or any(grad.device.type != "cpu" for grad in grads):
                return clip(params, max_norm, aggregate_norm_fn)
            norm = torch.norm(torch.stack([torch.norm(grad, p=2, dtype=torch.float32) for grad in grads]))
            if aggregate_norm_fn is not None:
                norm = aggregate_norm_fn(norm)
            if max_norm > 0:
                torch._foreach_mul_(grads, (float(max_norm) / (norm + 1e-6)).clamp_(max=1))
            return norm

        return clip_grad_norm_

    replace(utils, "clip_grad_norm_", on_the_cpu)
