"""Tasks in which only some positions of a text have a target, and their criterion."""

from collections.abc import Callable

import numpy as np
import torch
from fairseq.criterions import register_criterion
from fairseq.data import Dictionary, FairseqDataset
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_plugin.elastic import ElasticConfig, ElasticCrossEntropy
from recurrence.loop import named_loops


class AnswerTask(FairseqTask):
    """A task with its own dictionaries: `symbols` for the texts, `answers` for the targets."""

    symbols: Dictionary
    answers: Dictionary

    @property
    def source_dictionary(self) -> Dictionary:
        return self.symbols

    @property
    def target_dictionary(self) -> Dictionary:
        return self.answers


class AnswerDataset(FairseqDataset):
    """Texts with targets at some positions.

    Args:
        texts: number of texts.
        length: length of the longest text in tokens, which determines the size of batches.
        pad: the index in a target at positions without one.
        item: `item(index) -> (source, target)`, two (T,) tensors; T is the same for all texts of a batch. The
            target may be (P, T), with one for each number of passes.
        shuffle: whether each epoch has another order.
    """

    can_reuse_epoch_itr_across_epochs = False  # or every epoch has the batches of the first

    def __init__(
        self, texts: int, length: int, pad: int, item: Callable[[int], tuple[Tensor, Tensor]], shuffle: bool = False
    ):
        super().__init__()
        self.sizes = np.full(texts, length)
        self.pad, self.item, self.shuffle = pad, item, shuffle

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        """The index, the text (T,) and its target (T,) or (P, T)."""
        return index, *self.item(index)

    def __len__(self) -> int:
        return len(self.sizes)

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    num_tokens = size

    def ordered_indices(self) -> np.ndarray:
        """The order of the texts; fairseq seeds numpy's generator for each epoch."""
        return np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))

    def collater(self, samples: list) -> dict:
        """A batch for fairseq's language models; `ntokens` is the number of targets, which divides the loss."""
        if not samples:
            return {}
        index, source, target = zip(*samples)
        source, target = torch.stack(source), torch.stack(target)
        answered = target if target.dim() == 2 else target[:, 0]
        return {
            "id": torch.tensor(index),
            "nsentences": len(samples),
            "ntokens": int(answered.ne(self.pad).sum()),
            "net_input": {"src_tokens": source, "src_lengths": torch.full((len(samples),), source.size(1))},
            "target": target,
        }


@register_criterion("answer_cross_entropy", dataclass=ElasticConfig)
class AnswerCrossEntropy(ElasticCrossEntropy):
    """elastic_cross_entropy, with its options, at the positions that have a target.

    fairseq's own looks up the probability of the padding before it masks it, which fails if the padding's index is
    after the last symbol, as in :func:`fairseq_plugin.build.unpadded_dictionary`.

    If a task gives a target for each number of passes, (B, P, T), that of the passes that ran counts.
    """

    def get_lprobs_and_target(self, model, net_output, sample) -> tuple[Tensor, Tensor]:
        """Log-probabilities (targets, vocabulary) and the targets (targets,)."""
        logits, extra = net_output
        target = model.get_targets(sample, net_output)
        if target.dim() == 3:
            (loop,) = named_loops(model.decoder).values()
            passes, most = len(loop.indices(model.decoder.passes)), target.size(1)
            if passes > most:
                raise ValueError(
                    f"{passes} passes: must be <= {most}, the passes for which the task has targets (--steps)"
                )
            target = target[:, passes - 1]
        has_target = target.ne(self.padding_idx)
        has_target[:, : self.ignore_prefix_size] = False
        return model.get_normalized_probs((logits[has_target], extra), log_probs=True), target[has_target]
