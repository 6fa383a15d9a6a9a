"""Batches and blocks: no sentence is silently left out of an epoch or a score."""

import importlib
import logging
import types
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
from fairseq.data import data_utils
from fairseq.tasks.language_modeling import LanguageModelingTask

from fairseq_plugin.repairs.foreign import copies_of
from fairseq_plugin.repairs.replace import call_before, replace

logger = logging.getLogger("fairseq_plugin.repairs")

# fairseq's modules that use names removed from numpy, and the name that shows whether they are missing.
USERS_OF_REMOVED_NAMES = {
    "fairseq.data.data_utils": "int",  # and percentile(interpolation=)
    "fairseq.data.language_pair_dataset": "compat.long",
    "fairseq.data.token_block_dataset": "compat.long",
    "fairseq.modules.dynamic_crf_layer": "float",
}


class _NumpyWithRemovedNames(types.ModuleType):
    """numpy with the removed names that fairseq uses."""

    compat = types.SimpleNamespace(long=int)
    int = int
    float = float

    def __getattr__(self, name: str):
        return getattr(np, name)

    @staticmethod
    def percentile(a, q, *args, interpolation: str = "linear", **kwargs):
        return np.percentile(a, q, *args, **{"method": interpolation, **kwargs})


def restore_numpy_names() -> None:
    """Gives fairseq's modules the names that numpy removed (``--num-batch-buckets``, ``--sample-break-mode eos``)."""
    for module_name, removed in USERS_OF_REMOVED_NAMES.items():
        module = importlib.import_module(module_name)
        try:
            attrgetter(removed)(module.np)
        except AttributeError:
            module.np = _NumpyWithRemovedNames("numpy")


def keep_last_batch() -> None:
    """Keeps the last batch, which fairseq's main branch drops if its size is not a multiple of 8.

    Sentences are sorted by length, so the longest would be missing from every score and every epoch. Training keeps its
    short batch too, as in fairseq 0.12.2.
    """

    def append_the_rest(batch_by_size: Callable) -> Callable:
        def batch_all_by_size(indices, *args, fixed_shapes=None, **kwargs):
            if not isinstance(indices, np.ndarray):
                indices = np.fromiter(indices, dtype=np.int64, count=-1)
            if fixed_shapes is not None:  # batches of exactly these shapes
                return batch_by_size(indices, *args, fixed_shapes=fixed_shapes, **kwargs)
            if len(indices) == 0:
                return []
            batches = batch_by_size(indices, *args, **kwargs)
            rest = indices[sum(map(len, batches)) :]  # batches are consecutive slices
            return [*batches, rest] if len(rest) else batches

        return batch_all_by_size

    if sum(map(len, _nine_in_batches())) != 9:
        replace(data_utils, "batch_by_size", append_the_rest)


def _nine_in_batches() -> list[np.ndarray]:
    sizes: np.ndarray = np.ones(9, dtype=np.int64)
    return data_utils.batch_by_size(
        np.arange(9), sizes.__getitem__, num_tokens_vec=sizes, max_sentences=8, required_batch_size_multiple=8
    )


def evaluate_all_blocks() -> None:
    """Lets ``fairseq-eval-lm`` report the perplexity of the whole text.

    fairseq skips every block that is longer than the model's positions, prints "Perplexity: 1.00" if it skips all of
    them, and each of several ranks reports its own share.
    """
    for module in copies_of("fairseq_cli.eval_lm"):
        call_before(module, "main", _evaluate_on_each_rank)
    replace(LanguageModelingTask, "eval_lm_dataloader", fit_blocks)


def _evaluate_on_each_rank(cfg: Any, **kwargs) -> None:
    """Gives each rank the whole text; ``--num-shards`` still chooses a share."""
    distributed = getattr(cfg, "distributed_training", cfg)  # of a flat Namespace, too
    distributed.distributed_world_size, distributed.distributed_rank = 1, 0


def fit_blocks(load: Callable) -> Callable:
    """Cuts the text into blocks of at most the model's positions."""

    def eval_lm_dataloader(self, dataset, *args, max_positions=None, context_window=0, **kwargs):
        if _too_long(dataset, max_positions):
            split = next((name for name, known in self.datasets.items() if known is dataset), None)
            if split is not None:
                logger.warning(
                    f"--tokens-per-sample {self.args.tokens_per_sample}: more than the model's {max_positions} "
                    "positions, which are used instead"
                )
                self.args.tokens_per_sample = max_positions - context_window
                self.load_dataset(split)
                dataset = self.dataset(split)
            if skipped := _too_long(dataset, max_positions):  # whole sentences or documents
                logger.warning(f"{skipped} of {len(dataset)} blocks are too long for the model and are left out")
        options = dict(max_positions=max_positions, context_window=context_window)
        return load(self, dataset, *args, **options, **kwargs)

    return eval_lm_dataloader


def _too_long(dataset: Any, max_positions: int | None) -> int:
    """Number of blocks that are longer than a model's positions."""
    return 0 if max_positions is None else sum(dataset.size(i) > max_positions for i in range(len(dataset)))
