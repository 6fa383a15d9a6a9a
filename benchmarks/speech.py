"""Compare the speed of speech models with fairseq's `s2t_transformer` of the same shape (`make bench BENCH=speech`).

    python -m benchmarks.speech [--threads 2] [--rounds 7]

16 + 8 passes of 512/2048 on utterances of 5 seconds: 500 frames of 80 features, which the convolutions reduce to 125.
"""

import torch
from fairseq.data import Dictionary
from torch import nn

from benchmarks.common import DEVICE, WEIGHTS, parser
from benchmarks.translation import RATES, VOCABULARY, Batch, compare
from fairseq_plugin.modules.build import build_architecture

ARCHS = ("s2t_transformer", "s2t_cycle", "s2t_universal", "s2t_vanilla")
FRAMES, FEATURES, LENGTH = 500, 80, 20
WIDTHS = dict(embed_dim=512, ffn_embed_dim=2048, attention_heads=8)
SIZES = dict(encoder_layers=16, decoder_layers=8, conv_channels=1024)
SIZES |= {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in WIDTHS.items()}


def build(arch: str, symbols: Dictionary) -> nn.Module:
    """A model with SIZES and RATES."""
    torch.manual_seed(0)
    speech = dict(input_feat_per_channel=FEATURES, input_channels=1)
    return build_architecture(arch, None, symbols, **speech, **SIZES, **RATES).to(**WEIGHTS)


def batch(symbols: Dictionary, utterances: int) -> Batch:
    """Random frames (B, FRAMES, FEATURES), lengths (B,) and target (B, T), without padding."""
    generator = torch.Generator().manual_seed(0)
    frames = torch.randn(utterances, FRAMES, FEATURES, generator=generator)
    target = torch.randint(symbols.nspecial, VOCABULARY, (utterances, LENGTH), generator=generator)
    return frames.to(**WEIGHTS), torch.full((utterances,), FRAMES, device=DEVICE), target.to(DEVICE)


def main() -> None:
    """The command line."""
    compare("benchmarks.speech", parser(__doc__, rounds=7).parse_args(), ARCHS, build, batch)


if __name__ == "__main__":
    main()
