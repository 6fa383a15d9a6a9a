"""Texts of which only some positions have a target."""

from collections.abc import Callable

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset
from fairseq.tasks import FairseqTask
from torch import Tensor


class AnswerTask(FairseqTask):
    """A task whose texts are of `symbols` and whose answers are of `answers`, dictionaries that it makes itself."""

    symbols: Dictionary
    answers: Dictionary

    @property
    def source_dictionary(self) -> Dictionary:
        """The dictionary of the texts."""
        return self.symbols

    @property
    def target_dictionary(self) -> Dictionary:
        """The dictionary of the answers."""
        return self.answers


class AnswerDataset(FairseqDataset):
    """Texts and what is to be answered within them.

    Args:
        texts: how many there are.
        length: tokens of the longest one, which is what batches are measured by.
        pad: the index that stands in a target wherever nothing is asked.
        item: `item(index) -> (source, target)`, two (T,) tensors of one length, equal for all texts of a batch.
        shuffle: whether each epoch takes the texts in another order.
    """

    def __init__(
        self, texts: int, length: int, pad: int, item: Callable[[int], tuple[Tensor, Tensor]], shuffle: bool = False
    ):
        super().__init__()
        self.sizes = np.full(texts, length)
        self.pad, self.item, self.shuffle = pad, item, shuffle

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        """The text's number, the text and its target."""
        return index, *self.item(index)

    def __len__(self) -> int:
        return len(self.sizes)

    def size(self, index: int) -> int:
        """Tokens of the longest text."""
        return int(self.sizes[index])

    num_tokens = size

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """The same for several texts."""
        return self.sizes[indices]

    def ordered_indices(self) -> np.ndarray:
        """The order of the texts, from numpy's generator, which fairseq seeds for each epoch."""
        return np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))

    def collater(self, samples: list) -> dict:
        """A batch as fairseq's language models take it; `ntokens` counts the answers, by which the loss is divided."""
        if not samples:
            return {}
        index, source, target = zip(*samples)
        source, target = torch.stack(source), torch.stack(target)
        return {
            "id": torch.tensor(index),
            "nsentences": len(samples),
            "ntokens": int(target.ne(self.pad).sum()),
            "net_input": {"src_tokens": source, "src_lengths": torch.full((len(samples),), source.size(1))},
            "target": target,
        }
