"""Any architecture registered with fairseq: tiny and full-size models, inputs and losses.

fairseq's own tasks build everything. The modules `translation`, `speech` and `language` beside this one have what
differs between the three modalities.
"""

from argparse import Namespace
from collections.abc import Iterable
from types import ModuleType

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from recurrence.loop import Loop, named_loops
from tests.support import language, speech, translation
from tests.support.flags import option_names, options
from tests.support.stacks import gradients_of, parameters, poisoned_memory, randomise
from tests.support.translation import SIDES, VARIANTS, task
from tests.support.words import SOURCE_SYMBOLS, TARGET_SYMBOLS, collate, dictionary, sentences

__all__ = ["SIDES", "VARIANTS", "collate", "dictionary", "option_names", "poisoned_memory", "sentences", "task"]


MODALITIES = (translation, speech, language)
ARCHS = translation.ARCHS
WITH_ENCODER = sorted(translation.ARCHS + speech.ARCHS)
EVERY = [*WITH_ENCODER, *language.ARCHS]


def modality_of(arch: str) -> ModuleType:
    """The module of the architecture's modality: translation, speech or language."""
    (found,) = (modality for modality in MODALITIES if arch in modality.ARCHS)
    return found


CASES = {(arch, name): flags for arch in EVERY for name, flags in modality_of(arch).variants(arch).items()}


def _structures() -> dict[tuple[str, str], list[str]]:
    same: dict = {}
    for case, flags in CASES.items():
        arch = case[0]
        given = vars(options(arch, *modality_of(arch).tiny_flags(arch, *flags)))
        values = {name: value for name, value in given.items() if name != "_name"}
        same.setdefault((ARCH_MODEL_REGISTRY[arch], str(sorted(values.items()))), []).append(case)
    return {cases[0]: [arch for arch, _ in cases] for cases in same.values()}


# For slow tests: one case per structure, with all architectures that are the same model once they are small.
STRUCTURES = _structures()
REPRESENTS: dict[str, set[str]] = {}
for (arch, _), archs in STRUCTURES.items():
    REPRESENTS.setdefault(arch, set()).update(archs)


def cases(archs: Iterable[str]) -> pytest.MarkDecorator:
    """Runs a test with every variant of these architectures."""
    chosen = {case: CASES[case] for case in STRUCTURES if case[0] in archs}
    values = [(arch, flags) for (arch, _), flags in chosen.items()]
    return pytest.mark.parametrize(("arch", "flags"), values, ids=map("-".join, chosen))


