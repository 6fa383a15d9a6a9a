"""Data: what fairseq wrote is read again, and no sentence is silently left out of an epoch or a score."""

import importlib
import inspect
import logging
import types
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from bitarray import bitarray
from fairseq import utils
from fairseq.data import Dictionary, data_utils
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE
from fairseq.data.huffman import huffman_coder
from fairseq.data.lm_context_window_dataset import LMContextWindowDataset
from fairseq.tasks.language_modeling import LanguageModelingTask
from omegaconf import MissingMandatoryValue

from fairseq_repairs.files import MOST_BYTES, require_lines, require_regular
from fairseq_repairs.replace import after, at_once, before, instead

logger = logging.getLogger(__name__)

# fairseq's modules that use names which numpy has removed, with one of these names: where numpy lacks it, all are
# restored.
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


@at_once
def restore_numpy_names() -> None:
    """Gives fairseq's modules the names that numpy removed (`--num-batch-buckets`, `--sample-break-mode eos`)."""
    for module_name, removed in USERS_OF_REMOVED_NAMES.items():
        module = importlib.import_module(module_name)
        try:
            attrgetter(removed)(module.np)
        except AttributeError:
            module.np = _NumpyWithRemovedNames("numpy")


@instead(Dictionary, "load", where="add_special_symbols" in inspect.signature(Dictionary.load).parameters)
def load_dictionaries_of_every_class(
    load: Callable, kind: type[Dictionary], f: Any, add_special_symbols: bool = True
) -> Dictionary:
    """Loads dictionaries whose class does not take the option that fairseq's main branch added last.

    It passes `add_special_symbols` to every class, a TypeError in fairseq's own `MaskedLMDictionary` (the tasks
    `cross_lingual_lm`, `legacy_masked_lm` and `translation_from_pretrained_xlm`), and in users' classes.
    """
    dictionary = kind() if add_special_symbols else kind(add_special_symbols=False)
    dictionary.add_from_file(f)
    return dictionary


@instead(huffman_coder.HuffmanCoder, "_unpad", where=not hasattr(huffman_coder.util, "rindex"))
def read_huffman_codes(unpad: Callable, coder: huffman_coder.HuffmanCoder, a: bitarray) -> bitarray:
    """Reads data of `--dataset-impl huffman`, for which fairseq calls a function that bitarray has removed."""
    return a[: a.find(1, right=True)]  # padding is a one, then zeros


@instead(Dictionary, "add_from_file")
def name_wrong_dictionaries(read: Callable, dictionary: Dictionary, f: Any) -> None:
    """Names the file of a wrong line, and of a dictionary that may have no end, such as a pipe or a device.

    fairseq reads all of it at once, and names the line alone.
    """
    if not isinstance(f, str):
        read(dictionary, f)
        return
    require_regular(f, MOST_BYTES)
    try:
        read(dictionary, f)
    except OSError:
        raise
    except Exception as error:  # of fairseq, which raises this type where the text is not UTF-8
        raise ValueError(f"{f}: {error}") from None


@before(utils, "parse_embedding")
def require_lines_of_embeddings(embed_path: str) -> None:
    """Rejects a device, or one endless line, in place of an embedding (`--encoder-embed-path`)."""
    require_lines(embed_path)


@instead(SentencepieceBPE, "__init__")
def name_wrong_pieces(make: Callable, coder: SentencepieceBPE, cfg: Any) -> None:
    """Names a file that is missing or no model of sentencepiece, whose library reads a device without end."""
    try:
        path = cfg.sentencepiece_model
    except MissingMandatoryValue:
        raise ValueError(
            "--sentencepiece-model: must be given; from_pretrained takes sentencepiece_model=FILE, or the file "
            "sentencepiece.bpe.model beside the checkpoint"
        ) from None
    require_regular(path, MOST_BYTES)
    try:
        make(coder, cfg)
    except RuntimeError as error:
        raise ValueError(f"--sentencepiece-model {path}: must be a model of sentencepiece: {error}") from None


def drops_last_batch() -> bool:
    """Whether fairseq leaves out the last of nine sentences in batches of eight."""
    sizes: np.ndarray = np.ones(9, dtype=np.int64)
    limits = dict(num_tokens_vec=sizes, max_sentences=8, required_batch_size_multiple=8)
    return sum(map(len, data_utils.batch_by_size(np.arange(9), sizes.__getitem__, **limits))) != 9


