"""Reads the learnable coefficients of residual sums from checkpoints and logs.

Source: SReT (arXiv:2111.05297), section 3 and Figure 6: alpha to theta of attention, FFN and projection. Its equations
and its text disagree about the names; here each is named after its role, see `recurrence.residual`.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

PLACE = r"(train_)?(_orig_mod\.)?(?P<stack>.*?)\.?(\bloop\.)?\b"
STORED = re.compile(
    PLACE + r"(blocks\.(?P<block>\d+)\.residuals\.(?P<sublayer>\d+)"
    r"|own\.(?P<run>\d+)\.projection\.residual)\.(?P<role>identity|branch)$"
)
# What the translation models of `fairseq_plugin.models.recursive` log.
LOGGED = re.compile(
    r"(train_)?(?P<stack>encoder|decoder)\.(block|pass)(?P<index>\d+)\.(?P<sublayer>\w+)\.(?P<role>identity|branch)$"
)
MIXING = re.compile(PLACE + r"blocks\.\d+\.mixing\.")  # weights of a Mixer
LOGGED_SUBLAYERS = {"self_attn": "attention", "cross_attn": "cross-attention", "ffn": "FFN", "nll": "projection"}


class Coefficient(NamedTuple):
    """A coefficient by its place.

    stack: name of the module that has the loop over depth; "" for the model itself.
    sublayer: "attention", "token mixing" (in a Mixer's state dict; its log does not tell, so there it is "attention"),
        "cross-attention", "FFN" or "projection".
    index: of the stored block or, for a projection, of the pass, from 0.
    role: "identity" scales the stream, "branch" the output of the sublayer.
    """

    stack: str
    sublayer: str
    index: int  # type: ignore[assignment]  # a field, not the method of tuples
    role: str


def coefficients(table: Mapping[str, Any]) -> dict[Coefficient, float]:
    """The residual coefficients among named numbers; {} if there are none.

    Args:
        table: a state dict, or a line of a log with the names of a state dict or of fairseq's log.
    """
    stored = {name: found for name in table if (found := STORED.match(name))}
    logged = {name: found for name in table if (found := LOGGED.match(name))}
    last: dict[str, int] = {}  # index of the last sublayer, by stack
    for found in stored.values():
        last[found["stack"]] = max(last.get(found["stack"], 0), int(found["sublayer"] or 0))
    mixers = {found["stack"] for name in table if (found := MIXING.match(name))}
    sublayers = {
        stack: ("token mixing" if stack in mixers else "attention", *["cross-attention"] * (index == 2), "FFN")
        for stack, index in last.items()
    }
    named = {name: _stored(found, sublayers[found["stack"]]) for name, found in stored.items()}
    for name, found in logged.items():
        sublayer = LOGGED_SUBLAYERS[found["sublayer"]]
        named[name] = Coefficient(found["stack"], sublayer, int(found["index"]), found["role"])
    return {coefficient: float(table[name]) for name, coefficient in named.items()}


def _stored(found: re.Match, sublayers: tuple[str, ...]) -> Coefficient:
    if found["run"] is not None:
        return Coefficient(found["stack"], "projection", int(found["run"]), found["role"])
    return Coefficient(found["stack"], sublayers[int(found["sublayer"])], int(found["block"]), found["role"])
