"""SReT's published image models: the arguments of a timm model, and the names of its weights.

Source: the published code of SReT (arXiv:2111.05297).
"""

from collections.abc import Iterator
from typing import Any

from recurrence.weights.names import Piece
from timm_plugin._model import ImageModel
from timm_plugin._names import stage_pieces


def arguments(system: str, config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `timm.create_model` for a published configuration.

    Raises:
        ValueError: if the published code and this one would run the blocks differently.
    """
    depth, stored = config["depth"], config["recursive_num"]
    loops = depth[0] // stored[0]
    if any(passes != loops * blocks for passes, blocks in zip(depth, stored)):
        raise ValueError(f"depth={depth}, recursive_num={stored}: every block must run equally often")
    sliced = "groups1" in config
    if sliced and loops != 2:
        raise ValueError(
            f"groups1, groups2: {loops} runs of a block: must be 2, because the published code treats every second run "
            "of a stage as the second run of a block; without slices, any number works"
        )
    groups = zip(config["groups1"], config["groups2"]) if sliced else ((1,) * loops for _ in depth)
    return dict(
        img_size=config["image_size"],
        embed_dim=config["base_dims"][0] * config["heads"][0],
        num_heads=tuple(config["heads"]),
        depths=tuple(config["recursive_num"]),
        loops=loops,
        groups=tuple(groups),
        mlp_ratio=config["mlp_ratio"],
        nll_ratio=config["np_mlp_ratio"],
        num_classes=config["num_classes"],
        drop_path_rate=config["drop_path_rate"],
        drop_path_placement="published",
    )


def pieces(system: str, model: ImageModel) -> Iterator[Piece]:
    """The table of the model's weights."""
    yield from stage_pieces(model.loops())
    for name in model.state_dict():
        if name.startswith(("patch_embed.conv", "patch_embed.bn", "pos_embed", "norm.", "head.")):
            yield Piece(name, name)
