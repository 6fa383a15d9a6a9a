"""Linear layers on the faster of the two libraries that PyTorch ships for matrix products on a CPU.

PyTorch hands float32 products to its BLAS and bfloat16 ones to oneDNN. On processors for which that BLAS has no kernels
of its own, oneDNN computes the same float32 products up to twice as fast, from beam search's four rows to the thousands
of a training batch; on others the two are equal, or the BLAS is ahead. So the first product times both, or
RECURRENCE_GEMM says which: "onednn", "mkl" for PyTorch's BLAS, or "auto". Only the kernel differs: the results are
those of `torch.nn.functional.linear` up to the rounding of another order of summation.
`torch.backends.mkldnn.flags(enabled=False)` gives the plain form.

The layers themselves are `torch.nn.Linear`, so that whatever looks for that class finds them. A layer that something
else has wrapped, quantised or hooked runs as it is, see :func:`is_plain`.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

# Below this many multiplications the call itself costs more than the product.
SMALLEST = 1 << 20

LIBRARIES = ("auto", "onednn", "mkl")
LIBRARY = os.environ.get("RECURRENCE_GEMM", "auto")
if LIBRARY not in LIBRARIES:
    raise ValueError(f"RECURRENCE_GEMM={LIBRARY}: must be one of {LIBRARIES}")
# The BLAS is taken where it needs less than this share of oneDNN's time: where the two are equal, chance must not
# choose, for a run that goes on would then round otherwise than before.
SHARE = 0.8

# oneDNN, and torch above it, keep the programs and workspaces of the last 1,024 products each. Batches of text rarely
# repeat a shape, so a training would grow by gigabytes; one batch needs fewer products than these.
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
for _cache in CACHES:
    os.environ.setdefault(_cache, "128")

HALF_PRECISION = (torch.float16, torch.bfloat16)

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_reorder = None if _onednn is None else getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_packed = WeakTensorKeyDictionary()  # weight -> its state when it was packed, and what came of it
_plain = (Tensor, nn.Parameter)


def apply(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's output, by :func:`linear` where that is the same: (..., in) -> (..., out)."""
    if is_plain(layer) and _suits(x, layer.weight):
        return linear(x, layer.weight, layer.bias)
    return layer(x)


def is_plain(layer: nn.Module, kind: type[nn.Module] = nn.Linear) -> bool:
    """Whether calling the layer is nothing but its class's computation on its weight.

    Only then may one compute from the weight, past the module. A layer of another class (LoRA, a quantised one), with a
    weight of another class, with hooks, or with a forward method of its own is not plain.
    """
    return (
        type(layer) is kind
        and type(layer.weight) in _plain
        and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
        and "forward" not in layer.__dict__
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: (..., in), (out, in), (out,) -> (..., out)."""
    if not _suits(x, weight):
        return F.linear(x, weight, bias)
    if torch.compiler.is_compiling():
        return _opaque_product(x, weight, bias)
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)
    return _product(x, _as_packed(weight), bias)


def pack(module: nn.Module) -> None:
    """Prepares the linear layers of a module for many products, see :func:`pack_weight`."""
    for layer in module.modules():
        if is_plain(layer):
            pack_weight(layer.weight)


def pack_weight(weight: Tensor) -> None:
    """Arranges a weight once as oneDNN multiplies it, which each product without gradients would otherwise do again.

    That takes as long as the product itself where there are few tokens, and the memory of the weight a second time. A
    weight that has changed since then is multiplied as it is; changes through `.data` are not noticed.
    """
    suits = type(weight) in _plain and weight.dtype == torch.float32 and weight.device.type == "cpu"
    if _reorder is not None and suits and not weight.is_inference() and library() == "onednn":
        with torch.no_grad():
            _packed[weight] = _state(weight), _reorder(weight)


def _as_packed(weight: Tensor) -> Tensor:
    state, packed = _packed.get(weight, (None, weight))
    return packed if state is None or state == _state(weight) else weight


def _state(weight: Tensor) -> tuple[int, int]:
    return weight._version, weight.data_ptr()


def _suits(x: Tensor, weight: Tensor) -> bool:
    # Whoever records (fx, jit, export) or transforms (torch.func) the computation gets the plain operator.
    return (
        _onednn is not None
        and type(x) in _plain
        and type(weight) in _plain
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and not (torch.compiler.is_compiling() and (torch.is_grad_enabled() or torch.compiler.is_exporting()))
        and x.numel() * weight.size(0) >= SMALLEST
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()
        and not is_transformed()
        and library() == "onednn"
    )


@contextmanager
def using(name: str) -> Iterator[None]:
    """Within it float32 products on the CPU are this library's: "onednn", "mkl" or "auto"."""
    global LIBRARY
    before, LIBRARY = LIBRARY, name
    try:
        yield
    finally:
        LIBRARY = before


def library() -> str:
    """ "onednn" or "mkl": which computes float32 products on the CPU; measured once where LIBRARY leaves it open."""
    global _measured
    if LIBRARY != "auto":
        return LIBRARY
    if _measured is None and not torch.compiler.is_compiling():
        _measured = _faster()
    return _measured or "onednn"


_measured: str | None = None


def _faster(repeats: int = 7) -> str:
    """The library that multiplies sooner, of the shortest of several times taken in turn."""
    with _disable_current_modes(), torch.no_grad():  # what counts or records operators is not to see these
        x, weight = (torch.ones(rows, 512, device="cpu", dtype=torch.float32) for rows in (128, 512))
        runs = {"onednn": lambda: _onednn(x, weight, None, "none", [], ""), "mkl": lambda: F.linear(x, weight)}
        times = [{name: _seconds(run) for name, run in runs.items()} for _ in range(repeats)]
    best = {name: min(each[name] for each in times) for name in runs}
    return "mkl" if best["mkl"] < SHARE * best["onednn"] else "onednn"


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def product_dtype(like: Tensor) -> torch.dtype:
    """The type in which products of such a tensor are computed: its own, or the one that autocast gives them."""
    device = like.device.type
    casts = like.dtype != torch.float64 and device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if casts else like.dtype


def runs_eagerly(*tensors: Tensor) -> bool:
    """Whether these are plain tensors that nothing records, compiles or transforms."""
    return (
        all(type(tensor) in _plain for tensor in tensors)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not is_transformed()
    )


def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work, which know torch's own operators."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _onednn(x, weight, bias, "none", [], "")


# What the compiler sees at inference: its own lowering of the operator wants weights that are constants.
@torch.library.custom_op("recurrence::linear", mutates_args=())
def _opaque_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _product(x, weight, bias)


@_opaque_product.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        flat = grad.reshape(-1, grad.size(-1))
        grad_x = linear(flat, weight.t()).view_as(x) if wanted[0] else None
        grad_weight = linear(flat.t(), x.reshape(-1, x.size(-1)).t()) if wanted[1] else None
        return grad_x, grad_weight, flat.sum(0) if wanted[2] else None
