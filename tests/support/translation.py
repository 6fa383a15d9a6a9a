"""Translation models: architectures, variants, fairseq's task, and random sentences."""

import itertools
from collections.abc import Callable

import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

from fairseq_plugin.models.speech import SpeechToText
from fairseq_plugin.seq2seq import LoopedTransformer
from recurrence.order import STRATEGIES
from tests.support import words
from tests.support.flags import options
from tests.support.words import SOURCE_SYMBOLS, TARGET_SYMBOLS, dictionary, sentences

TASK = "translation"
ARCHS = sorted(
    arch
    for arch, model in ARCH_MODEL_REGISTRY.items()
    if issubclass(model, LoopedTransformer) and not issubclass(model, SpeechToText)
)
SIDES = ("encoder", "decoder")
# Whether source and target are padded on the left.
PADDINGS = list(itertools.product((False, True), repeat=2))

# Variants of every architecture; every invariant holds for each of them.
VARIANTS = {
    "as published": [],
    "pre-norm": ["--encoder-normalize-before", "--decoder-normalize-before"],
    "admin": ["--init", "admin"],
    "unequal sides": [
        *("--encoder-layers", "6", "--decoder-layers", "4"),
        *("--decoder-embed-dim", "24", "--decoder-attention-heads", "3"),
    ],
}
# Variants of one architecture.
VARIANTS_OF = {
    "ringformer_base": {
        "signals everywhere": ["--cross-attention-signal", "after", "--signal-init", "random"],
        "relative": ["--position", "relative"],
    },
    "one_wide_ffn_base": {"relative": ["--position", "relative"]},
    "universal": {"rotary": ["--position", "rotary"]},
    "universal_small": {"alibi": ["--position", "alibi"]},
    "cycle": {"any order": ["--encoder-order", "0,1,1,2,0", "--decoder-order", "1,0,1,1"]},
}


def variants(arch: str) -> dict[str, list[str]]:
    return {**VARIANTS, **VARIANTS_OF.get(arch, {})}


def task(source: int = SOURCE_SYMBOLS, target: int = TARGET_SYMBOLS, **limits: int) -> TranslationTask:
    """fairseq's translation task on dictionaries of these sizes; equal sizes give one joined dictionary."""
    return TranslationTask(TranslationConfig(**limits), dictionary(source), dictionary(target))


def task_writing(symbols: int) -> TranslationTask:
    return task(target=symbols)


def side_flags(arch: str, *flags: str) -> list[str]:
    """Flags that make encoder and decoder small but keep their structure; `flags` are the flags that will follow."""
    preset, found = vars(options(arch)), []
    unique = preset.get("encoder_unique_layers", 1)
    for side in SIDES:
        layers = flags[flags.index(f"--{side}-layers") + 1] if f"--{side}-layers" in flags else "4"
        sizes = {"embed-dim": "16", "ffn-embed-dim": "24", "attention-heads": "2"}
        if f"--{side}-order" not in flags:
            sizes["layers"] = layers
            if unique == preset["encoder_layers"]:
                sizes["unique-layers"] = layers
            elif unique > 1:
                sizes["unique-layers"] = "2" if STRATEGIES[preset["strategy"]].fits(2, 4) else "3"
        found += [part for name, value in sizes.items() for part in (f"--{side}-{name}", value)]
    return found


def tiny_flags(arch: str, *flags: str) -> list[str]:
    """Flags that make an architecture small but keep several passes and, if it has them, several blocks."""
    found = side_flags(arch, *flags)
    if arch.startswith("one_wide_ffn"):  # has no FFN in the decoder
        at = found.index("--decoder-ffn-embed-dim")
        del found[at : at + 2]
    if "signal_rank_divisor" in vars(options(arch)):
        found += ["--signal-rank-divisor", "4"]
    if arch == "recursive_wmt_en_de":  # tests projections; recursive_iwslt_de_en has none
        found += ["--nll"]
    if arch.startswith("recursive") and "admin" in flags:  # Admin replaces SReT's coefficients
        found += ["--no-lrc"]
    return [*found, *flags]


def rows(
    source_lengths: tuple[int, ...],
    target_lengths: tuple[int, ...],
    symbols: tuple[int, int] = (SOURCE_SYMBOLS, TARGET_SYMBOLS),
    of_source: Callable = sentences,
) -> list[tuple[Tensor, Tensor]]:
    """Random pairs of sentences, or of an utterance and a sentence."""
    return list(zip(of_source(source_lengths, symbols[0], seed=1), sentences(target_lengths, symbols[1], seed=2)))


def collate_source(source: list[Tensor], left_pad: bool = False, extra: int = 0) -> tuple[Tensor, Tensor]:
    """`src_tokens` (B, S) and `src_lengths` (B,), with `extra` columns of padding."""
    lengths = torch.tensor([len(row) for row in source])
    return words.collate(source, left_pad, length=int(lengths.max()) + extra), lengths


def collate(
    pairs: list[tuple[Tensor, Tensor]],
    source_left: bool = False,
    target_left: bool = False,
    extra: int = 0,
    of_source: Callable = collate_source,
) -> tuple[Tensor, Tensor, Tensor]:
    """`src_tokens` (B, S) or frames (B, frames, features), `src_lengths` (B,), `prev_output_tokens` (B, T)."""
    source, target = zip(*pairs)
    previous = words.collate(list(target), target_left, target=True, length=max(map(len, target)) + extra)
    return *of_source(list(source), source_left, extra), previous
