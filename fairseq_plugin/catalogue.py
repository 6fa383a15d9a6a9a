"""Generates the tables of architectures in docs/models.md from the registry.

Usage::

    python -m fairseq_plugin.catalogue docs/models.md    # rewrites the tables between their marks
"""

import argparse
from collections.abc import Iterator

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import nn

from fairseq_plugin.models.speech import SpeechToText
from fairseq_plugin.modules.build import build_architecture, build_language_model, numbered_dictionary
from fairseq_plugin.modules.language_model import LanguageModel
from recurrence import count
from recurrence.catalogue import Table, rewrite
from recurrence.causal import CausalStack
from recurrence.loop import Loop

# Number of symbols in the paper's corpus; WikiText-103's for the other language models.
SYMBOLS = {"ilr_small": 1024, "ilr_large": 32_000, "recurrent_lm": 65}
WIKITEXT_103 = 267_744
# Symbols and features per frame of fairseq's LibriSpeech recipe.
LIBRISPEECH, FILTERBANK = 10_000, dict(input_feat_per_channel=80, input_channels=1)


def architectures() -> list[str]:
    """Names of the registered architectures of this package, by family, in the order of registration."""
    return [name for name, model in ARCH_MODEL_REGISTRY.items() if model.__module__.startswith("fairseq_plugin.")]


def is_language_model(arch: str) -> bool:
    """Whether the model is decoder-only."""
    return issubclass(ARCH_MODEL_REGISTRY[arch], LanguageModel)


def is_speech_model(arch: str) -> bool:
    """Whether the encoder reads speech."""
    return issubclass(ARCH_MODEL_REGISTRY[arch], SpeechToText)


def options(arch: str) -> argparse.Namespace:
    """The values of its preset."""
    args = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def translation_rows() -> Iterator[list[str]]:
    """One row per translation model, built at full size on the meta device."""
    for arch in architectures():
        if is_language_model(arch) or is_speech_model(arch):
            continue
        joint = numbered_dictionary(32768)
        with torch.device("meta"):
            model = build_architecture(arch, joint, joint, share_all_embeddings=True)
        yield encoder_decoder_row(arch, model)


def speech_rows() -> Iterator[list[str]]:
    """One row per speech model."""
    for arch in filter(is_speech_model, architectures()):
        with torch.device("meta"):
            symbols = numbered_dictionary(LIBRISPEECH)
            model = build_architecture(arch, None, symbols, share_decoder_input_output_embed=True, **FILTERBANK)
        yield encoder_decoder_row(arch, model)


def encoder_decoder_row(arch: str, model: nn.Module) -> list[str]:
    """The row of an encoder-decoder."""
    args, stacks = options(arch), (model.encoder.loop, model.decoder.loop)
    size = f"{args.encoder_embed_dim} / {args.encoder_ffn_embed_dim} / {args.encoder_attention_heads}"
    depth = f"{args.encoder_layers} + {args.decoder_layers}"
    return [f"`{arch}`", size, depth, order(stacks[0]), f"{sum(map(count.stored, stacks)):,}", *stored(model)]


def language_rows() -> Iterator[list[str]]:
    """One row per language model, with the paper's number of symbols."""
    for arch in filter(is_language_model, architectures()):
        args, symbols = options(arch), SYMBOLS.get(arch, WIKITEXT_103)
        with torch.device("meta"):
            model = build_language_model(arch, numbered_dictionary(symbols))
        size = f"{args.decoder_embed_dim} / {args.decoder_ffn_embed_dim} / {args.decoder_attention_heads}"
        stack = model.decoder.stack
        blocks = order(stack.loop) if isinstance(stack, CausalStack) else "along the sequence"
        yield [f"`{arch}`", size, blocks, f"{count.stored(stack):,}", f"{symbols:,}", *stored(model)]


def order(loop: Loop) -> str:
    """The order of blocks, such as `0 1 0 1`."""
    return " ".join(map(str, loop.order))


def stored(model: nn.Module) -> list[str]:
    """Numbers of stored parameters: of the model, and of the same model unshared."""
    return [f"{count.stored(model):,}", f"{count.unshared(model):,}"]


ARCH, UNSHARED = ("`--arch`", "width / FFN / heads"), "the same unshared:"
STACKS = (*ARCH, "passes", "order of the encoder", "stored in the stacks:")
STACK = (*ARCH, "order", "stored in the stack:", "symbols in the paper:")
TABLES = (
    Table("architectures", (*STACKS, "total, 32,768 joint symbols:", UNSHARED), translation_rows),
    Table("speech models", (*STACKS, "total, 10,000 symbols:", UNSHARED), speech_rows),
    Table("language models", (*STACK, "total:", UNSHARED), language_rows),
)

if __name__ == "__main__":
    rewrite("python -m fairseq_plugin.catalogue", *TABLES)
