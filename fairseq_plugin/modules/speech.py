"""From speech features to the first input of a stack."""

import math

import torch
import torch.nn.functional as F
from fairseq.models.speech_to_text.s2t_transformer import Conv1dSubsampler
from torch import Tensor, nn

from recurrence.dropout import dropout
from recurrence.position import Table, halved


class Subsampler(Conv1dSubsampler):
    """fairseq's convolutions of stride 2 with gated linear units, blind to padding.

    Differs from fairseq: what stands behind the end of an utterance is set to zero before every convolution. fairseq
    leaves the bias of the first there, so that its last frames depend on how long the others of a batch are.
    """

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Makes one frame of two, once a convolution.

        Args:
            features: (B, frames, features).
            lengths: (B,).

        Returns:
            (B, S, C), and its padding (B, S), None where there is none.
        """
        x, shortest = features.transpose(1, 2), int(lengths.min())  # read once: on a GPU every reading waits
        for conv in self.conv_layers:
            if shortest < x.size(2):
                x = x.masked_fill(padding_behind(lengths, x.size(2))[:, None], 0)
            x = F.glu(conv(x), dim=1)
            lengths, shortest = (lengths + 1) // 2, (shortest + 1) // 2
        return x.transpose(1, 2), padding_behind(lengths, x.size(2)) if shortest < x.size(2) else None


class SpeechInput(nn.Module):
    """Subsampled frames, scaled, with fairseq's sinusoids, and dropout.

    Source: fairseq S2T (arXiv:2010.05171), section 2.

    Args:
        features: numbers per frame.
        channels: hidden width of the convolutions.
        width: C.
        kernel_sizes: one odd size a convolution.
        scale: factor on the subsampled frames.
        dropout: rate on the result.
    """

    def __init__(self, features: int, channels: int, width: int, kernel_sizes: list[int], scale: float, dropout: float):
        super().__init__()
        self.features, self.scale, self.dropout = features, scale, dropout
        self.subsample = Subsampler(features, channels, width, kernel_sizes)
        self.table = Table(halved, width, offset=2, blank_padding=True)

    def read(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """What the encoder makes of its source.

        Args:
            frames: (B, frames, features), or (B, samples) of raw waveforms, which are frames of one number.
            lengths: (B,) numbers of frames; what stands behind them is padding.

        Returns:
            The input of the stack (B, S, C), its padding (B, S) or None where there is none, and it without positions.

        Raises:
            ValueError: if a frame has other than the configured number of features.
        """
        frames = frames.unsqueeze(2) if frames.dim() == 2 else frames
        if frames.size(2) != self.features:
            raise ValueError(
                f"{frames.size(2)} features a frame: must be {self.features}, which is input_feat_per_channel x "
                "input_channels of the data's configuration"
            )
        x, padding = self.subsample(frames, lengths)
        embedded = x = x * self.scale
        x = x + self.table(x.size(1), padding, 0, like=x)
        return dropout(x, self.dropout, self.training), padding, embedded


def padding_behind(lengths: Tensor, length: int) -> Tensor:
    """True behind the end of each sequence: (B,) -> (B, length)."""
    return torch.arange(length, device=lengths.device) >= lengths[:, None]


def kernel_sizes(text: str) -> list[int]:
    """Reads `--conv-kernel-sizes`.

    Raises:
        ValueError: unless it is odd whole numbers, with which one frame is left of every two.
    """
    sizes = [int(size) for size in text.split(",") if size.strip().isdecimal()]
    if len(sizes) != len(text.split(",")) or not all(size % 2 for size in sizes):
        raise ValueError(f"--conv-kernel-sizes={text}: must be odd whole numbers, separated by commas")
    return sizes


def speech_input(args) -> SpeechInput:
    """The input that the options and the data's configuration describe."""
    width = args.encoder_embed_dim
    return SpeechInput(
        args.input_feat_per_channel * args.input_channels,
        args.conv_channels,
        width,
        kernel_sizes(args.conv_kernel_sizes),
        scale=1.0 if args.no_scale_embedding else math.sqrt(width),
        dropout=args.dropout,
    )
