"""Decoding with weights in eight bits, on a CPU.

fairseq-train does not have the option. Set it with `--model-overrides "{'eight_bits': True}"` in commands that decode, or
with `from_pretrained(..., eight_bits=True)` in Python. See :mod:`recurrence.eight_bits`.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from fairseq_plugin.modules.options import StackOptions, option
from recurrence.eight_bits import quantise_


@dataclass
class DecodingOptions(StackOptions):
    """Off by default."""

    eight_bits: bool = option(False)


class DecodingModel(nn.Module):
    """A model whose linear layers may be quantised before it decodes."""

    eight_bits = False

    def set_decoding(self, args: Any) -> None:
        """Applies the options."""
        self.eight_bits = getattr(args, "eight_bits", False)

    def prepare_for_inference_(self, cfg) -> None:
        """fairseq calls this before it decodes.

        Raises:
            ValueError: with eight bits, if the weights are not in float32 on a CPU.
        """
        if self.eight_bits:
            weight = next(self.parameters())
            if weight.device.type != "cpu" or weight.dtype.itemsize != 4:
                raise ValueError("eight_bits=True: needs --cpu, and float32")
            quantise_(self)
        super().prepare_for_inference_(cfg)
