"""Models of any registered encoder-decoder, tiny or at full size, their dictionaries and batches, and the golden files.

Everything is built by fairseq's own tasks; only the command line is left out. What an architecture reads, words or
speech, is found by its name.
"""

import argparse
import copy
import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fairseq.data import data_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor, nn

from fairseq_plugin.modules.build import numbered_dictionary
from fairseq_plugin.modules.elastic import OPTIONS as DEPTH_OPTIONS
from fairseq_plugin.modules.model import LoopedTransformer
from fairseq_plugin.modules.options import known_options
from recurrence.loop import Loop
from recurrence.order import STRATEGIES
from tests.support import speech

GOLDEN_DIR = Path(os.environ.get("GOLDEN_DIR") or Path(__file__).resolve().parents[3] / "shared" / "golden")
ARCHS = sorted(
    arch
    for arch, model in ARCH_MODEL_REGISTRY.items()
    if issubclass(model, LoopedTransformer) and arch not in speech.ARCHS
)
SIDES = ("encoder", "decoder")
SOURCE_SYMBOLS, TARGET_SYMBOLS = 19, 23

# What an architecture may be built with and still has to keep every promise.
VARIANTS = {
    "as published": [],
    "pre-norm": ["--encoder-normalize-before", "--decoder-normalize-before"],
    "admin": ["--init", "admin"],
    "unequal sides": [
        *("--encoder-layers", "6", "--decoder-layers", "4"),
        *("--decoder-embed-dim", "24", "--decoder-attention-heads", "3"),
    ],
}

# All that have an encoder and a decoder, and what they are built with.
EVERY = sorted(ARCHS + speech.ARCHS)
CASES = {(arch, name): flags for arch in ARCHS for name, flags in VARIANTS.items()}
CASES["ringformer_base", "signals everywhere"] = ["--cross-attention-signal", "after", "--signal-init", "random"]
CASES |= {(arch, name): flags for arch in speech.ARCHS for name, flags in speech.VARIANTS.items()}

every_arch = pytest.mark.parametrize("arch", ARCHS)
every_model = pytest.mark.parametrize("arch", EVERY)
every_case = pytest.mark.parametrize(
    ("arch", "flags"), [(arch, flags) for (arch, _), flags in CASES.items()], ids=map("-".join, CASES)
)


def architectures_tested(module: ModuleType) -> dict[str, list[str]]:
    """The architectures with which each test function of a module runs, for those that are given one."""
    found = {}
    for name, function in vars(module).items():
        for mark in getattr(function, "pytestmark", ()):
            if not name.startswith("test_") or mark.name != "parametrize":
                continue
            if mark.args[0] == "arch":
                found[name] = list(mark.args[1])
            elif mark.args[0] == ("arch", "flags"):
                found[name] = sorted({arch for arch, _ in mark.args[1]})
    return found


def golden(name: str) -> dict:
    """One file of recorded reference data; skips the test where there is none."""
    path = GOLDEN_DIR / f"{name}.pt"
    if not path.exists():
        pytest.skip(f"no reference data: {path} (GOLDEN_DIR names its folder)")
    return torch.load(path, weights_only=True)


# Building


dictionary = functools.lru_cache(numbered_dictionary)


def task(source: int = SOURCE_SYMBOLS, target: int = TARGET_SYMBOLS, **limits: int) -> TranslationTask:
    """fairseq's translation task on dictionaries of those sizes; equal sizes give one joined dictionary."""
    return TranslationTask(TranslationConfig(**limits), dictionary(source), dictionary(target))


def options(arch: str, *flags: str) -> argparse.Namespace:
    """What fairseq's command line hands to `build_model`: the flags, and the preset where no flag was given."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    args = parser.parse_args(list(flags))
    args._name = arch
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def option_names(arch: str) -> set[str]:
    """Its options but those of its depth in training, which test_elastic.py has."""
    return known_options(ARCH_MODEL_REGISTRY[arch].add_args) - set(DEPTH_OPTIONS)


def build(arch: str, *flags: str, on: FairseqTask | None = None) -> nn.Module:
    """The model of an architecture with some flags."""
    return (on or task_of(arch)).build_model(options(arch, *flags))


def task_of(arch: str, target: int = TARGET_SYMBOLS) -> FairseqTask:
    """fairseq's task that an architecture is for, with so many symbols to write."""
    return speech.task(dictionary(target)) if arch in speech.ARCHS else task(target=target)


def on_meta(arch: str, *flags: str, on: FairseqTask | None = None) -> nn.Module:
    """The model at full size, without memory for its parameters."""
    with torch.device("meta"):
        return build(arch, *flags, on=on)


def has_static_levels(arch: str) -> bool:
    """Whether position and depth are one table, added before each pass."""
    return ARCH_MODEL_REGISTRY[arch].has_levels(options(arch))


def tiny_flags(arch: str) -> list[str]:
    """Flags that shrink an architecture and keep its structure: several passes, several blocks where it has them."""
    preset = vars(options(arch))
    sizes = {"embed-dim": 16, "ffn-embed-dim": 24, "attention-heads": 2, "layers": 4}
    flags = [part for side in SIDES for name, value in sizes.items() for part in (f"--{side}-{name}", str(value))]
    if arch.startswith("one_wide_ffn"):  # which has no FFN in the decoder
        at = flags.index("--decoder-ffn-embed-dim")
        del flags[at : at + 2]
    if arch in speech.ARCHS:
        flags += speech.TINY
    if preset.get("encoder_unique_layers", 1) > 1:
        stored = next(number for number in (2, 3) if STRATEGIES[preset["strategy"]].fits(number, 4))
        flags += ["--encoder-unique-layers", str(stored), "--decoder-unique-layers", str(stored)]
    if "signal_rank_divisor" in preset:
        flags += ["--signal-rank-divisor", "4"]
    if arch == "recursive_wmt_en_de":  # with its projections; recursive_iwslt_de_en without
        flags += ["--nll"]
    return flags


