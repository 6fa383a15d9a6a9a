"""The key names of SReT's released checkpoints, in which a shared block stands at each of its runs."""

from collections.abc import Iterator, Sequence

from recurrence.loop import Loop
from recurrence.weights.names import Piece

BLOCK = {
    **dict(norm1="norms.0", norm2="norms.1"),
    **{"attn.qkv": "self_attn.qkv", "attn.proj": "self_attn.out", "mlp.fc1": "ffn.up", "mlp.fc2": "ffn.down"},
    **{"coefficient1": "residuals.0.identity", "coefficient2": "residuals.0.branch"},
    **{"coefficient3": "residuals.1.identity", "coefficient4": "residuals.1.branch"},
}
NLL = {
    **{"norm1": "norm", "mlp.fc1": "up", "mlp.fc2": "down"},
    **{"coefficient1": "residual.identity", "coefficient2": "residual.branch"},
}


def sret_names(loops: Sequence[Loop]) -> Iterator[Piece]:
    """The names of the released code, in whose list of layers a block stands at each of its runs, each NLL behind one.

    Args:
        loops: of the three stages.
    """
    for stage, loop in enumerate(loops):
        if stage:
            for kind in ("weight", "bias"):
                yield Piece(f"pools.{stage - 1}.conv.{kind}", f"stages.{stage}.pool.{kind}")
        for index, which in enumerate(loop.order):
            layers = f"transformers.{stage}.blocks"
            yield from _names(f"{layers}.{2 * index}", f"stages.{stage}.loop.blocks.{which}", BLOCK)
            yield from _names(f"{layers}.{2 * index + 1}", f"stages.{stage}.loop.own.{index}.projection", NLL)


def _names(theirs: str, ours: str, table: dict[str, str]) -> Iterator[Piece]:
    for name, own in table.items():
        if name.startswith("coefficient"):
            yield Piece(f"{theirs}.{name}.bias", f"{ours}.{own}")
        else:
            yield Piece(f"{theirs}.{name}.weight", f"{ours}.{own}.weight")
            yield Piece(f"{theirs}.{name}.bias", f"{ours}.{own}.bias")
