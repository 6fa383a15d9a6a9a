"""Speech recognition with shared layers: SEQUENCE, CYCLE, CYCLE (REV), Universal and Vanilla of Takase & Kiyono.

Source: "Lessons on Parameter Sharing across Layers in Transformers" (arXiv:2104.06022), Table 4, on the model of
fairseq S2T (arXiv:2010.05171): two convolutions that leave one frame of four, pre-norm stacks, ReLU, sinusoids.

Sizes count 10,000 symbols, as fairseq's recipe for LibriSpeech has them, in one matrix for input and output
(`--share-decoder-input-output-embed`): 52,293,632 parameters for 6 + 6 layers of 512/2048 that run once (`s2t_vanilla`,
52M in the paper), 50,190,336 for 8 + 4 stored layers that run twice (50M), 53,685,248 for one layer each of 1024/6144
that runs 6 times (`s2t_universal`, 54M).

Differs from the paper: the convolutions, the vocabulary and the shape of the universal row are inferred from its
counts; it does not print them.
Differs from fairseq: see :class:`fairseq_plugin.modules.speech.Subsampler`.
"""

from torch import nn

from fairseq_plugin.models.parameter_sharing import FAIRSEQ, ParameterSharing, add_sharing_options, stored_layers
from fairseq_plugin.modules.elastic import add_depth_options
from fairseq_plugin.modules.model import register_family
from fairseq_plugin.modules.options import SIDES, add_stack_options
from fairseq_plugin.modules.speech import kernel_sizes, speech_input

# fairseq's design, which no option changes.
FIXED = dict(
    encoder_normalize_before=True,
    decoder_normalize_before=True,
    encoder_learned_pos=False,
    decoder_learned_pos=False,
    encoder_embed_path="",
    decoder_embed_path="",
    share_all_embeddings=False,
    no_token_positional_embeddings=False,
    init="default",
    admin_profile=None,
)
# What fairseq's task adds to the options.
OF_THE_DATA = ("input_feat_per_channel", "input_channels", "speaker_to_id")


class SpeechToText(ParameterSharing):
    """M stored layers that run N times on either side; the encoder reads speech (`--task speech_to_text`)."""

    family_values = ("strategy", *FIXED, *OF_THE_DATA)

    @classmethod
    def add_args(cls, parser):
        """The options of the stacks, the assignment of layers to depths, their depth in training, the convolutions."""
        add_stack_options(parser)
        add_sharing_options(parser, SIDES)
        add_depth_options(parser)
        add = parser.add_argument
        add("--conv-channels", type=int, metavar="N", help="hidden width of the convolutions, halved by their gates")
        add("--conv-kernel-sizes", metavar="K,K", help="one odd size a convolution; each leaves one frame of two")

    @classmethod
    def inputs(cls, args, side: str, embedding: nn.Embedding | None, most: int) -> nn.Module:
        """Speech for the encoder, tokens for the decoder."""
        return speech_input(args) if side == "encoder" else super().inputs(args, side, embedding, most)

    @classmethod
    def _check(cls, args, task) -> None:
        super()._check(args, task)
        kernel_sizes(args.conv_kernel_sizes)
        if args.conv_channels < 2 or args.conv_channels % 2:
            raise ValueError(f"--conv-channels={args.conv_channels}: must be even and >= 2, because gates halve it")


UPSTREAM = dict(
    {**FAIRSEQ, **FIXED},
    dropout=0.15,
    attention_dropout=lambda args: args.dropout,
    activation_dropout=lambda args: args.dropout,
    conv_kernel_sizes="5,5",
    residual_rank=None,
)


def _preset(
    strategy: str, passes: tuple[int, int], stored: tuple[int, int] | None = None, width: int = 512, ffn: int = 2048
) -> dict:
    """Values for so many passes of encoder and decoder; without a number of stored layers, each runs once."""
    sizes = dict(embed_dim=width, ffn_embed_dim=ffn, attention_heads=width // 64)
    preset = {**UPSTREAM, **{f"{side}_{name}": value for side in SIDES for name, value in sizes.items()}}
    for side, layers, unique in zip(SIDES, passes, stored or (None, None)):
        preset[f"{side}_layers"] = layers
        preset[f"{side}_unique_layers"] = stored_layers(side, unique)
    return dict(preset, strategy=strategy, conv_channels=1024)


register_family(
    "recurrent_speech_to_text",
    SpeechToText,
    {
        "s2t_sequence": _preset("sequence", (16, 8), stored=(8, 4)),
        "s2t_cycle": _preset("cycle", (16, 8), stored=(8, 4)),
        "s2t_cycle_rev": _preset("cycle_rev", (16, 8), stored=(8, 4)),
        "s2t_universal": _preset("cycle", (6, 6), stored=(1, 1), width=1024, ffn=6144),
        "s2t_vanilla": _preset("cycle", (6, 6)),
    },
)
