"""Drafting with the first passes: options that make decoding faster without changing its output.

They do not affect training, so fairseq-train does not have them. Set them with `--model-overrides "{'draft_passes':
2}"` in commands that decode, or with `from_pretrained(..., draft_passes=2)` in Python.
"""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from torch import nn

from fairseq_plugin.modules.options import StackOptions, option
from recurrence.causal import CausalStack
from recurrence.draft import Drafting
from recurrence.errors import FieldError

DRAFT_TOKENS = 4  # the default with draft_passes


@dataclass
class DraftingOptions(StackOptions):
    """Drafting, off by default; :func:`set_drafting` checks the values."""

    draft_passes: Any = option(None)
    draft_tokens: Any = option(None)


class DraftingModel(nn.Module):
    """A model whose decoder may draft."""

    def set_beam_size(self, beam: int) -> None:
        """fairseq calls this with the beam size.

        Raises:
            ValueError: if the decoder drafts.
        """
        drafting = self.decoder.drafting
        if drafting is not None and beam > 1:
            raise ValueError(
                f"draft_passes={drafting.passes}: drafts one continuation, as in greedy search or sampling; "
                f"needs --beam 1, not {beam}"
            )


def set_drafting(model: nn.Module, args: Namespace) -> None:
    """Applies the options to a model.

    Raises:
        FieldError: where a value breaks its rule, or the model cannot draft.
    """
    given = _given(args)
    if given is None:
        return
    decoder = model.decoder
    if not isinstance(decoder.stack, CausalStack):
        rule = (
            f"not available for {type(model).__name__}, whose recurrence along the text runs all layers for every token"
        )
        raise FieldError("draft_passes", given[0], rule)
    decoder.drafting = Drafting(*given, decoder.stack.loop.passes)


def _given(args: Namespace) -> tuple[int, int] | None:
    """Number of drafting passes and of drafted tokens; None without drafting."""
    given = {name: getattr(args, name, None) for name in ("draft_passes", "draft_tokens")}
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise FieldError(name, value, "must be a whole number >= 1")
    passes, tokens = given.values()
    if passes is None and tokens is not None:
        raise FieldError("draft_tokens", tokens, "needs draft_passes")
    return None if passes is None else (passes, DRAFT_TOKENS if tokens is None else tokens)
