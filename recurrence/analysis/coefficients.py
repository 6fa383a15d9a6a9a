"""The learnable coefficients of residual sums, one training after another moment of it.

Source: SReT (arXiv:2111.05297), section 3 and Figure 6: alpha to theta of attention, FFN and projection. Its equations
and its text name them differently; here the role is the name, see `recurrence.residual`.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

NAME = re.compile(
    r"(?:train_)?(?P<loop>.*?)\.?\b(?:blocks\.(?P<block>\d+)\.residuals\.(?P<sublayer>\d+)"
    r"|own\.(?P<of_pass>\d+)\.projection\.residual)\.(?P<role>identity|branch)$"
)
SUBLAYERS = ("attention", "FFN", "projection")


class Coefficient(NamedTuple):
    """What a coefficient weighs.

    loop: name of the loop over depth.
    sublayer: "attention", "FFN" or "projection".
    index: of the stored block, or of the pass for a projection, from 0.
    role: "identity" weighs the stream, "branch" what the sublayer made of it.
    """

    loop: str
    sublayer: str
    index: int
    role: str


def coefficient(name: str) -> Coefficient | None:
    """What the parameter of this name weighs; None where it is no coefficient."""
    found = NAME.match(name)
    if found is None:
        return None
    if found["of_pass"] is not None:
        return Coefficient(found["loop"], "projection", int(found["of_pass"]), found["role"])
    return Coefficient(found["loop"], SUBLAYERS[int(found["sublayer"])], int(found["block"]), found["role"])


def coefficients(state: Mapping[str, object]) -> dict[str, float]:
    """The coefficients of a state dict, or of any table that names its numbers as one does, by their full names."""
    return {name: float(value) for name, value in state.items() if coefficient(name) is not None}
