"""What this package uses of PyTorch that is not public.

A name that a version may lack has a replacement, which is as exact but slower: where a version does not tell whether
the fast path is allowed, the slow one is taken.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

HALF_PRECISION = (torch.float16, torch.bfloat16)
PLAIN = (Tensor, nn.Parameter)

CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")

# Keeps a function out of compiled graphs; torch.compiler.disable would import the compiler at once.
eager_only: Callable = getattr(torch, "_disable_dynamo", torch.compiler.disable)

func_is_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
"""Whether a transformation of torch.func is active."""

softmax_backward = torch.ops.aten._softmax_backward_data
"""The gradient of a softmax's input, from that of its output, its output, the dimension and the input's dtype."""

_has_global_hooks = getattr(nn.modules.module, "_has_any_global_hook", lambda: True)


def bound_caches() -> None:
    """Makes oneDNN, and torch above it, keep the programs and workspaces of the last 128 products instead of 1,024.

    Batches of text rarely repeat a shape, so a training would grow by gigabytes; one batch needs fewer products than
    these. Sets environment variables that are read at the first product, unless the user has set them.
    """
    for name in CACHES:
        os.environ.setdefault(name, "128")


def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is active; they need torch's own operators."""
    return func_is_active() or getattr(forward_ad, "_current_level", 0) >= 0


# With a mask, cuDNN's kernel can return NaN gradients (pytorch/pytorch#196678), and it builds a plan for each new
# shape, while batches of text rarely repeat one.
_ALL_BUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attention_kernels(q: Tensor) -> AbstractContextManager:
    """Within the context, attention with these queries runs only kernels that can compute it.

    Only needed on GPUs, and in transformations and forward-mode differentiation.
    """
    if is_transformed():
        return sdpa_kernel(SDPBackend.MATH)  # the fused kernels have neither forward derivatives nor batching rules
    if q.is_cuda and q.dtype in HALF_PRECISION:
        return sdpa_kernel(_ALL_BUT_CUDNN) if torch.compiler.is_compiling() else _without_cudnn()
    return nullcontext()


@contextmanager
def _without_cudnn() -> Iterator[None]:
    # sdpa_kernel, which sets all kernels, takes as long as launching four of them. Like it, this sets a flag of the
    # whole process, which threads must not do at the same time.
    allowed = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(allowed)


def is_watched(module: nn.Module) -> bool:
    """Whether a call of the module runs more than its class's `forward`: it has hooks or its own, or all modules do."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks or "forward" in module.__dict__ or _has_global_hooks())


def is_unchanged(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the module is of this very class, and a call of it runs nothing but the class's `forward`."""
    return type(module) is kind and not is_watched(module)


def is_plain(layer: nn.Module, kind: type[nn.Module] = nn.Linear) -> bool:
    """Whether the layer may be computed from its weight, without calling the module.

    Not if it or its weight has another class (LoRA, quantisation), or if it is watched.
    """
    return is_unchanged(layer, kind) and type(layer.weight) in PLAIN


def allow_graphs(number: int) -> None:
    """Lets the compiler make at least `number` graphs of one function, here of all blocks together."""
    from torch._dynamo import config  # imported here because it loads the compiler

    config.recompile_limit = max(config.recompile_limit, number)


def uncompiled(module: nn.Module) -> Callable:
    """The module as it is called without :meth:`torch.nn.Module.compile`."""
    return module._call_impl
