"""Names of weights in timm's transformer blocks, and in SReT's published code, which uses them too."""

from collections.abc import Iterator, Sequence

from recurrence.loop import Loop
from recurrence.weights.names import Piece, affine

BLOCK = {  # theirs -> ours
    "norm1": "norms.0",
    "attn.qkv": "self_attn.qkv",
    "attn.proj": "self_attn.out",
    "norm2": "norms.1",
    "mlp.fc1": "ffn.up",
    "mlp.fc2": "ffn.down",
}

# SReT's names -> ours, in a block, and in the projection after a run of a block.
BLOCK_NAMES = {
    **BLOCK,
    "coefficient1": "residuals.0.identity",
    "coefficient2": "residuals.0.branch",
    "coefficient3": "residuals.1.identity",
    "coefficient4": "residuals.1.branch",
}
NLL_NAMES = {
    "norm1": "norm",
    "mlp.fc1": "up",
    "mlp.fc2": "down",
    "coefficient1": "residual.identity",
    "coefficient2": "residual.branch",
}


def stage_pieces(loops: Sequence[Loop]) -> Iterator[Piece]:
    """The weights of the stages; the published code lists a block at each run, followed by the projection."""
    for stage, loop in enumerate(loops):
        if stage:
            yield from affine(f"pools.{stage - 1}.conv", f"stages.{stage}.pool")
        for index, which in enumerate(loop.order):
            theirs, ours = f"transformers.{stage}.blocks", f"stages.{stage}.loop"
            yield from _layer_pieces(f"{theirs}.{2 * index}", f"{ours}.blocks.{which}", BLOCK_NAMES)
            yield from _layer_pieces(f"{theirs}.{2 * index + 1}", f"{ours}.own.{index}.projection", NLL_NAMES)


def _layer_pieces(theirs: str, ours: str, table: dict[str, str]) -> Iterator[Piece]:
    for name, own in table.items():
        if name.startswith("coefficient"):
            yield Piece(f"{theirs}.{name}.bias", f"{ours}.{own}")
        else:
            yield from affine(f"{theirs}.{name}", f"{ours}.{own}")
