"""Linear layers whose float32 products on a CPU run on the faster library, see :mod:`recurrence.gemm`.

Results are those of `torch.nn.functional.linear` up to rounding; `torch.backends.mkldnn.flags(enabled=False)` gives the
plain form.

The layers are `torch.nn.Linear`, so that other tools recognise them. A layer that is wrapped, quantised or hooked is
called as it is, see :func:`recurrence.private_torch.is_plain`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from recurrence import gemm
from recurrence.private_torch import PLAIN, is_plain, is_transformed, is_watched, onednn_linear, onednn_pack

# Below this number of multiplications, the overhead of the call exceeds the gain.
SMALLEST = 1 << 20

_packed = WeakTensorKeyDictionary()  # weight -> its state when it was packed, the packed form, and its probe then


def apply(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's output, computed by :func:`linear` if that is equivalent: (..., in) -> (..., out)."""
    if is_plain(layer) and _suits(x, layer.weight):
        return linear(x, layer.weight, layer.bias)
    return layer(x)


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
    has changed since is used unpacked. torch does not count changes through `.data`, which optimizers and merges of
    LoRA make; they are noticed if they reach one of a few elements of the diagonal.
    """
    suits = type(weight) in PLAIN and weight.dtype == torch.float32 and weight.device.type == "cpu"
    if onednn_pack is not None and suits and not weight.is_inference() and gemm.library() == "onednn":
        with torch.no_grad():
            _packed[weight] = _state(weight), onednn_pack(weight), _probe(weight).clone()


def _as_packed(weight: Tensor) -> Tensor:
    state, packed, probe = _packed.get(weight, (None, weight, None))
    same = state is None or (state == _state(weight) and torch.equal(probe, _probe(weight)))
    return packed if same else weight


def _probe(weight: Tensor) -> Tensor:
    """A few elements on the diagonal, a view."""
    return weight.diagonal()[:: max(1, min(weight.shape) // 16)]


def _state(weight: Tensor) -> tuple[int, int]:
    return weight._version, weight.data_ptr()


def _suits(x: Tensor, weight: Tensor) -> bool:
    # Tracing (fx, jit, export), torch.func and counters of operators get the plain operator.
    return (
        onednn_linear is not None
        and type(x) in PLAIN
        and type(weight) in PLAIN
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and not (torch.compiler.is_compiling() and (torch.is_grad_enabled() or torch.compiler.is_exporting()))
        and x.numel() * weight.size(0) >= SMALLEST
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()
        and not is_transformed()
        and (torch.compiler.is_compiling() or not is_watched())
        and gemm.library() == "onednn"
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = None if bias is None else bias.contiguous()  # oneDNN takes it for one, whatever its strides
    return onednn_linear(x, weight, bias, "none", [], "")


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