def _each(archs: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("arch", [arch for arch in archs if arch in REPRESENTS])


every_architecture = pytest.mark.parametrize("arch", EVERY)  # at the sizes of its preset
every_translation_model = _each(ARCHS)
every_model_with_encoder = _each(WITH_ENCODER)
every_language_model = _each(language.ARCHS)
every_model = _each(EVERY)
every_language_case = cases(language.ARCHS)
every_case = cases(EVERY)


def architectures_tested(module: ModuleType) -> dict[str, set[str]]:
    """The architectures with which each test function of a module runs, if it is parametrized by them."""
    found = {}
    for names, name, values in parameters(module):
        if names == "arch" or names[:2] == ("arch", "flags"):
            given = values if names == "arch" else [arch for arch, *_ in values]
            found[name] = set().union(*(REPRESENTS.get(arch, {arch}) for arch in given))
    return found


# Building


def task_of(arch: str, symbols: int = TARGET_SYMBOLS) -> FairseqTask:
    """fairseq's task for an architecture, with this many target symbols."""
    return modality_of(arch).task_writing(symbols)


def build(arch: str, *flags: str, on: FairseqTask | None = None) -> nn.Module:
    """Builds an architecture with these flags, on its own task by default."""
    return (on or task_of(arch)).build_model(options(arch, *flags))


def on_meta(arch: str, *flags: str, on: FairseqTask | None = None) -> nn.Module:
    """Builds an architecture at full size on the meta device."""
    with torch.device("meta"):
        return build(arch, *flags, on=on)


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {key: tensor.shape for key, tensor in model.state_dict().items()}


def has_static_levels(arch: str) -> bool:
    """Whether position and depth are one table that is added before each pass."""
    return ARCH_MODEL_REGISTRY[arch].has_static_levels(options(arch))


def tiny_flags(arch: str, *flags: str) -> list[str]:
    """Flags that make an architecture small but keep several passes and, if it has them, several blocks."""
    return modality_of(arch).tiny_flags(arch, *flags)


def saved_options(arch: str, *flags: str) -> Namespace:
    """The options of a tiny model as a checkpoint stores them."""
    args = options(arch, *tiny_flags(arch, *flags))
    args.arch = arch
    if arch in language.ARCHS:
        args.tokens_per_sample = language.POSITIONS
    return args


def tiny(arch: str, *flags: str, seed: int = 0, noise: float = 0.3, on: FairseqTask | None = None) -> nn.Module:
    """A tiny float64 model in eval mode with random values for all parameters."""
    torch.manual_seed(seed)
    model = build(arch, *tiny_flags(arch, *flags), on=on).double()
    return randomise(model, seed, noise).eval()


def loops(model: nn.Module) -> list[Loop]:
    """The encoder's loop and the decoder's, or a language model's."""
    return list(named_loops(model).values())


def inputs(
    arch: str,
    source_lengths: tuple[int, ...] = (5, 3, 6),
    target_lengths: tuple[int, ...] = (4, 6, 3),
    left_pad: bool = False,
    symbols: tuple[int, int] = (SOURCE_SYMBOLS, TARGET_SYMBOLS),
) -> tuple[Tensor, ...]:
    """Inputs of an architecture; the last are the decoder's tokens (B, T), the only input of a language model."""
    return modality_of(arch).collate(modality_of(arch).rows(source_lengths, target_lengths, symbols), left_pad)


def batch(*lengths: tuple[int, ...], **options) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of a translation model; see `inputs`."""
    return inputs(ARCHS[0], *lengths, **options)


def encoded(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict | None:
    """The encoder's output; None for a language model."""
    return model.encoder(*inputs[:-1]) if len(inputs) > 1 else None


@torch.no_grad()
def read_in_steps(model: nn.Module, inputs: tuple[Tensor, ...], ends: Iterable[int] | None = None) -> Tensor:
    """What the decoder gives for all its tokens, read in steps that end at these lengths, or token by token."""
    *_, tokens = inputs
    ends = list(ends or range(1, tokens.size(1) + 1))
    memory, state = encoded(model, inputs), {}
    parts = [model.decoder(tokens[:, :end], memory, state)[0] for end in ends]
    assert [part.size(1) for part in parts] == [end - start for start, end in zip([0, *ends], ends)]
    return torch.cat(parts, dim=1)


# Measuring


def is_token(tokens: Tensor) -> Tensor:
    """(B, T) bool: True except at padding."""
    return tokens.ne(dictionary(TARGET_SYMBOLS).pad())


def log_probabilities(model: nn.Module, *inputs: Tensor) -> Tensor:
    """(B, T, vocabulary), with gradients also through an adaptive softmax."""
    x, softmax = model(*inputs)[0], getattr(model.decoder, "adaptive_softmax", None)
    if softmax is None:
        return x.log_softmax(-1)
    head = softmax.head(x.flatten(0, 1)).log_softmax(-1)
    first = softmax.cutoff[0]
    bands = [tail(x.flatten(0, 1)).log_softmax(-1) + head[:, first + i, None] for i, tail in enumerate(softmax.tail)]
    return torch.cat([head[:, :first], *bands], dim=1).view(*inputs[-1].shape, -1)


def loss_and_gradients(model: nn.Module, inputs: tuple[Tensor, ...], seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss that weights every log-probability differently, and the gradient of every parameter."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    found = log_probabilities(model, *inputs)[is_token(inputs[-1])]
    loss = (found * torch.linspace(-1, 1, found.numel(), dtype=found.dtype, device=found.device).view_as(found)).mean()
    return loss.detach(), gradients_of(model, loss)
