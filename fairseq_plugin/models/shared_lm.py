"""Language models of Takase & Kiyono: shared layers with adaptive inputs and adaptive softmax.

Source: "Lessons on Parameter Sharing across Layers in Transformers" (arXiv:2104.06022), Appendix A and Table 5, on the
setting of Baevski & Auli (arXiv:1809.10853) for WikiText-103.

The layer is that of fairseq's `transformer_lm_wiki103`: pre-norm without a final norm, ReLU, sinusoids, 1024/4096 with
8 heads, and bands of 20,000, 40,000 and all other symbols, with matrices and projections shared by input and output.

With WikiText-103's 267,744 symbols `vanilla_lm`, `sequence_lm`, `cycle_lm` and `cycle_rev_lm` store 120,971,264
parameters (paper: 121M), and the baseline of 16 layers, `vanilla_lm --decoder-layers 16`, 246,933,504 (247M).

Differs from the paper: the shapes of two rows are inferred from its counts. `sequence_lm_large` has 15 layers, the only
number that gives 234M (234,337,280), with two passes each as in the small row; `universal_lm` has one layer of
1792/7424 (120,721,920; paper: 121M).
"""

from dataclasses import dataclass
from functools import partial

from torch import nn

from fairseq_plugin.adaptive import NONE
from fairseq_plugin.language_model import LanguageModel, LanguageOptions
from fairseq_plugin.models.parameter_sharing import SharingOptions, shared_loop, unshared_as
from fairseq_plugin.options import ACTIVATIONS, like, option, position_option
from fairseq_plugin.register import activation, register_family
from recurrence import init
from recurrence.block import Shape
from recurrence.causal import CausalStack


@dataclass
class SharedLanguageOptions(SharingOptions, LanguageOptions):
    """The assignment of layers to depths, and the layer."""

    activation_fn: str = option("relu", "activation of the FFN (paper: relu)", choices=ACTIVATIONS)
    decoder_final_norm: bool = option(False, "a LayerNorm after the last pass (paper: none)")
    position: str = position_option("sinusoidal", " (paper: sinusoidal)")


class SharedLanguageModel(LanguageModel):
    """M stored layers that run N times, in the order of a strategy or any other."""

    options = SharedLanguageOptions
    unshared = staticmethod(partial(unshared_as, "vanilla_lm"))

    @classmethod
    def build_stack(cls, args, shape: Shape) -> nn.Module:
        parts = dict(activation=activation(args.activation_fn), relative=cls.position_kind(args) == "relative")
        loop = shared_loop(args, "decoder", shape, pre_norm=True, **parts)
        init.fairseq_(loop)
        norm = nn.LayerNorm(shape.width, shape.norm_eps) if args.decoder_final_norm else None
        return CausalStack(loop, cls.attention_positions(args, shape), norm)


WIKITEXT_103 = dict(
    dropout=0.3,
    attention_dropout=0.1,
    activation_dropout=0.1,
    embedding_std=lambda args: max(args.decoder_embed_dim, 1) ** -0.5,  # a width of 0 is rejected later, by name
    adaptive_input_cutoff="20000,60000",
    adaptive_softmax_cutoff=like("adaptive_input_cutoff"),
    adaptive_softmax_dropout=0.2,
    tie_adaptive_weights=lambda args: NONE not in (args.adaptive_input_cutoff, args.adaptive_softmax_cutoff),
    tie_adaptive_proj=like("tie_adaptive_weights"),
)


def _size(layers: int, width: int = 1024, ffn_width: int = 4096, heads: int = 8, **more: int) -> dict:
    sizes = dict(embed_dim=width, ffn_embed_dim=ffn_width, attention_heads=heads, layers=layers, **more)
    return {f"decoder_{name}": value for name, value in sizes.items()}


register_family(
    "shared_language_model",
    SharedLanguageModel,
    {
        "vanilla_lm": _size(6),
        "sequence_lm": dict(_size(12, unique_layers=6), strategy="sequence"),
        "cycle_lm": dict(_size(12, unique_layers=6), strategy="cycle"),
        "cycle_rev_lm": dict(_size(12, unique_layers=6), strategy="cycle_rev"),
        "universal_lm": _size(6, 1792, 7424, 14, unique_layers=1),
        "sequence_lm_large": dict(_size(30, unique_layers=15), strategy="sequence"),
    },
    **WIKITEXT_103,
)
