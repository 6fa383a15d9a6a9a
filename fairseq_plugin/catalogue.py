"""The table of architectures in README.md, generated from the registry.

python -m fairseq_plugin.catalogue README.md    # rewrites the table between its two marks
"""

import argparse
import sys
from pathlib import Path

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_plugin.modules.build import build_architecture, numbered_dictionary
from recurrence import count

BEGIN, END = "<!-- architectures: begin -->", "<!-- architectures: end -->"
HEAD = (
    "| `--arch` | width / FFN / heads | passes | order of the encoder | stored in the stacks | in all, 32,768 joint "
    "symbols | the same unshared |\n|---|---|---|---|---:|---:|---:|\n"
)


def architectures() -> list[str]:
    """Names of the registered architectures of this package, by family, in the order of registration."""
    return [name for name, model in ARCH_MODEL_REGISTRY.items() if model.__module__.startswith("fairseq_plugin.")]


def row(arch: str) -> str:
    """One line of the table; the model is built at full size, without memory for its weights."""
    args = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    joint = numbered_dictionary(32768)
    with torch.device("meta"):
        model = build_architecture(arch, joint, joint, share_all_embeddings=True)
    stacks = (model.encoder.loop, model.decoder.loop)
    size = f"{args.encoder_embed_dim} / {args.encoder_ffn_embed_dim} / {args.encoder_attention_heads}"
    order = " ".join(map(str, stacks[0].order))
    numbers = (sum(map(count.stored, stacks)), count.stored(model), count.unshared(model))
    depth = f"{args.encoder_layers} + {args.decoder_layers}"
    return f"| `{arch}` | {size} | {depth} | {order} | " + " | ".join(f"{number:,}" for number in numbers) + " |\n"


def table() -> str:
    """The whole table, between its marks."""
    return f"{BEGIN}\n{HEAD}{''.join(map(row, architectures()))}{END}"


def with_table(text: str) -> str:
    """The text with its table made anew.

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
