"""The learnable coefficients of residual sums, as parameters of a checkpoint and as lines of a log name them.

Source: SReT (arXiv:2111.05297), section 3 and Figure 6: alpha to theta of attention, FFN and projection. Its equations
and its text give these names in different ways; here the role is the name, see `recurrence.residual`.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

STORED = re.compile(
    r"(train_)?(_orig_mod\.)?(?P<stack>.*?)\.?(\bloop\.)?\b(blocks\.(?P<block>\d+)\.residuals\.(?P<sublayer>\d+)"
    r"|own\.(?P<run>\d+)\.projection\.residual)\.(?P<role>identity|branch)$"
)
# What the translation models of `fairseq_plugin.models.recursive` log.
LOGGED = re.compile(
    r"(train_)?(?P<stack>encoder|decoder)\.(block|pass)(?P<index>\d+)\.(?P<sublayer>\w+)\.(?P<role>identity|branch)$"
)
SUBLAYERS = {1: ("sublayer",), 2: ("attention", "FFN"), 3: ("attention", "cross-attention", "FFN")}
LOGGED_SUBLAYERS = {"self_attn": "attention", "cross_attn": "cross-attention", "ffn": "FFN", "nll": "projection"}


class Coefficient(NamedTuple):
    """What a coefficient weighs.

    stack: name of what holds the loop over depth; "" where the model itself does.
    sublayer: "attention", "cross-attention", "FFN" or "projection".
    index: of the stored block, or of the pass for a projection, from 0.
    role: "identity" weighs the stream, "branch" what the sublayer made of it.
    """

    stack: str
    sublayer: str
    index: int  # type: ignore[assignment]  # a field, not the method of tuples
    role: str


def coefficients(table: Mapping[str, Any]) -> dict[Coefficient, float]:
    """The residual coefficients in a table of named numbers; {} where there are none.

    Args:
        table: a state dict, or a line of a log that names its numbers as a state dict does or as fairseq's log.
    """
    stored = {name: found for name in table if (found := STORED.match(name))}
    logged = {name: found for name in table if (found := LOGGED.match(name))}
    most: dict[str, int] = {}
    for found in stored.values():
        most[found["stack"]] = max(most.get(found["stack"], 0), int(found["sublayer"] or 0))
    named = {name: _stored(found, SUBLAYERS[1 + most[found["stack"]]]) for name, found in stored.items()}
    for name, found in logged.items():
        sublayer = LOGGED_SUBLAYERS[found["sublayer"]]
        named[name] = Coefficient(found["stack"], sublayer, int(found["index"]), found["role"])
    return {coefficient: float(table[name]) for name, coefficient in named.items()}


def named_coefficients(model: nn.Module) -> dict[str, float]:
    """The residual coefficients of a model by the names of its parameters, as :func:`coefficients` reads them."""
    return {name: value.item() for name, value in model.named_parameters() if STORED.match(name)}


def _stored(found: re.Match, sublayers: tuple[str, ...]) -> Coefficient:
    if found["run"] is not None:
        return Coefficient(found["stack"], "projection", int(found["run"]), found["role"])
    return Coefficient(found["stack"], sublayers[int(found["sublayer"])], int(found["block"]), found["role"])
