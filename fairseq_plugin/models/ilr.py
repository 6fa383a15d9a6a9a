"""Language models of Intra-Layer Recurrence: LLaMA blocks, each run as often as a reuse map gives.

Source: Intra-Layer Recurrence in Transformers (arXiv:2505.01855), sections 3 and 4, Tables 1 and 3.

Nothing is unique to a pass. As in the published code, where the paper is silent, the output matrix is the embedding and
the FFN is 4 times as wide as the model. Block recurrence repeats the entire stack instead and adds its input again
before each repetition: the paper's row is `--block-loops 2 --inject-embedding`.

Not among the paper's experiments: an injected input with a reuse map, a learned matrix that joins it
(`--inject-adapter`), which section 4 mentions, and `--post-norm`.

Differs from the published code: that code creates the matrix, 2 C^2 parameters, wherever the input is injected, but
never uses it. There is a cache; dropout is an option (0).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fairseq_plugin.adaptive import PLAIN
from fairseq_plugin.language_model import LanguageModel, LanguageOptions
from fairseq_plugin.options import option, position_option
from fairseq_plugin.register import register_family
from recurrence import init
from recurrence.block import Shape
from recurrence.causal import CausalStack
from recurrence.errors import FieldError
from recurrence.order import Order, block_loop, reuse_map
from recurrence.papers.ilr import llama_layers

logger = logging.getLogger(__name__)


@dataclass
class IntraLayerRecurrenceOptions(LanguageOptions):
    """The reuse map and the kind of positions."""

    fixed = dict(PLAIN, share_decoder_input_output_embed=True)

    decoder_layers: int = option(6, "number of stored layers, which --reuse-map or --block-loops repeat", least=1)
    decoder_ffn_embed_dim: int = option(
        lambda args: 4 * args.decoder_embed_dim, "hidden width of the FFN (4 times the model's)"
    )
    post_norm: bool = option(
        False,
        "norm after each residual sum instead of before each sublayer, so that the state stays bounded however many "
        "passes run; the embedding is then scaled by sqrt(width), and matrices start with deviation 1 / sqrt(width)",
    )
    no_scale_embedding: bool = option(lambda args: not args.post_norm)
    embedding_std: float = option(
        lambda args: max(args.decoder_embed_dim, 1) ** -0.5 if args.post_norm else 0.02, least=0
    )
    block_loops: int = option(1, "how often the stack runs; 2 or more replace the preset's reuse map")
    reuse_map: str | None = option(
        None,
        "how often each layer runs in succession: 4,2,1,1 runs the first of four layers four times",
    )
    inject_embedding: bool = option(
        False,
        "add the stack's input again before each further run of the stack; with a reuse map, add the input of a "
        "layer's first pass before each of its further passes",
    )
    inject_adapter: bool = option(
        False,
        "with --inject-embedding: a learned matrix, 2 C to C, maps the state and that input, side by side, to the "
        "input of the pass, as in Huginn, in place of their sum",
    )
    position: str = position_option("rotary", "; rope is an older word for rotary", older=("rope",))


class IntraLayerRecurrence(LanguageModel):
    """LLaMA blocks in the order of a reuse map, or of block recurrence."""

    options = IntraLayerRecurrenceOptions

    @classmethod
    def order(cls, args) -> Order:
        """Order of the passes.

        Raises:
            FieldError: if the map is not one number >= 1 per layer, or there are loops as well.
        """
        layers, loops = args.decoder_layers, args.block_loops
        if args.reuse_map is None:
            return block_loop(layers, loops)
        counts = _counts(args.reuse_map)
        if loops != 1:
            rule = "replaces {reuse_map}: give only one of them"
            raise FieldError("block_loops", loops, rule, reuse_map=args.reuse_map)
        if len(counts) != layers:
            rule = f"has {len(counts)} entries, needs one for each of {{layers}}"
            raise FieldError("reuse_map", args.reuse_map, rule, layers=layers)
        return reuse_map(counts)

    @classmethod
    def depth_step(cls, args) -> int:
        """The number of layers for block recurrence, which repeats the entire stack; otherwise 1."""
        return args.decoder_layers if args.reuse_map is None else 1

    @classmethod
    def unshared(cls, args, layers: dict[str, int]) -> dict[str, Any]:
        ones = ",".join(["1"] * layers["decoder"])
        looped = {"block_loops": 1, "inject_embedding": False, "inject_adapter": False}
        return {"decoder_layers": layers["decoder"], "reuse_map": ones, **looped}

    @classmethod
    def build_stack(cls, args, shape: Shape) -> nn.Module:
        relative = cls.position_kind(args) == "relative"
        # With a reuse map, each block gets its first input again; with block recurrence, the first one does.
        again = (0,) if args.reuse_map is None else tuple(range(args.decoder_layers))
        injection = again if args.inject_embedding else (), args.inject_adapter
        loop = llama_layers(shape, cls.order(args), *injection, not args.post_norm, relative)
        init.normal_(loop, args.embedding_std)
        return CausalStack(loop, cls.attention_positions(args, shape), nn.RMSNorm(shape.width, shape.norm_eps))

    @classmethod
    def _check(cls, args, task) -> None:
        super()._check(args, task)
        with cls.options.flags_in_errors("decoder"):
            runs_once = len(cls.order(args)) == args.decoder_layers
        # fairseq-train gives a model the options of the criterion, too; fairseq-hydra-train does not.
        if args.inject_embedding and runs_once and not getattr(args, "depth_range", None):
            # Not an error, as a checkpoint may be loaded at its smallest depth.
            more = "--reuse-map or --block-loops" + (" or --depth-range" if args.decoder_layers == 1 else "")
            logger.warning("--inject-embedding: has no effect, as each layer runs once; %s lets it run again", more)
        if args.inject_adapter and not args.inject_embedding:
            raise FieldError("inject_adapter", True, "needs {inject_embedding}")


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(count) if count.strip().isdecimal() else 0 for count in text.split(","))
    if min(counts) < 1:
        raise FieldError("reuse_map", text, "must be whole numbers >= 1, with commas between them")
    return counts


def _map(reuse: str) -> Callable[[Any], str | None]:
    """The preset's reuse map, if the options have its number of layers and one run of the stack."""
    return lambda args: reuse if args.decoder_layers == len(_counts(reuse)) and args.block_loops == 1 else None


register_family(
    "intra_layer_recurrence",
    IntraLayerRecurrence,
    {
        "ilr_small": dict(
            decoder_embed_dim=128, decoder_layers=4, decoder_attention_heads=4, reuse_map=_map("4,2,1,1")
        ),
        "ilr_large": dict(
            decoder_embed_dim=768, decoder_layers=8, decoder_attention_heads=8, reuse_map=_map("1,2,1,1,1,1,1,1")
        ),
    },
    dropout=0.0,
    norm_eps=1e-6,
)
