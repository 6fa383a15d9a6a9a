"""Decoding with weights in eight bits, on a CPU: `--model-overrides "{'eight_bits': True}"`, see
:mod:`recurrence.eight_bits`."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from fairseq_plugin.modules.options import Options, option
from recurrence.eight_bits import quantise_
from recurrence.errors import FieldError


@dataclass
class EightBitOptions(Options):
    """Off by default; :func:`set_eight_bits` checks the value."""

    eight_bits: Any = option(False)


class EightBitModel(nn.Module):
    """A model whose linear layers may be quantised before it decodes."""

    eight_bits = False

    def prepare_for_inference_(self, cfg) -> None:
        """fairseq calls this before it decodes.

        Raises:
            ValueError: if the weights are not in float32 on a CPU.
        """
        if self.eight_bits:
            weight = next(self.parameters())
            if weight.device.type != "cpu" or weight.dtype.itemsize != 4:
                raise ValueError("eight_bits=True: needs --cpu, and float32")
            quantise_(self)
        super().prepare_for_inference_(cfg)


def set_eight_bits(model: EightBitModel, args: Any) -> None:
    """Applies the option to a model.

    Raises:
        FieldError: if the value is neither True nor False.
    """
    value = getattr(args, "eight_bits", False)
    if not isinstance(value, bool):
        raise FieldError("eight_bits", value, "must be True or False")
    model.eight_bits = value
