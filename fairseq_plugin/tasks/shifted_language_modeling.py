"""Language modeling whose training texts start at another token in every epoch.

fairseq cuts a corpus into the same blocks in every epoch. Kausik's published code, like nanoGPT, draws crops at random
offsets, so that a small corpus repeats itself less. Here all blocks of an epoch are shifted by one offset, smaller than
a block and drawn from the seed and the epoch. Each token is still read once per epoch, except for less than two blocks
at the ends, and a resumed run reads the same texts.
"""

import numpy as np
from fairseq.data import MonolingualDataset
from fairseq.data.base_wrapper_dataset import BaseWrapperDataset
from fairseq.data.plasma_utils import PlasmaArray
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask


@register_task("shifted_language_modeling", dataclass=LanguageModelingConfig)
class ShiftedLanguageModelingTask(LanguageModelingTask):
    """fairseq's language modeling, with its options, except that only texts of equal length can be shifted.

    Raises:
        ValueError: if `--sample-break-mode` is not none, or the training corpus is shorter than two texts.
    """

    @classmethod
    def setup_task(cls, args, **kwargs):
        mode = str(args.sample_break_mode or "none")
        if mode != "none":
            raise ValueError(
                f"--sample-break-mode={mode}: must be none, because only texts of equal length can be shifted"
            )
        return super().setup_task(args, **kwargs)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs) -> None:
        """Loads a subset; texts of the subset `train` are shifted."""
        super().load_dataset(split, epoch, combine, **kwargs)
        if split == "train":
            self.datasets[split] = ShiftedTexts(self.datasets[split], self.args.tokens_per_sample, self.args.seed)


class ShiftedTexts(BaseWrapperDataset):
    """Texts of `length` tokens, which start at another token in every epoch.

    Args:
        texts: fairseq's data set, in blocks of equal length.
        length: tokens per text.
        seed: with the epoch, the seed of the offset.
    """

    can_reuse_epoch_itr_across_epochs = False

    def __init__(self, texts: MonolingualDataset, length: int, seed: int):
        super().__init__(texts)
        tokens = int(texts.dataset.sizes.sum())
        count = (tokens - length + 1) // length  # the same at every offset
        if count < 1:
            raise ValueError(f"--tokens-per-sample={length}: must be <= half of the {tokens} tokens for training")
        self.length, self.seed = length, seed
        texts.sizes = np.full(count, length)
        self.set_epoch(1)

    def set_epoch(self, epoch: int) -> None:
        """Shifts the texts by the offset of an epoch."""
        from fairseq.data.token_block_utils_fast import _get_block_to_dataset_index_fast  # compiled with fairseq

        start = np.random.default_rng([self.seed, epoch]).integers(self.length)
        starts = start + self.length * np.arange(len(self.sizes))
        slices = np.stack([starts, starts + self.length], axis=1)
        blocks = self.dataset.dataset
        lines = np.asarray(blocks.dataset.sizes, dtype=np.int64)
        blocks._slice_indices, blocks._sizes = PlasmaArray(slices), PlasmaArray(self.sizes)
        blocks._block_to_dataset_index = PlasmaArray(_get_block_to_dataset_index_fast(lines, slices))
