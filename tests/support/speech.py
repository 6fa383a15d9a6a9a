"""Speech models: architectures, variants, fairseq's task and random frames."""

import functools
import tempfile
from argparse import Namespace
from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks.speech_to_text import SpeechToTextTask
from torch import Tensor, nn

import fairseq_plugin  # noqa: F401  (registers the architectures)
from fairseq_plugin.models.speech import SpeechToText
from tests.support import translation
from tests.support.words import dictionary

TASK = "speech_to_text"
ARCHS = sorted(arch for arch, model in ARCH_MODEL_REGISTRY.items() if issubclass(model, SpeechToText))
PADDINGS = [(False, False), (False, True)]  # speech is padded on the right, text on either side
FEATURES = 6
TINY = ["--conv-channels", "12", "--conv-kernel-sizes", "3,5"]
VARIANTS = {
    "as published": [],
    "unequal sides": ["--encoder-layers", "6", "--decoder-embed-dim", "24", "--decoder-attention-heads", "3"],
    "three convolutions": ["--conv-kernel-sizes", "5,3,1"],
}
# Variants of one architecture.
VARIANTS_OF = {"s2t_cycle": {"any order": ["--encoder-order", "0,1,1,1,2", "--decoder-order", "0,1,0"]}}


def variants(arch: str) -> dict[str, list[str]]:
    return {**VARIANTS, **VARIANTS_OF.get(arch, {})}


def task(target: Dictionary, features: int = FEATURES, **limits: int) -> SpeechToTextTask:
    """fairseq's own task, on a folder with nothing but a configuration."""
    limits = {"max_source_positions": 6000, "max_target_positions": 1024, **limits}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.yaml").write_text(f"input_feat_per_channel: {features}\n")
        return SpeechToTextTask(Namespace(data=folder, config_yaml="config.yaml", **limits), target)


def frames(lengths: tuple[int, ...], symbols: int = 0, seed: int = 0) -> list[Tensor]:
    """Random utterances (frames, features) that have these lengths after two convolutions, of no symbols."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(4 * length - number % 4, FEATURES, generator=generator, dtype=torch.float64)
        for number, length in enumerate(lengths)
    ]


def task_writing(symbols: int) -> SpeechToTextTask:
    return task(dictionary(symbols))


def tiny_flags(arch: str, *flags: str) -> list[str]:
    """Flags that make an architecture small but keep its structure."""
    return [*translation.side_flags(arch, *flags), *TINY, *flags]


def collate_source(source: list[Tensor], left_pad: bool = False, extra: int = 0) -> tuple[Tensor, Tensor]:
    """`src_tokens` (B, frames, features) and `src_lengths`; values after the end of an utterance are not zero."""
    batch = nn.utils.rnn.pad_sequence(source, batch_first=True, padding_value=7.0)
    return F.pad(batch, (0, 0, 0, extra), value=7.0), torch.tensor([len(row) for row in source])


rows = functools.partial(translation.rows, of_source=frames)
collate = functools.partial(translation.collate, of_source=collate_source)
