"""Dictionaries, random sentences, and fairseq's batches of them."""

import functools

import torch
from fairseq.data import data_utils
from torch import Tensor

from fairseq_plugin.build import numbered_dictionary

SOURCE_SYMBOLS, TARGET_SYMBOLS = 19, 23

dictionary = functools.lru_cache(numbered_dictionary)


def sentences(lengths: tuple[int, ...], symbols: int, seed: int = 0) -> list[Tensor]:
    """Random sentences of these lengths, including the end-of-sentence symbol."""
    entries, generator = dictionary(symbols), torch.Generator().manual_seed(seed)
    first = entries.nspecial
    words = [torch.randint(first, symbols, (length - 1,), generator=generator) for length in lengths]
    return [torch.cat([word, torch.tensor([entries.eos()])]) for word in words]


def collate(rows: list[Tensor], left_pad: bool = False, target: bool = False, length: int | None = None) -> Tensor:
    """fairseq's batch of sentences (B, T); a target starts with the end-of-sentence symbol."""
    entries = dictionary(TARGET_SYMBOLS)
    return data_utils.collate_tokens(
        rows, entries.pad(), entries.eos(), left_pad, move_eos_to_beginning=target, pad_to_length=length
    )
