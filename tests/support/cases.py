"""A test case for every registered model and variant: how to build it, its inputs, its output and a loss."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import timm
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor, nn

from tests.support import language, models, vision

TEXT_RATES = ("dropout", "attention_dropout", "activation_dropout")
# Flags that share embedding and output matrices; speech has none to share on the encoder's side.
SHARING = {
    "untied": [],
    "output tied": ["--share-decoder-input-output-embed"],
    "all tied": ["--share-all-embeddings"],
}


@dataclass(frozen=True)
class Text:
    """An architecture registered with fairseq, in one of its variants.

    joined: whether source and target have the same dictionary.
    """

    model: str
    variant: str
    flags: list[str] = field(compare=False)
    joined: bool = False

    @property
    def represented(self) -> set[str]:
        """The architectures that are the same at this size."""
        return set(models.REPRESENTS.get(self.model, {self.model}))

    def build(self, seed: int = 0, rate: float | None = None, checkpointing: bool = False) -> nn.Module:
        """A tiny float64 model in eval mode; `rate` is the rate of every dropout."""
        flags = list(self.flags)
        if rate is not None:
            known = models.option_names(self.model)
            flags += [f"--{name.replace('_', '-')}={rate}" for name in TEXT_RATES if name in known]
        if checkpointing:
            flags.append("--checkpoint-activations")
        joined = models.task(models.TARGET_SYMBOLS, models.TARGET_SYMBOLS) if self.joined else None
        return models.tiny(self.model, *flags, seed=seed, on=joined)

    def inputs(self, model: nn.Module, left_pad: bool = False) -> tuple[Tensor, ...]:
        """Texts of several lengths, long enough that every parameter gets a gradient."""
        symbols = (models.TARGET_SYMBOLS if self.joined else models.SOURCE_SYMBOLS, models.TARGET_SYMBOLS)
        return models.inputs(self.model, target_lengths=(9, 12, 30), left_pad=left_pad, symbols=symbols)

    def batches(self, model: nn.Module) -> list[tuple[Tensor, ...]]:
        """With padding on the right and on the left."""
        return [self.inputs(model, left_pad) for left_pad in (False, True)]

    output = staticmethod(models.log_probabilities)
    loss_and_gradients = staticmethod(models.loss_and_gradients)


@dataclass(frozen=True)
class Image:
    """A model registered with timm, in one of its variants."""

    model: str
    variant: str

    @property
    def represented(self) -> set[str]:
        """The models that are the same at this size."""
        return {vision.CASES[variant][0] for variant in vision.STRUCTURES[self.variant]}

    def build(self, seed: int = 0, rate: float | None = None, checkpointing: bool = False) -> nn.Module:
        """A small float64 model in eval mode; `rate` is the rate of every dropout."""
        rates = {} if rate is None else dict.fromkeys(vision.rates_of(self.model), rate)
        model = vision.small(self.variant, seed, **rates)
        model.set_grad_checkpointing(checkpointing)
        return model

    def inputs(self, model: nn.Module) -> tuple[Tensor, ...]:
        return (vision.images(model, 3),)

    def batches(self, model: nn.Module) -> list[tuple[Tensor, ...]]:
        return [self.inputs(model)]

    def output(self, model: nn.Module, images: Tensor) -> Tensor:
        return model(images)

    def loss_and_gradients(self, model: nn.Module, inputs: Any, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
        return vision.loss_and_gradients(model, *inputs, seed=seed)


Case = Text | Image

IMAGES = [Image(vision.CASES[variant][0], variant) for variant in vision.STRUCTURES]
CASES: list[Case] = [Text(*case, models.CASES[case]) for case in models.STRUCTURES]
CASES += IMAGES
STORED: list[Case] = [
    Text(arch, name, flags, arch in models.ARCHS)
    for arch in models.WITH_ENCODER
    if arch in models.REPRESENTS
    for name, flags in SHARING.items()
    if name != "all tied" or arch in models.ARCHS
]
STORED += [Text(*case, models.CASES[case]) for case in models.STRUCTURES if case[0] in language.ARCHS]
STORED += IMAGES


def case(model: str, variant: str = "") -> Case:
    """The case of a registered name, in its default or another variant."""
    if model in vision.MODELS:
        return Image(model, variant or model)
    variant = variant or next(iter(models.modality_of(model).variants(model)))
    return Text(model, variant, models.CASES[model, variant])


def kind(model: object) -> str | None:
    """The class of an architecture, or the module and first word of an image model; None of what is neither."""
    name = getattr(model, "model", model)
    if not isinstance(name, str):
        return None
    if name in vision.CASES:
        registered = vision.CASES[name][0]
        return f"{timm.models.model_entrypoint(registered).__module__} {registered.split('_')[0]}"
    return ARCH_MODEL_REGISTRY[name].__name__ if name in ARCH_MODEL_REGISTRY else None


def _name(case: Case) -> str:
    return f"{case.model}-{case.variant}" if isinstance(case, Text) else case.variant


every_case = pytest.mark.parametrize("case", CASES, ids=_name)
# Without embedding injection, which depends on which passes share a block and so differs in an untied copy.
every_case_without_injection = pytest.mark.parametrize(
    "case", [case for case in CASES if "--inject-embedding" not in getattr(case, "flags", ())], ids=_name
)
every_stored_case = pytest.mark.parametrize("case", STORED, ids=_name)


def same_output(case: Case, one: nn.Module, other: nn.Module) -> bool:
    """Whether two models of a case give the same output, bit for bit."""
    inputs = case.inputs(one)
    return torch.equal(case.output(one, *inputs), case.output(other, *inputs))
