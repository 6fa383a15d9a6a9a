"""Adaptive inputs and adaptive softmax: fairseq's modules, their options, and one key for each tied tensor.

Source: Baevski & Auli (arXiv:1809.10853), section 3; Grave et al. (arXiv:1609.04309).

Differs from fairseq: a matrix shared by input and softmax is stored under the input's key only.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.modules import AdaptiveInput, AdaptiveSoftmax
from fairseq.modules.adaptive_softmax import TiedLinear
from torch import Tensor, nn

from fairseq_plugin.embedding import BorrowingLinear
from fairseq_plugin.options import Options, option
from recurrence.errors import FieldError
from recurrence.private_torch import is_plain

NONE = "none"
ONE = f"'{NONE}' for a single matrix"
PADDING = 1  # index of fairseq's padding symbol, which its adaptive input expects in the first band


@dataclass
class AdaptiveOptions(Options):
    """Bands of symbols, the most frequent first, under fairseq's names; none by default."""

    adaptive_input_cutoff: Any = option(NONE, f"embedding: where its bands end, N,N,...; {ONE}")
    adaptive_input_factor: float = option(4.0, "embedding: how many times narrower each band is")
    adaptive_softmax_cutoff: Any = option(NONE, f"output layer: where its bands end, N,N,...; {ONE}")
    adaptive_softmax_factor: float = option(4.0, "output layer: how many times narrower each band is")
    adaptive_softmax_dropout: float = option(0.0, "rate on the input of the adaptive softmax")
    tie_adaptive_weights: bool = option(False, "share the bands of input and output")
    tie_adaptive_proj: bool = option(False, "also share their projections")


# Options of a model without bands.
PLAIN = {name: spec.default for name, spec in AdaptiveOptions.known().items()}


def cutoffs(args, which: str, symbols: int) -> list[int] | None:
    """Ends of all bands but the last, of "input" or "softmax", for that many symbols; None for a single matrix.

    Raises:
        FieldError: unless they are ascending whole numbers > 0 and below the number of symbols.
    """
    text = getattr(args, f"adaptive_{which}_cutoff")
    if text == NONE:
        return None
    try:
        ends = [int(end) for end in utils.eval_str_list(text, type=str)]
    except (TypeError, ValueError):
        ends = []
    if not ends or not all(before < end for before, end in zip([0, *ends], [*ends, symbols])):
        rule = f"must be '{NONE}' or ascending whole numbers, each > 0 and < {symbols}, the number of symbols"
        raise FieldError(f"adaptive_{which}_cutoff", text, rule)
    return ends


def check(args, symbols: int) -> None:
    """Checks the options before anything is built; `symbols` is the size of the smaller dictionary.

    Raises:
        FieldError: naming the option, the value and the rule.
    """
    bands = {which: cutoffs(args, which, symbols) for which in ("input", "softmax")}
    for which, ends in bands.items():
        name, width = f"adaptive_{which}_factor", args.decoder_embed_dim
        factor = getattr(args, name)
        if not ends and factor != PLAIN[name]:
            raise FieldError(name, factor, f"needs bands ({{adaptive_{which}_cutoff}})")
        if ends and not (factor >= 1 and factor ** len(ends) <= width):
            rule = f"must be >= 1 and leave the last of the {len(ends) + 1} bands of {{decoder_embed_dim}} a width >= 1"
            raise FieldError(name, factor, rule, decoder_embed_dim=width)
        if ends and ends[0] <= PADDING:
            rule = f"the first band must hold symbols 0 to {PADDING}, up to the padding, so its end must be > {PADDING}"
            raise FieldError(f"adaptive_{which}_cutoff", getattr(args, f"adaptive_{which}_cutoff"), rule)
    starts = bands["input"] or []
    if any(end - start <= PADDING for start, end in zip(starts, [*starts[1:], symbols])):
        rule = f"each band must have more than {PADDING} symbol, as fairseq zeroes the embedding at the padding's place"
        raise FieldError("adaptive_input_cutoff", args.adaptive_input_cutoff, rule)
    if args.tie_adaptive_proj and not args.tie_adaptive_weights:
        raise FieldError("tie_adaptive_proj", True, "needs {tie_adaptive_weights}")
    for name in ("cutoff", "factor") if args.tie_adaptive_weights else ():
        given = {f"adaptive_{which}_{name}": getattr(args, f"adaptive_{which}_{name}") for which in bands}
        if len(set(map(str, given.values()))) > 1 or not bands["input"]:
            rule = f"{' and '.join(f'{{{one}}}' for one in given)} must be equal and not '{NONE}'"
            raise FieldError("tie_adaptive_weights", True, rule, **given)
    if any(bands.values()) and args.share_decoder_input_output_embed:
        rule = "shares a single matrix; use {tie_adaptive_weights} for bands"
        raise FieldError("share_decoder_input_output_embed", True, rule)


def adaptive_input(args, dictionary) -> AdaptiveInput:
    """The embedding in bands: tokens (B, T) -> (B, T, C)."""
    width, ends = args.decoder_embed_dim, cutoffs(args, "input", len(dictionary))
    module = AdaptiveInput(len(dictionary), dictionary.pad(), width, args.adaptive_input_factor, width, ends)
    for band in module.embeddings:
        band.register_forward_hook(_as_stored)
    return _with_written_buffers(module)


def adaptive_softmax(args, dictionary, embedding) -> AdaptiveSoftmax:
    """The output layer in bands.

    Args:
        args: the model's options.
        dictionary: of the output.
        embedding: whose matrices it uses if they are tied; its tensors keep their keys there.
    """
    module = AdaptiveSoftmax(
        len(dictionary),
        args.decoder_embed_dim,
        cutoffs(args, "softmax", len(dictionary)),
        args.adaptive_softmax_dropout,
        args.adaptive_softmax_factor,
        embedding if args.tie_adaptive_weights else None,
        args.tie_adaptive_proj,
    )
    bands = {layer.weight: band for band in getattr(embedding, "embeddings", ()) for layer in band}
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, TiedLinear):
                band = bands[child.weight]
                setattr(parent, name, BorrowingProjection(band) if child.transpose else BorrowingLinear(band[0]))
    return _with_written_buffers(module)


class BorrowingProjection(BorrowingLinear):
    """Multiplies by the transpose of the projection of a band, which the band stores.

    Adapters and quantisation replace the projection, so the band is asked for it at every call. A replaced one is
    called: its output for the unit matrix is the transpose of the matrix that it multiplies by.

    Args:
        owner: the band, an embedding and its projection.
    """

    @property
    def weight(self) -> Tensor:
        """The projection's, (C, width of the band)."""
        return self.owner[1].weight

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., width of the band)."""
        projection = self.owner[1]
        if is_plain(projection):
            return F.linear(x, projection.weight.t())
        return F.linear(x, projection(torch.eye(projection.in_features, dtype=x.dtype, device=x.device)))


def _as_stored(band: nn.Sequential, inputs: tuple, output: Tensor) -> Tensor:
    """A band's vectors in the type of its weights, in which fairseq collects them; autocast gives half precision."""
    return output.to(band[0].weight.dtype)


def _with_written_buffers(module):
    """Zeroes a buffer that fairseq saves without initialising it."""
    for name, buffer in module.named_buffers():
        if name.endswith("_float_tensor"):
            buffer.zero_()
    return module
