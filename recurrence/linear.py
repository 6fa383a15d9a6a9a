"""Linear layers on the faster of the two libraries that PyTorch ships for matrix products on a CPU.

PyTorch uses its BLAS for float32 and oneDNN for bfloat16. On some CPUs oneDNN computes float32 products up to twice as
fast, on others the two are equal or the BLAS is ahead. So the first product times both, unless RECURRENCE_GEMM selects
"onednn" or "mkl" (PyTorch's BLAS). Results are those of `torch.nn.functional.linear` up to rounding;
`torch.backends.mkldnn.flags(enabled=False)` gives the plain form.

The layers are `torch.nn.Linear`, so that other tools recognise them. A layer that is wrapped, quantised or hooked is
called as it is, see :func:`is_plain`.
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

# Below this number of multiplications, the overhead of the call exceeds the gain.
SMALLEST = 1 << 20

LIBRARIES = ("auto", "onednn", "mkl")
LIBRARY = os.environ.get("RECURRENCE_GEMM", "auto")
if LIBRARY not in LIBRARIES:
    raise ValueError(f"RECURRENCE_GEMM={LIBRARY}: must be one of {LIBRARIES}")
# The BLAS must take less than this fraction of oneDNN's time: if the two are equal, the choice must not vary between
# runs, because a resumed run would round differently.
MARGIN = 0.8

# oneDNN, and torch above it, keep the programs and workspaces of the last 1,024 products each. Batches of text rarely
# repeat a shape, so a training would grow by gigabytes; one batch needs fewer products than these.
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
for _cache in CACHES:
    os.environ.setdefault(_cache, "128")

HALF_PRECISION = (torch.float16, torch.bfloat16)

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_reorder = None if _onednn is None else getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_packed = WeakTensorKeyDictionary()  # weight -> its state when it was packed, and the packed form
_plain = (Tensor, nn.Parameter)


def apply(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's output, computed by :func:`linear` if that is equivalent: (..., in) -> (..., out)."""
    if is_plain(layer) and _suits(x, layer.weight):
        return linear(x, layer.weight, layer.bias)
    return layer(x)


def is_plain(layer: nn.Module, kind: type[nn.Module] = nn.Linear) -> bool:
    """Whether the layer may be computed from its weight, without calling the module.

    Not if it or its weight has another class (LoRA, quantisation), or if it has hooks or its own forward method.
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
    """Packs the weights of a module's linear layers, see :func:`pack_weight`."""
    for layer in module.modules():
        if is_plain(layer):
            pack_weight(layer.weight)


def pack_weight(weight: Tensor) -> None:
    """Packs a weight into oneDNN's layout, which otherwise happens in every product without gradients.

    Packing takes as long as a product of few tokens, and the packed copy as much memory as the weight. A weight that
    has changed since is used unpacked; changes through `.data` are not noticed.
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
    # Tracing (fx, jit, export) and torch.func get the plain operator.
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
    """Within the context, float32 products on the CPU use this library: "onednn", "mkl" or "auto"."""
    global LIBRARY
    before, LIBRARY = LIBRARY, name
    try:
        yield
    finally:
        LIBRARY = before


def library() -> str:
    """ "onednn" or "mkl", the library for float32 products on the CPU; measured once if LIBRARY is "auto"."""
    global _measured
    if LIBRARY != "auto":
        return LIBRARY
    if _measured is None and not torch.compiler.is_compiling():
        _measured = _faster()
    return _measured or "onednn"


_measured: str | None = None


def _faster(repeats: int = 7) -> str:
    """The faster library, by the shortest of several alternating measurements."""
    with _disable_current_modes(), torch.no_grad():  # hide these from operator counters and recorders
        x, weight = (torch.ones(rows, 512, device="cpu", dtype=torch.float32) for rows in (128, 512))
        runs = {"onednn": lambda: _onednn(x, weight, None, "none", [], ""), "mkl": lambda: F.linear(x, weight)}
        times = [{name: _seconds(run) for name, run in runs.items()} for _ in range(repeats)]
    best = {name: min(each[name] for each in times) for name in runs}
    return "mkl" if best["mkl"] < MARGIN * best["onednn"] else "onednn"


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def product_dtype(like: Tensor) -> torch.dtype:
    """The dtype of products of this tensor: its own, or autocast's."""
    device = like.device.type
    casts = like.dtype != torch.float64 and device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if casts else like.dtype


def runs_eagerly(*tensors: Tensor) -> bool:
    """Whether these are plain tensors, outside tracing, compilation and torch.func."""
    return (
        all(type(tensor) in _plain for tensor in tensors)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not is_transformed()
    )


def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is active; they need torch's own operators."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _onednn(x, weight, bias, "none", [], "")


# Used by the compiler at inference, because its own lowering of the operator requires constant weights.
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
        needs = ctx.needs_input_grad
        flat = grad.reshape(-1, grad.size(-1))
        grad_x = linear(flat, weight.t()).view_as(x) if needs[0] else None
        grad_weight = linear(flat.t(), x.reshape(-1, x.size(-1)).t()) if needs[1] else None
        grad_bias = flat.sum(0) if needs[2] else None
        return grad_x, grad_weight, grad_bias
