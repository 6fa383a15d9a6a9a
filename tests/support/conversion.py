"""Outputs of converted models: fairseq's own model of a looped one, and logits to compare."""

import argparse

from torch import Tensor, nn

from fairseq_plugin.export import upstream
from fairseq_plugin.export.unshare import unshared
from tests.support import models

CLOSE = dict(rtol=0, atol=1e-5)
SYMBOLS = (models.SOURCE_SYMBOLS, models.TARGET_SYMBOLS)


def logits(model: nn.Module, symbols: tuple[int, int] = SYMBOLS, left_pad: bool = False) -> Tensor:
    """Logits at the tokens of a batch's targets (tokens, vocabulary)."""
    batch = models.batch(left_pad=left_pad, symbols=symbols)
    return model(*batch)[0][batch[2].ne(models.dictionary(symbols[1]).pad())]


def as_fairseq(model: nn.Module, args: argparse.Namespace) -> nn.Module:
    """The unshared model, of fairseq's own class, in float64."""
    values, weights = unshared(model, args)
    converted = upstream.build(values, weights)
    assert type(converted).__module__.startswith(("fairseq.models.transformer", "fairseq.models.speech_to_text"))
    converted.double().load_state_dict(weights)
    return converted


def single_utterance(index: int) -> tuple[Tensor, Tensor, Tensor]:
    """One utterance and its text without padding, which would change the output of fairseq's convolutions."""
    source, lengths, target = models.inputs("s2t_cycle", source_lengths=(5, 3, 6), target_lengths=(4, 4, 4))
    return source[index : index + 1, : lengths[index]], lengths[index : index + 1], target[index : index + 1]
