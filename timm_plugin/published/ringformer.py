"""RingFormer's published image models and their baselines: the arguments of a timm model, and the names of its weights.

Source: the published code of RingFormer (arXiv:2502.13181).
"""

from collections.abc import Iterator
from typing import Any

from torch import nn

from recurrence.weights.names import Piece, affine, stacked
from timm_plugin._model import ImageModel

# Systems that store one block; the published names of the list of layers, and of the norm before the MLP.
SHARED = ("ringformer_vit", "uit")
LAYERS = {"ringformer_vit": "layers", "uit": "layers", "owf_vit": "attn_blocks", "vit": "layer"}
MLP_NORM = {"ringformer_vit": "", "uit": "ff_norm", "owf_vit": "", "vit": "ffn_norm"}


def arguments(system: str, config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `timm.create_model` for a published configuration.

    Raises:
        ValueError: if it does not give the depth.
    """
    levels, layers = config.get("num_levels"), config.get("num_layers")
    depth = (levels or layers) if system in SHARED else (layers or levels)
    if not depth:
        raise ValueError(f"num_levels={levels}, num_layers={layers}: one must be given and >= 1")
    kwargs = dict(
        img_size=config["img"],
        patch_size=config["patch"],
        embed_dim=config["hidden"],
        mlp_ratio=config["mlp"] / config["hidden"],
        num_heads=config["heads"],
        num_classes=config["classes"],
        depth=depth,
    )
    if system == "ringformer_vit":
        kwargs["signal_rank_divisor"] = config["hidden"] // config["rank_attn"]
    if system == "uit":
        kwargs["level_signal"] = "static" if config["level_encoding"] == "static" else "learned"
    return kwargs


def pieces(system: str, model: ImageModel) -> Iterator[Piece]:
    """The table of the model's weights."""
    yield Piece("transformer.embeddings.cls_token", "cls_token")
    if system != "uit":
        yield Piece("transformer.embeddings.position_embeddings.pos_embed", "pos_embed")
    elif model.level_embed is not None:
        for level in range(model.loop.passes):
            rows = (level, level + 1, model.loop.passes)
            yield Piece("transformer.encoder.level_embed.level_embed.weight", "level_embed", rows, rows)
    yield from affine("transformer.embeddings.patch_embeddings", "patch_embed.proj")
    yield from affine("transformer.encoder.encoder_norm", "norm")
    yield from affine("head", "head")
    for index, block in enumerate(model.loop.blocks):
        yield from _block_pieces(system, index, block)
    for level in range(model.loop.passes if system == "ringformer_vit" else 0):
        yield from _pass_pieces(level)


def _block_pieces(system: str, index: int, block: nn.Module) -> Iterator[Piece]:
    theirs, ours = f"transformer.encoder.{LAYERS[system]}.{index}", f"loop.blocks.{index}"
    mlp, mlp_norm = f"{theirs}.ffn", f"{theirs}.{MLP_NORM[system]}"
    if block.self_attn is None:  # the MLP of One Wide FFN
        mlp, mlp_norm = "transformer.encoder.ff_block.ffn", "transformer.encoder.ff_block.ff_norm"
    else:
        for kind in ("weight", "bias"):
            keys = [f"{theirs}.attn.{name}.{kind}" for name in ("query", "key", "value")]
            yield from stacked(keys, f"{ours}.self_attn.qkv.{kind}")
        yield from affine(f"{theirs}.attn.out", f"{ours}.self_attn.out")
    if block.ffn is not None:
        yield from affine(f"{mlp}.fc1", f"{ours}.ffn.up")
        yield from affine(f"{mlp}.fc2", f"{ours}.ffn.down")
    parts = (block.self_attn, f"{theirs}.attention_norm"), (block.ffn, mlp_norm)
    norms = [norm for part, norm in parts if part is not None]
    for number, norm in enumerate(norms if hasattr(block, "norms") else ()):  # otherwise each pass has its own
        yield from affine(norm, f"{ours}.norms.{number}")


def _pass_pieces(level: int) -> Iterator[Piece]:
    ours = f"loop.own.{level}"
    for index, kind in enumerate(("ATTN", "FF")):
        yield from affine(f"transformer.encoder.{kind}_layer_norms.{level}", f"{ours}.norms.{index}")
    for number, factor in (("01", "up"), ("02", "down")):
        keys = [f"transformer.encoder.ATTN_lev_embed_{name}_{number}" for name in "QKV"]
        yield from stacked(keys, f"{ours}.qkv_signal.{factor}", level)
        yield Piece(f"transformer.encoder.lev_embed_FF_{number}", f"{ours}.ffn_signal.{factor}", level=level)
