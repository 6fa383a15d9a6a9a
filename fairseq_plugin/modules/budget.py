"""Options that make decoding use fewer passes: drafting with the first passes, and early exit.

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
from recurrence.early_exit import exit_rule
from recurrence.errors import FieldError

DRAFT_TOKENS = 4  # the default with draft_passes


@dataclass
class BudgetOptions(StackOptions):
    """Drafting and early exit, off by default; :func:`set_budget` checks the values."""

    draft_passes: Any = option(None)
    draft_tokens: Any = option(None)
    exit_threshold: Any = option(0.0)


class BudgetedModel(nn.Module):
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


def set_budget(model: nn.Module, args: Namespace) -> None:
    """Applies the options to a model.

    Raises:
        ValueError: naming the option, the value and the rule.
    """
    decoder = model.decoder
    stack = getattr(decoder, "stack", decoder)
    threshold, drafting = _threshold(args), _drafting(args)
    if not threshold and drafting is None:
        return
    if stack is not decoder and not isinstance(stack, CausalStack):
        name, value = ("exit_threshold", threshold) if threshold else ("draft_passes", drafting[0])
        rule = (
            f"not available for {type(model).__name__}, whose recurrence along the text runs all layers for every token"
        )
        raise FieldError(name, value, rule)
    if threshold and drafting is not None:
        raise FieldError(
            "exit_threshold", threshold, "does not go with draft_passes, which gives the outputs of the full depth"
        )
    if drafting is not None:
        decoder.drafting = Drafting(*drafting, stack.loop.passes)
    if threshold:
        stack.early_exit = exit_rule("decoder", threshold, stack.loop.passes)
        if stack is decoder:
            model.encoder.early_exit = exit_rule("encoder", threshold, model.encoder.loop.passes)


def _threshold(args: Namespace) -> float:
    """The threshold of early exit; 0 for none."""
    threshold = getattr(args, "exit_threshold", None) or 0.0
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not threshold >= 0:
        raise FieldError("exit_threshold", threshold, "must be a number >= 0")
    return threshold


def _drafting(args: Namespace) -> tuple[int, int] | None:
    """Number of drafting passes and of drafted tokens; None without drafting."""
    given = {name: getattr(args, name, None) for name in ("draft_passes", "draft_tokens")}
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise FieldError(name, value, "must be a whole number >= 1")
    passes, tokens = given.values()
    if passes is None and tokens is not None:
        raise FieldError("draft_tokens", tokens, "needs draft_passes")
    return None if passes is None else (passes, DRAFT_TOKENS if tokens is None else tokens)
