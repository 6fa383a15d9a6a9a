"""The input layer for speech."""

import torch
import torch.nn.functional as F
from fairseq.models.speech_to_text.s2t_transformer import Conv1dSubsampler
from torch import Tensor, nn

from recurrence.dropout import dropout
from recurrence.position import Table, halved


class Subsampler(Conv1dSubsampler):
    """fairseq's convolutions of stride 2 with gated linear units.

    Differs from fairseq: padding is set to zero before every convolution. In fairseq it contains the bias of the first
    convolution, so that the last frames of an utterance depend on the length of the others in the batch.
    """

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Each convolution halves the number of frames.

        Args:
            features: (B, frames, features).
            lengths: (B,).

        Returns:
            (B, S, C), and its padding (B, S) or None.
        """
        x, shortest = features.transpose(1, 2), int(lengths.min())  # read once, because reading waits for the GPU
        for conv in self.conv_layers:
            if shortest < x.size(2):
                x = x.masked_fill(padding_after(lengths, x.size(2))[:, None], 0)
            x = F.glu(conv(x), dim=1)
            lengths, shortest = (lengths + 1) // 2, (shortest + 1) // 2
        return x.transpose(1, 2), padding_after(lengths, x.size(2)) if shortest < x.size(2) else None


class SpeechInput(nn.Module):
    """Subsampled and scaled frames, fairseq's sinusoids if wanted, dropout.

    Source: fairseq S2T (arXiv:2010.05171), section 2.

    Args:
        features: numbers per frame.
        channels: hidden width of the convolutions.
        width: C.
        kernel_sizes: one odd size per convolution.
        scale: factor on the subsampled frames.
        dropout: rate on the output.
        sinusoids: whether positions are added.
    """

    def __init__(
        self,
        features: int,
        channels: int,
        width: int,
        kernel_sizes: list[int],
        scale: float,
        dropout: float,
        sinusoids: bool = True,
    ):
        super().__init__()
        self.features, self.scale, self.dropout = features, scale, dropout
        self.subsample = Subsampler(features, channels, width, kernel_sizes)
        self.table = Table(halved, width, offset=2, blank_padding=True) if sinusoids else None

    def read(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Embeds speech.

        Args:
            frames: (B, frames, features), or raw waveforms (B, samples).
            lengths: (B,) numbers of frames.

        Returns:
            The input of the stack (B, S, C), and its padding (B, S) or None.

        Raises:
            ValueError: if the number of features is not the configured one.
        """
        frames = frames.unsqueeze(2) if frames.dim() == 2 else frames
        if frames.size(2) != self.features:
            raise ValueError(
                f"{frames.size(2)} features per frame: must be {self.features}, which is input_feat_per_channel x "
                "input_channels of the data's configuration"
            )
        weight = self.subsample.conv_layers[0].weight
        x, padding = self.subsample(frames.to(weight.dtype), lengths)  # fairseq-generate --fp16 leaves them in float32
        x = x * self.scale
        if self.table is not None:
            x = x + self.table(x.size(1), padding, 0, like=x)
        return dropout(x, self.dropout, self.training), padding


def padding_after(lengths: Tensor, length: int) -> Tensor:
    """True after the end of each sequence: lengths (B,) -> (B, length) bool."""
    return torch.arange(length, device=lengths.device) >= lengths[:, None]


def kernel_sizes(text: str) -> list[int]:
    """Reads `--conv-kernel-sizes`.

    Raises:
        ValueError: unless it is a list of odd whole numbers.
    """
    sizes = [int(size) for size in text.split(",") if size.strip().isdecimal()]
    if len(sizes) != len(text.split(",")) or not all(size % 2 for size in sizes):
        raise ValueError(f"--conv-kernel-sizes={text}: must be odd whole numbers, separated by commas")
    return sizes
