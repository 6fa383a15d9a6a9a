"""The table of image models in docs/models.md, generated from timm's registry.

python -m timm_plugin.catalogue docs/models.md    # rewrites the table
"""

import inspect
import re
from collections.abc import Iterator, Sequence

import timm
import torch

from recurrence import count
from recurrence.block import Block
from recurrence.catalogue import Table, rewrite
from timm_plugin import MODELS
from timm_plugin._model import ImageModel

LONGEST_ORDER = 12


def paper_row(name: str) -> tuple[str, int]:
    """What a model reproduces, from the docstring of its entry function, with a link to the paper; and its classes."""
    words = inspect.getdoc(timm.models.model_entrypoint(name))
    what = re.match(r".*?(?:Table|Figure|section) \d+|[^:,.]+", words)[0].replace("*", r"\*")
    classes = re.search(r"with (\d+) classes", words)
    paper = timm.get_pretrained_cfg(name).paper_ids.removeprefix("arXiv:")
    return f"[{what}](https://arxiv.org/abs/{paper})", int(classes[1]) if classes else 1000


def size(model: ImageModel) -> str:
    """Width, hidden width of the MLP and heads, each for all stages."""
    sizes = []
    for loop in model.loops():
        ffn = next(block.ffn for block in loop.blocks if block.ffn is not None)
        attention = loop.blocks[0].self_attn
        sizes.append((ffn.up.in_features, ffn.up.out_features, "none" if attention is None else attention.heads))
    return " / ".join(", ".join(map(str, column)) for column in zip(*sizes))


def depth(model: ImageModel) -> int:
    """Passes, each of which ends with an MLP."""
    runs: list[Block] = [loop.blocks[which] for loop in model.loops() for which in loop.order]
    return sum(block.ffn is not None for block in runs)


def shown(order: Sequence[int]) -> str:
    """An order; a long one is abbreviated."""
    words = list(map(str, order))
    return " ".join(words if len(words) <= LONGEST_ORDER else [*words[:4], "...", *words[-4:]])


def row(name: str) -> list[str]:
    """A row of the table. The model is built at full size, and runs on one black image."""
    what, classes = paper_row(name)
    model = timm.create_model(name, num_classes=classes).eval()
    order = "; ".join(shown(loop.order) for loop in model.loops())
    image = torch.zeros(1, *model.pretrained_cfg["input_size"])
    stored, unshared = (f"{number(model):,}" for number in (count.stored, count.unshared))
    giga = f"{count.macs(model, image) / 1e9:.2f}"
    return [f"`{name}`", size(model), str(depth(model)), order, stored, unshared, giga, what]


def rows() -> Iterator[list[str]]:
    """All rows."""
    return map(row, MODELS)


SIZES = ("name", "width / MLP / heads", "passes", "order", "stored parameters:", "the same unshared:", "GMAC:")
TABLE = Table("image models", (*SIZES, "reproduces"), rows)

if __name__ == "__main__":
    rewrite("python -m timm_plugin.catalogue", TABLE)
