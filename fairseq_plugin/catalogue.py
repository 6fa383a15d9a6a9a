"""The table of architectures in README.md, generated from the registry.

python -m fairseq_plugin.catalogue README.md    # rewrites the table between its two marks
"""

import argparse
from collections.abc import Iterator

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_plugin.modules.build import build_architecture, numbered_dictionary
from recurrence import count
from recurrence.catalogue import Table


def architectures() -> list[str]:
    """Names of the registered architectures of this package, by family, in the order of registration."""
    return [name for name, model in ARCH_MODEL_REGISTRY.items() if model.__module__.startswith("fairseq_plugin.")]


def row(arch: str) -> list[str]:
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
    return [f"`{arch}`", size, depth, order, *(f"{number:,}" for number in numbers)]


def rows() -> Iterator[list[str]]:
    """All lines."""
    return map(row, architectures())


TABLE = Table(
    "architectures",
    (
        *("`--arch`", "width / FFN / heads", "passes", "order of the encoder"),
        *("stored in the stacks:", "in all, 32,768 joint symbols:", "the same unshared:"),
    ),
    rows,
)

if __name__ == "__main__":
    TABLE.main()
