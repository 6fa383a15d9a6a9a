"""Speech recognition with shared layers: SEQUENCE, CYCLE, CYCLE (REV), Universal and Vanilla of Takase & Kiyono.

Source: "Lessons on Parameter Sharing across Layers in Transformers" (arXiv:2104.06022), Table 4, on the model of
fairseq S2T (arXiv:2010.05171): two convolutions that keep one of four frames, pre-norm stacks, ReLU, sinusoids.

Sizes are for the 10,000 symbols of fairseq's LibriSpeech recipe, with one matrix for input and output
(`--share-decoder-input-output-embed`): 52,293,632 parameters for 6 + 6 layers of 512/2048 that run once (`s2t_vanilla`,
52M in the paper), 50,190,336 for 8 + 4 stored layers that run twice (50M), 53,685,248 for one layer each of 1024/6144
that runs 6 times (`s2t_universal`, 54M).

Differs from the paper, which does not give the convolutions, the vocabulary and the shape of the universal row: they
are inferred from its counts.
Differs from fairseq: see :class:`Subsampler`.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils, hub_utils
from fairseq.models.speech_to_text.hub_interface import S2THubInterface
from fairseq.models.speech_to_text.s2t_transformer import Conv1dSubsampler
from torch import Tensor, nn

from fairseq_plugin.embedding import dropout_rate
from fairseq_plugin.models.parameter_sharing import ParameterSharing, ParameterSharingOptions, unshared_as
from fairseq_plugin.options import like, option
from fairseq_plugin.register import register_family, size
from fairseq_repairs.checkpoints import MARKS
from fairseq_repairs.messages import without_lists
from recurrence.errors import FieldError
from recurrence.parts import Dropout
from recurrence.position import Table, halved

# Options that fairseq's task adds.
OF_THE_DATA = ("input_feat_per_channel", "input_channels", "speaker_to_id")


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
        sinusoids: bool,
    ):
        super().__init__()
        self.features, self.scale, self.dropout = features, scale, Dropout(dropout)
        self.subsample = Subsampler(features, channels, width, kernel_sizes)
        self.table = Table(halved, width, offset=2, blank_padding=True) if sinusoids else None

    def forward(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
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
        return self.dropout(x), padding


def padding_after(lengths: Tensor, length: int) -> Tensor:
    """True after the end of each sequence: lengths (B,) -> (B, length) bool."""
    return torch.arange(length, device=lengths.device) >= lengths[:, None]


def kernel_sizes(text: str) -> list[int]:
    """Reads `--conv-kernel-sizes`. Raises FieldError unless it is a list of odd whole numbers."""
    sizes = [int(size) for size in text.split(",") if size.strip().isdecimal()]
    if len(sizes) != len(text.split(",")) or not all(size % 2 for size in sizes):
        raise FieldError("conv_kernel_sizes", text, "must be odd whole numbers, separated by commas")
    return sizes


@dataclass
class SpeechOptions(ParameterSharingOptions):
    """The convolutions."""

    # Fixed by fairseq's design.
    fixed = dict(
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

    conv_channels: int = option(1024, "hidden width of the convolutions (their gates halve it)")
    conv_kernel_sizes: str = option("5,5", "one odd size per convolution, K,K; each halves the number of frames")
    load_pretrained_encoder_from: str | None = option(None, "begin with the encoder of this checkpoint")
    input_feat_per_channel: int | None = option(None, least=1)
    input_channels: int | None = option(None, least=1)
    speaker_to_id: Any = option(None)


class SpeechToText(ParameterSharing):
    """M stored layers that run N times on either side; the encoder reads speech (`--task speech_to_text`)."""

    options = SpeechOptions
    reads_text = False
    unshared = staticmethod(partial(unshared_as, "s2t_vanilla"))

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "model.pt",
        data_name_or_path: str = ".",
        config_yaml: str = "config.yaml",
        **kwargs: Any,
    ) -> S2THubInterface:
        """fairseq's hub interface of speech, as its own `s2t_transformer` gives; that of other models reads text.

        Differs from fairseq: the model is prepared for inference.

        Args:
            model_name_or_path: folder of the checkpoint.
            checkpoint_file: its name there.
            data_name_or_path: folder of the data's dictionary and of `config_yaml`.
            config_yaml: the configuration of the data.
            **kwargs: options that replace the checkpoint's, such as `beam=5`.

        Raises:
            ValueError: if there are several checkpoints.
        """
        where = model_name_or_path, checkpoint_file, data_name_or_path, cls.hub_models()
        loaded = hub_utils.from_pretrained(*where, config_yaml=config_yaml, **kwargs)
        if len(loaded["models"]) > 1:
            rule = "must be one checkpoint; fairseq-generate --path takes several"
            raise ValueError(f"checkpoint_file={checkpoint_file}: {rule}")
        (model,) = loaded["models"]
        model.prepare_for_inference_(loaded["args"])
        return S2THubInterface(loaded["args"], loaded["task"], model)

    @classmethod
    def inputs(cls, args, side: str, embedding: nn.Embedding | None, most: int) -> nn.Module:
        if side == "encoder":
            width = args.encoder_embed_dim
            return SpeechInput(
                args.input_feat_per_channel * args.input_channels,
                args.conv_channels,
                width,
                kernel_sizes(args.conv_kernel_sizes),
                scale=1.0 if args.no_scale_embedding else math.sqrt(width),
                dropout=dropout_rate(args),
                sinusoids=cls.position_kind(args, side) == "sinusoidal",
            )
        return super().inputs(args, side, embedding, most)

    @classmethod
    def _build(cls, args, task):
        model, path = super()._build(args, task), args.load_pretrained_encoder_from
        if path:
            try:
                model.encoder.load_state_dict(encoder_weights(path))
            except RuntimeError as error:
                raise FieldError("load_pretrained_encoder_from", path, without_lists(error)) from error
            args.load_pretrained_encoder_from = None  # the checkpoint's weights hold it
        return model

    @classmethod
    def _check(cls, args, task) -> None:
        super()._check(args, task)
        if task.source_dictionary is not None:
            raise ValueError(f"--task: {type(task).__name__} reads text: must be speech_to_text")
        path = args.load_pretrained_encoder_from
        if path and not Path(path).is_file():
            raise FieldError("load_pretrained_encoder_from", path, "must be a checkpoint; there is no such file")
        if cls.position_kind(args, "encoder") == "learned":
            raise FieldError("position", "learned", "not for speech, whose frames have no largest number")
        for name in ("input_feat_per_channel", "input_channels"):  # the task sets them from the data's configuration
            if getattr(args, name) is None:
                raise FieldError(name, None, "must be >= 1")
        kernel_sizes(args.conv_kernel_sizes)
        if args.conv_channels < 2 or args.conv_channels % 2:
            raise FieldError("conv_channels", args.conv_channels, "must be even and >= 2, because gates halve it")


def encoder_weights(path: str) -> OrderedDict[str, Tensor]:
    """The encoder's weights in a checkpoint, with what its modules note, such as orders; fairseq forgets that."""
    whole, start = checkpoint_utils.load_checkpoint_to_cpu(path)["model"], "encoder."
    found = OrderedDict((key.removeprefix(start), whole[key]) for key in whole if key.startswith(start))
    notes = getattr(whole, MARKS, {})
    setattr(found, MARKS, {name.removeprefix(start): notes[name] for name in notes if name.startswith(start)})
    return found


SMALL = size(512, 2048, 8, 6)
DEEP = dict(SMALL, encoder_layers=16, decoder_layers=8, encoder_unique_layers=8, decoder_unique_layers=4)

register_family(
    "recurrent_speech_to_text",
    SpeechToText,
    {
        "s2t_sequence": dict(DEEP, strategy="sequence"),
        "s2t_cycle": dict(DEEP, strategy="cycle"),
        "s2t_cycle_rev": dict(DEEP, strategy="cycle_rev"),
        "s2t_universal": size(1024, 6144, 16, 6, unique_layers=1),
        "s2t_vanilla": SMALL,
    },
    dropout=0.15,
    attention_dropout=like("dropout"),
    activation_dropout=like("dropout"),
)
