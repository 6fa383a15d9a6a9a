"""Batches and blocks: no sentence is silently left out of an epoch or a score."""

import importlib
import types
from collections.abc import Callable
from operator import attrgetter

import numpy as np
import torch
from fairseq.data import data_utils
from fairseq.tasks.language_modeling import LanguageModelingTask

from fairseq_plugin.repairs.replace import call_before, replace

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
    """Lets ``fairseq-eval-lm`` report the perplexity of the full text or fail.

    fairseq skips every block that is longer than the model's positions, prints "Perplexity: 1.00" if it skips all of
    them, and does not add up its ranks.
    """
    call_before(LanguageModelingTask, "eval_lm_dataloader", _reject_partial_evaluation)


def _reject_partial_evaluation(task: LanguageModelingTask, dataset, *args, max_positions=None, **kwargs) -> None:
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        raise ValueError(
            f"{torch.distributed.get_world_size()} ranks: each would report the perplexity of its own share of "
            "the text; run fairseq-eval-lm in one process"
        )
    longer = 0 if max_positions is None else sum(dataset.size(i) > max_positions for i in range(len(dataset)))
    if longer:
        raise ValueError(
            f"--tokens-per-sample {task.args.tokens_per_sample}: {longer} of {len(dataset)} blocks of the text "
            f"are longer than the model's {max_positions} positions; give the value that it was trained with"
        )
