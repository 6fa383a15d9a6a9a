"""SReT's recursion in translation: fairseq's transformer with every block run twice.

Source: Sliced Recursive Transformer (arXiv:2111.05297), sections 5.1 and 5.6, Figure 7.

The paper names data and protocols (for IWSLT'14 fairseq's example, for WMT'14 that of Luong et al.), but neither sizes
nor norms, and the published code has no translation model. Chosen here: fairseq's `transformer_iwslt_de_en` and
`transformer_wmt_en_de` (post-norm, ReLU, biases); the 6 blocks of each stack run twice in
succession; as in SReT, two learnable scalars per residual sum of a block (LRC) and, with `--nll`, a pre-norm MLP with
GELU after each pass, as wide as the stream. Attention is not sliced, because a sentence is shorter than a slice of an
image. The paper's recursion (Equation 6) includes these MLPs (NLL): its rows need `--nll`, as in recipes/sret.
"""

from dataclasses import dataclass
from typing import Any

from fairseq_plugin.options import option
from fairseq_plugin.register import register_family, size
from fairseq_plugin.seq2seq import LoopedTransformer, TranslationOptions
from recurrence import init
from recurrence.block import Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop
from recurrence.order import STRATEGIES
from recurrence.papers.sret import Recursion, sret


@dataclass
class RecursiveOptions(TranslationOptions):
    """SReT's options."""

    block_loops: int = option(2, "runs of each block in succession; divides the layers")
    no_lrc: bool = option(False, "plain residual sums, without learnable coefficients (SReT's LRC)")
    nll: bool = option(False, "an unshared non-linear projection after each pass (NLL), part of SReT's recursion")


class RecursiveTransformer(LoopedTransformer):
    """Blocks that run several times in succession, with SReT's coefficients and projections."""

    options = RecursiveOptions
    initialise = init.fairseq_

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        """0 0 1 1 2 2 ... for two loops; the layers of the options are the passes.

        Raises:
            FieldError: if the loops are fewer than 1 or do not divide the layers.
        """
        layers, loops = getattr(args, f"{side}_layers"), args.block_loops
        if loops < 1 or layers % loops:
            raise FieldError("block_loops", loops, "must be >= 1 and divide {layers}", layers=layers)
        recursion = Recursion(not args.no_lrc, projection_width=shape.width if args.nll else None)
        return sret(shape, STRATEGIES["sequence"].order(layers // loops, layers), recursion, **parts)

    @classmethod
    def unshared(cls, args, layers: dict[str, int]) -> dict[str, Any]:
        return {"block_loops": 1, **{f"{side}_layers": number for side, number in layers.items()}}

    @classmethod
    def _check(cls, args, task) -> None:
        super()._check(args, task)
        if args.init == "admin" and not args.no_lrc:
            raise FieldError("init", "admin", "needs {no_lrc}, because its vectors replace SReT's coefficients")


register_family(
    "recursive_transformer",
    RecursiveTransformer,
    {
        "recursive_iwslt_de_en": size(512, 1024, 4, 12),
        "recursive_wmt_en_de": size(512, 2048, 8, 12),
    },
)