def tiny(arch: str, *flags: str, seed: int = 0, noise: float = 0.3, on: FairseqTask | None = None) -> nn.Module:
    """A tiny float64 model in eval mode of which no parameter is left at its initial value."""
    torch.manual_seed(seed)
    if arch.startswith("recursive") and "admin" in flags:  # a residual sum has one kind of coefficients
        flags += ("--no-lrc",)
    model = build(arch, *tiny_flags(arch), *flags, on=on).double()
    return randomise(model, seed, noise).eval()


def randomise(model: nn.Module, seed: int, noise: float = 0.3) -> nn.Module:
    """Moves every parameter, the level signals that start at zero and the LayerNorms included.

    Sublayers then add little to the stream, which would otherwise forget its tokens: after so many post-norm passes a
    random stack gives nearly the same for every input, and a test on it could hardly fail.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if re.search(r"\.(out|down)\.(weight|bias)$", name):
                parameter *= 0.15
    return model


def loops(model: nn.Module) -> list[Loop]:
    """The encoder's loop and the decoder's."""
    return [model.encoder.loop, model.decoder.loop]


def untied(model: nn.Module) -> nn.Module:
    """A copy in which every pass has a block to itself."""
    model = copy.deepcopy(model)
    for side in (model.encoder, model.decoder):
        loop = side.loop
        blocks = [copy.deepcopy(loop.blocks[which]) for which in loop.order]
        side.loop = Loop(blocks, tuple(range(loop.passes)), loop.own, loop.checkpointing).train(loop.training)
    return model


# Batches


def sentences(lengths: tuple[int, ...], symbols: int, seed: int = 0) -> list[Tensor]:
    """Random sentences of those lengths, the end-of-sentence symbol included."""
    entries, generator = dictionary(symbols), torch.Generator().manual_seed(seed)
    first = entries.nspecial
    words = [torch.randint(first, symbols, (length - 1,), generator=generator) for length in lengths]
    return [torch.cat([word, torch.tensor([entries.eos()])]) for word in words]


def collate(rows: list[Tensor], left_pad: bool = False, target: bool = False, length: int | None = None) -> Tensor:
    """fairseq's batch of sentences: (B, T); a target begins with the end-of-sentence symbol."""
    entries = dictionary(TARGET_SYMBOLS)
    return data_utils.collate_tokens(
        rows, entries.pad(), entries.eos(), left_pad, move_eos_to_beginning=target, pad_to_length=length
    )


def batch(
    source_lengths: tuple[int, ...] = (5, 3, 6),
    target_lengths: tuple[int, ...] = (4, 6, 3),
    left_pad: bool = False,
    symbols: tuple[int, int] = (SOURCE_SYMBOLS, TARGET_SYMBOLS),
) -> tuple[Tensor, Tensor, Tensor]:
    """`src_tokens` (B, S), `src_lengths` (B,), `prev_output_tokens` (B, T), the source padded on either side."""
    source = collate(sentences(source_lengths, symbols[0], seed=1), left_pad)
    target = collate(sentences(target_lengths, symbols[1], seed=2), target=True)
    return source, torch.tensor(source_lengths), target


def source(arch: str, lengths: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """What an architecture reads, of those lengths after subsampling: sentences, or frames of speech."""
    return speech.frames(lengths, seed) if arch in speech.ARCHS else sentences(lengths, SOURCE_SYMBOLS, seed)


def collate_source(arch: str, rows: list[Tensor], left_pad: bool = False, extra: int = 0) -> tuple[Tensor, Tensor]:
    """`src_tokens` and `src_lengths` of a batch with some columns of padding more than the longest needs.

    Words are padded on either side, speech behind, as fairseq's and timm's datasets do.
    """
    lengths = torch.tensor([len(row) for row in rows])
    if arch in speech.ARCHS:
        return speech.collate(rows, extra), lengths
    return collate(rows, left_pad, length=int(lengths.max()) + extra), lengths


def inputs(
    arch: str,
    source_lengths: tuple[int, ...] = (5, 3, 6),
    target_lengths: tuple[int, ...] = (4, 6, 3),
    left_pad: bool = False,
    symbols: tuple[int, int] = (SOURCE_SYMBOLS, TARGET_SYMBOLS),
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`batch`, of what an architecture reads."""
    words, lengths, target = batch(source_lengths, target_lengths, left_pad, symbols)
    if arch not in speech.ARCHS:
        return words, lengths, target
    return *collate_source(arch, speech.frames(source_lengths, seed=1)), target


# Measuring


def loss_and_gradients(model: nn.Module, inputs: tuple[Tensor, ...], seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss to which every logit of a token counts differently, and the gradient of every parameter."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    logits, _ = model(*inputs)
    keep = inputs[2].ne(model.decoder.dictionary.pad())
    weights = torch.linspace(-1, 1, logits[keep].numel(), dtype=logits.dtype).view_as(logits[keep])
    loss = (logits[keep].log_softmax(-1) * weights).mean()
    loss.backward()
    gradients = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    return loss.detach(), gradients


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Deterministic algorithms, and NaN in all memory that nothing has written yet."""
    fill, deterministic = (
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.are_deterministic_algorithms_enabled(),
    )
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fill
