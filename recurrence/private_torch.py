"""What this package uses of PyTorch that is not public, and where its own computations may replace PyTorch's.

What is not public has a replacement for versions that lack it. A replacement is as exact, but slower: where a version
does not tell whether the fast path is allowed, the slow one is taken.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

HALF_PRECISION = (torch.float16, torch.bfloat16)
PLAIN = (Tensor, nn.Parameter)


# Products in oneDNN, and its packing of weights.
_has_onednn = torch.backends.mkldnn.is_available()
onednn_linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if _has_onednn else None
onednn_pack = None if onednn_linear is None else getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)

# Keeps a function out of compiled graphs; torch.compiler.disable would import the compiler at once.
eager_only: Callable = getattr(torch, "_disable_dynamo", torch.compiler.disable)

_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)


def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is active; they need torch's own operators."""
    return _transforms_active() or getattr(forward_ad, "_current_level", 0) >= 0


def runs_eagerly(*tensors: Tensor) -> bool:
    """Whether these are plain tensors, outside tracing, compilation and torch.func."""
    return (
        all(type(tensor) in PLAIN for tensor in tensors)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not is_transformed()
    )


def product_dtype(like: Tensor) -> torch.dtype:
    """The dtype of products of this tensor: its own, or autocast's."""
    device = like.device.type
    casts = like.dtype != torch.float64 and device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if casts else like.dtype


def is_watched() -> bool:
    """Whether an operator counter, recorder or tracer sees the operators; they know torch's own."""
    return _modes() > 0


def without_modes() -> AbstractContextManager:
    """Within the context, no operator counter or recorder sees the operators."""
    try:
        from torch.utils._python_dispatch import _disable_current_modes
    except ImportError:
        return nullcontext()
    return _disable_current_modes()


def is_plain(layer: nn.Module, kind: type[nn.Module] = nn.Linear) -> bool:
    """Whether the layer may be computed from its weight, without calling the module.

    Not if it or its weight has another class (LoRA, quantisation), or if it has hooks or its own forward method.
    """
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return type(layer) is kind and type(layer.weight) in PLAIN and not hooks and "forward" not in layer.__dict__


def allow_graphs(number: int) -> None:
    """Lets the compiler make at least so many graphs of one function, here of all blocks together."""
    from torch._dynamo import config  # imported here because it loads the compiler

    config.recompile_limit = max(config.recompile_limit, number)


def uncompiled(module: nn.Module) -> Callable:
    """The module as it is called without :meth:`torch.nn.Module.compile`."""
    return module if getattr(module, "_compiled_call_impl", None) is None else module._call_impl


def softmax_backward_by_sums(grad: Tensor, output: Tensor) -> Tensor:
    """The gradient of the input of a softmax over the last dimension, from those of its output, and its output."""
    return output * (grad - (grad * output).sum(-1, keepdim=True))


def _softmax_backward(grad: Tensor, output: Tensor) -> Tensor:
    return torch._softmax_backward_data(grad, output, -1, grad.dtype)


softmax_backward = _softmax_backward if hasattr(torch, "_softmax_backward_data") else softmax_backward_by_sums
