"""The tables of architectures in README.md, generated from the registry.

python -m fairseq_plugin.catalogue README.md    # rewrites the tables between their two marks
"""

import argparse
import sys
from pathlib import Path

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_plugin.modules.build import build_architecture, build_language_model, numbered_dictionary
from fairseq_plugin.modules.language_model import RecurrentLanguageModel
from recurrence import count
from recurrence.causal import CausalStack
from recurrence.loop import Loop

BEGIN, END = "<!-- architectures: begin -->", "<!-- architectures: end -->"
TRANSLATION = (
    "| `--arch` | width / FFN / heads | passes | order of the encoder | stored in the stacks | in all, 32,768 joint "
    "symbols | the same unshared |\n|---|---|---|---|---:|---:|---:|\n"
)
LANGUAGE = (
    "| `--arch` | width / FFN / heads | order | stored in the stack | symbols in the paper | in all | the same "
    "unshared |\n|---|---|---|---:|---:|---:|---:|\n"
)
# Symbols of the corpus on which the paper trains a language model; those of WikiText-103 for the others.
SYMBOLS = {"ilr_small": 1024, "ilr_large": 32_000, "recurrent_lm": 65}
WIKITEXT_103 = 267_744


def architectures() -> list[str]:
    """Names of the registered architectures of this package, by family, in the order of registration."""
    return [name for name, model in ARCH_MODEL_REGISTRY.items() if model.__module__.startswith("fairseq_plugin.")]


def is_language_model(arch: str) -> bool:
    """Whether it reads one text instead of two."""
    return issubclass(ARCH_MODEL_REGISTRY[arch], RecurrentLanguageModel)


def options(arch: str) -> argparse.Namespace:
    """Values of its preset."""
    args = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def translation_row(arch: str) -> str:
    """One line of the table; the model is built at full size, without memory for its weights."""
    args, joint = options(arch), numbered_dictionary(32768)
    with torch.device("meta"):
        model = build_architecture(arch, joint, joint, share_all_embeddings=True)
    stacks = (model.encoder.loop, model.decoder.loop)
    size = f"{args.encoder_embed_dim} / {args.encoder_ffn_embed_dim} / {args.encoder_attention_heads}"
    depth = f"{args.encoder_layers} + {args.decoder_layers}"
    return line(arch, size, depth, order(stacks[0]), sum(map(count.stored, stacks)), *stored(model))


def language_row(arch: str) -> str:
    """As :func:`translation_row`, with as many symbols as in the paper."""
    args, symbols = options(arch), SYMBOLS.get(arch, WIKITEXT_103)
    with torch.device("meta"):
        model = build_language_model(arch, numbered_dictionary(symbols))
    size = f"{args.decoder_embed_dim} / {args.decoder_ffn_embed_dim} / {args.decoder_attention_heads}"
    stack = model.decoder.stack
    way = order(stack.loop) if isinstance(stack, CausalStack) else "along the sequence"
    return line(arch, size, way, count.stored(stack), symbols, *stored(model))


def order(loop: Loop) -> str:
    """The blocks in the order of their passes."""
    return " ".join(map(str, loop.order))


def stored(model: torch.nn.Module) -> tuple[int, int]:
    """Stored parameters, and those of the same model unshared."""
    return count.stored(model), count.unshared(model)


def line(arch: str, *cells: str | int) -> str:
    """A line of a table."""
    shown = (f"{cell:,}" if isinstance(cell, int) else cell for cell in cells)
    return f"| `{arch}` | " + " | ".join(shown) + " |\n"


def table() -> str:
    """Both tables, between their marks."""
    translation = [arch for arch in architectures() if not is_language_model(arch)]
    language = [arch for arch in architectures() if is_language_model(arch)]
    rows = TRANSLATION + "".join(map(translation_row, translation))
    return f"{BEGIN}\n{rows}\nLanguage models:\n\n{LANGUAGE}{''.join(map(language_row, language))}{END}"


def with_table(text: str) -> str:
    """The text with its tables made anew.

    Raises:
        ValueError: if the marks are missing.
    """
    if BEGIN not in text or END not in text:
        raise ValueError(f"no table to replace: needs the lines {BEGIN} and {END}")
    before, rest = text.split(BEGIN, 1)
    return before + table() + rest.split(END, 1)[1]


if __name__ == "__main__":
    readme = Path(sys.argv[1])
    readme.write_text(with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
