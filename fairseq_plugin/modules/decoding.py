"""Options of decoding: drafting with the first passes, which changes no output, and weights in eight bits, on a CPU.

fairseq-train does not have them. Set them with `--model-overrides "{'draft_passes': 2}"` in commands that decode, or
with `from_pretrained(..., draft_passes=2)` in Python. See :mod:`recurrence.draft` and :mod:`recurrence.eight_bits`.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from fairseq_plugin.modules.options import StackOptions, option
from recurrence.causal import CausalStack
from recurrence.draft import Drafting
from recurrence.eight_bits import quantise_
from recurrence.errors import FieldError

DRAFT_TOKENS = 4  # the default with draft_passes


@dataclass
class DecodingOptions(StackOptions):
    """Off by default."""

    draft_passes: int | None = option(None)
    draft_tokens: int | None = option(None)
    eight_bits: bool = option(False)


class DecodingModel(nn.Module):
    """A model whose decoder may draft, and whose linear layers may be quantised before it decodes."""

    eight_bits = False

    def set_decoding(self, args: Any) -> None:
        """Applies the options. Raises FieldError where a value breaks its rule, or the model cannot draft."""
        self.eight_bits = getattr(args, "eight_bits", False)
        passes, tokens = getattr(args, "draft_passes", None), getattr(args, "draft_tokens", None)
        if passes is None:
            if tokens is not None:
                raise FieldError("draft_tokens", tokens, "needs draft_passes")
            return
        if self.eight_bits:
            rule = "does not go with eight_bits, whose rounding depends on which tokens are read at once"
            raise FieldError("draft_passes", passes, rule)
        stack = self.decoder.stack
        if not isinstance(stack, CausalStack):
            rule = f"not available for {type(self).__name__}, whose recurrence runs all layers for every token"
            raise FieldError("draft_passes", passes, rule)
        self.decoder.drafting = Drafting(passes, DRAFT_TOKENS if tokens is None else tokens, stack.loop.passes)

    def set_beam_size(self, beam: int) -> None:
        """fairseq calls this with the beam size.

        Raises:
            ValueError: if the decoder drafts, which is for greedy search and sampling.
        """
        drafting = self.decoder.drafting
        if drafting is not None and beam > 1:
            raise ValueError(f"draft_passes={drafting.passes}: drafts one continuation; needs --beam 1, not {beam}")

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
