"""Language models of Takase & Kiyono: shared layers with adaptive inputs and adaptive softmax.

Source: "Lessons on Parameter Sharing across Layers in Transformers" (arXiv:2104.06022), Appendix A and Table 5, on the
setting of Baevski & Auli (arXiv:1809.10853) for WikiText-103.

The layer is that of fairseq's `transformer_lm_wiki103`: pre-norm without a norm after the last pass, ReLU, sinusoids,
1024/4096 with 8 heads, bands of 20,000, 60,000 and the rest, whose matrices and projections inputs and outputs share.

With WikiText-103's 267,744 symbols `vanilla_lm`, `sequence_lm`, `cycle_lm` and `cycle_rev_lm` store 120,971,264
parameters (paper: 121M), and the baseline of 16 layers, `vanilla_lm --decoder-layers 16`, 246,933,504 (247M).

Differs from the paper: the shapes of two rows are inferred from its counts. `sequence_lm_large` has 15 layers, the one
number of these layers that gives 234M (234,337,280), at two passes each as in the small row; `universal_lm` has one
layer of 1792/7424 (120,721,920 for the paper's 121M).
"""

from torch import nn

from fairseq_plugin.models.parameter_sharing import (
    add_sharing_options,
    shared_loop,
    stored_layers,
)
from fairseq_plugin.modules.adaptive import add_adaptive_options
from fairseq_plugin.modules.elastic import add_depth_options
from fairseq_plugin.modules.language_model import LANGUAGE_DEFAULTS, LanguageModel
from fairseq_plugin.modules.model import activation, register_family
from recurrence import init
from recurrence.block import Shape
from recurrence.causal import CausalStack


class SharedLanguageModel(LanguageModel):
    """M stored layers that run N times, in the order of a strategy."""

    family_values = ("norm_eps", "strategy", "embedding_std")

    @classmethod
    def add_args(cls, parser):
        """The common options, the assignment of layers to depths, its depth in training, and the dictionary's bands."""
        super().add_args(parser)
        add_sharing_options(parser, ("decoder",))
        add_depth_options(parser, sides=1)
        add_adaptive_options(parser)
        add = parser.add_argument
        add("--activation-fn", metavar="NAME", help="activation of the FFN, as fairseq names it (paper: relu)")
        add("--no-scale-embedding", action="store_true", help="embeddings are not multiplied by sqrt(width)")
        add("--decoder-final-norm", action="store_true", help="a LayerNorm behind the last pass (paper: none)")
        add(
            "--share-decoder-input-output-embed",
            action="store_true",
            help="the embedding is the output matrix too, where both are single matrices",
        )

    @classmethod
    def build_stack(cls, args, shape: Shape) -> nn.Module:
        """The loop."""
        loop = shared_loop(args, "decoder", shape, activation=activation(args.activation_fn), pre_norm=True)
        init.fairseq_(loop)
        norm = nn.LayerNorm(shape.width, shape.norm_eps) if args.decoder_final_norm else None
        return CausalStack(loop, shape.heads, norm=norm)

    @classmethod
    def input_positions(cls, args) -> str:
        """Sinusoids."""
        return "sinusoidal"


WIKITEXT_103 = dict(
    LANGUAGE_DEFAULTS,
    dropout=0.3,
    attention_dropout=0.1,
    activation_dropout=0.1,
    activation_fn="relu",
    norm_eps=1e-5,
    no_scale_embedding=False,
    decoder_final_norm=False,
    share_decoder_input_output_embed=False,
    embedding_std=lambda args: max(args.decoder_embed_dim, 1) ** -0.5,  # a width of 0 is refused by its own name
    adaptive_input_cutoff="20000,60000",
    adaptive_softmax_cutoff=lambda args: args.adaptive_input_cutoff,
    adaptive_softmax_dropout=0.2,
    tie_adaptive_weights=lambda args: "none" not in (args.adaptive_input_cutoff, args.adaptive_softmax_cutoff),
    tie_adaptive_proj=lambda args: args.tie_adaptive_weights,
    share_layer_num=None,
    residual_rank=None,
)


def _preset(
    strategy: str, unique_layers: int | None, layers: int, width: int = 1024, ffn: int = 4096, heads: int = 8
) -> dict:
    return dict(
        decoder_embed_dim=width,
        decoder_ffn_embed_dim=ffn,
        decoder_attention_heads=heads,
        decoder_layers=layers,
        **{**WIKITEXT_103, "strategy": strategy},
        decoder_unique_layers=stored_layers("decoder", unique_layers),
    )


register_family(
    "shared_language_model",
    SharedLanguageModel,
    {
        "vanilla_lm": _preset("cycle", None, 6),
        "sequence_lm": _preset("sequence", 6, 12),
        "cycle_lm": _preset("cycle", 6, 12),
        "cycle_rev_lm": _preset("cycle_rev", 6, 12),
        "universal_lm": _preset("cycle", 1, 6, width=1792, ffn=7424, heads=14),
        "sequence_lm_large": _preset("sequence", 15, 30),
    },
)