@instead(data_utils, "batch_by_size", where=drops_last_batch())
def keep_last_batch(batch_by_size: Callable, indices: Iterable[int], *args, fixed_shapes=None, **kwargs) -> list:
    """Keeps the last batch, which fairseq's main branch drops if its size is not a multiple of 8.

    Sentences are sorted by length, so the longest would be missing from every score and every epoch. Training keeps its
    short batch too, as in fairseq 0.12.2.
    """
    if not isinstance(indices, np.ndarray):
        indices = np.fromiter(indices, dtype=np.int64, count=-1)
    if fixed_shapes is not None:  # batches of exactly these shapes
        return batch_by_size(indices, *args, fixed_shapes=fixed_shapes, **kwargs)
    if len(indices) == 0:
        return []
    batches = batch_by_size(indices, *args, **kwargs)
    rest: np.ndarray = indices[sum(map(len, batches)) :]  # batches are consecutive slices
    return [*batches, rest] if len(rest) else batches


@before("fairseq_cli.eval_lm", "main")
def evaluate_on_each_rank(cfg: Any, **kwargs) -> None:
    """Lets each rank of `fairseq-eval-lm` score the whole text; in fairseq each scores and reports its own share.

    `--num-shards` still chooses a share.
    """
    distributed = getattr(cfg, "distributed_training", cfg)  # of a flat Namespace, too
    distributed.distributed_world_size, distributed.distributed_rank = 1, 0


@instead(LMContextWindowDataset, "collater")
def read_context_of_each_batch(collate: Callable, window: LMContextWindowDataset, samples: list[dict]) -> dict:
    """Gives each batch of `--context-window` the tokens that stand before it in the text.

    fairseq gives it the end of the batch that the same process read before, which is another part of the text with
    several `--num-workers` or `--num-shards`; and it fails at the empty batch that makes shards equally long.
    """
    if not samples:
        return {}
    first, tokens = int(samples[0]["id"]), torch.zeros(0, dtype=torch.long)
    while first > 0 and len(tokens) < window.context_window:
        first -= 1
        tokens = torch.cat([window.dataset[first]["source"], tokens])
    window.prev_tokens = tokens[-window.context_window :].numpy()
    return collate(window, samples)


@after("fairseq_cli.eval_lm", "eval_lm")
def reject_no_tokens(results: dict[str, float], *args, **kwargs) -> None:
    """Rejects a text of which no token is evaluated; `fairseq-eval-lm` prints a perplexity of 1.00."""
    if results["loss"] == 0:
        raise ValueError("no token was evaluated: every block is too long, or in a shard other than --shard-id")


@instead(LanguageModelingTask, "eval_lm_dataloader")
def fit_blocks_to_positions(
    load: Callable, task: LanguageModelingTask, dataset: Any, *args, max_positions=None, context_window=0, **kwargs
) -> Any:
    """Cuts the text into blocks that have at most the model's positions, together with the context before each.

    fairseq skips every longer block, so that `fairseq-eval-lm` reports the perplexity of some of the text, or of none.
    """
    given = task.args.tokens_per_sample + context_window  # which fairseq-eval-lm has subtracted
    if max_positions is not None and given > max_positions and _too_long(dataset, max_positions - context_window):
        split = next((name for name, known in task.datasets.items() if known is dataset), None)
        if split is not None:
            if context_window >= max_positions:
                raise ValueError(f"--context-window {context_window}: must be < the model's {max_positions} positions")
            logger.warning(
                f"--tokens-per-sample {given}: more than the model's {max_positions} positions, which are used instead"
            )
            task.args.tokens_per_sample = max_positions - context_window
            task.load_dataset(split)
            dataset = task.dataset(split)
    if skipped := _too_long(dataset, max_positions):  # whole sentences or documents
        logger.warning(f"{skipped} of {len(dataset)} blocks are too long for the model and are left out")
    return load(task, dataset, *args, max_positions=max_positions, context_window=context_window, **kwargs)


def _too_long(dataset: Any, max_positions: int | None) -> int:
    """Number of blocks that are longer than a model's positions."""
    return 0 if max_positions is None else sum(dataset.size(i) > max_positions for i in range(len(dataset)))


@before("fairseq_cli.generate", "main")
def translate_own_shard(cfg: Any, **kwargs) -> None:
    """Lets `fairseq-generate` translate the share of `--num-shards` and `--shard-id`; fairseq ignores both."""
    distributed, dataset = (getattr(cfg, group, cfg) for group in ("distributed_training", "dataset"))
    if dataset.num_shards > 1:
        distributed.distributed_world_size, distributed.distributed_rank = dataset.num_shards, dataset.shard_id
