"""Language models of any registered architecture, tiny or at full size, and their batches.

Everything is built by fairseq's own language modeling task; only the command line is left out.
"""

import argparse
import copy

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import OmegaConf
from torch import Tensor, nn

from fairseq_plugin.modules.language_model import LanguageModel
from recurrence.loop import Loop
from tests.support import models

ARCHS = sorted(arch for arch, model in ARCH_MODEL_REGISTRY.items() if issubclass(model, LanguageModel))
FAMILY = {arch: ARCH_MODEL_REGISTRY[arch].__name__ for arch in ARCHS}
SYMBOLS, POSITIONS = 23, 64

# Flags that shrink the models of a family and keep their structure.
SIZE = ["--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "24", "--decoder-attention-heads", "2"]
TINY = {
    "IntraLayerRecurrence": [*SIZE, "--decoder-layers", "3"],
    "SharedLanguageModel": [*SIZE, "--decoder-layers", "4", "--adaptive-input-cutoff", "8,14"],
    "KausikRecurrence": [*SIZE, "--decoder-layers", "2"],
}
# What a family may be built with and still has to keep every promise.
VARIANTS = {
    "IntraLayerRecurrence": {
        "rope": ["--position", "rope"],
        "alibi": ["--position", "alibi"],
        "learned": ["--position", "learned"],
        "none": ["--position", "none"],
        "injected map": ["--position", "rope", "--inject-embedding"],
        "injected loops": ["--position", "alibi", "--block-loops", "2", "--inject-embedding"],
    },
    "SharedLanguageModel": {
        "adaptive": [],
        "one matrix": ["--adaptive-input-cutoff", "none", "--share-decoder-input-output-embed"],
        "adaptive output": ["--adaptive-input-cutoff", "none", "--adaptive-softmax-cutoff", "8"],
    },
    "KausikRecurrence": {
        "as published": [],
        "learned": ["--position", "learned"],
        "window": ["--window", "3"],
        "accumulating": ["--window", "2", "--accumulate", "--activation-fn", "relu"],
        "regular": ["--regular"],
    },
}

CASES = [(arch, flags) for arch in ARCHS for flags in VARIANTS[FAMILY[arch]].values()]
every_arch = pytest.mark.parametrize("arch", ARCHS)
every_variant = pytest.mark.parametrize(
    ("arch", "flags"), CASES, ids=[f"{arch}-{name}" for arch in ARCHS for name in VARIANTS[FAMILY[arch]]]
)


def task(symbols: int = SYMBOLS, **values) -> LanguageModelingTask:
    """fairseq's language modeling task on a dictionary of that size."""
    config = OmegaConf.structured(LanguageModelingConfig(**{"tokens_per_sample": POSITIONS, **values}))
    return LanguageModelingTask(config, models.dictionary(symbols))


def options(arch: str, *flags: str) -> argparse.Namespace:
    """What fairseq's command line hands to `build_model`: the flags, and the preset where no flag was given."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    args = parser.parse_args(list(flags))
    args._name = arch
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def build(arch: str, *flags: str, on: LanguageModelingTask | None = None) -> nn.Module:
    """The model of an architecture with some flags."""
    return (on or task()).build_model(options(arch, *flags))


def on_meta(arch: str, *flags: str, on: LanguageModelingTask | None = None) -> nn.Module:
    """The model at full size, without memory for its parameters."""
    with torch.device("meta"):
        return build(arch, *flags, on=on)


def tiny_flags(arch: str, *flags: str) -> list[str]:
    """Flags that shrink an architecture and keep its structure: several passes, several blocks where it has them."""
    more, flags = flags, list(TINY[FAMILY[arch]])
    if FAMILY[arch] == "IntraLayerRecurrence" and "--block-loops" not in more:
        flags += ["--reuse-map", "2,1,2"]
    if FAMILY[arch] == "SharedLanguageModel":
        flags += ["--decoder-unique-layers", {"vanilla_lm": "4", "universal_lm": "1"}.get(arch, "2")]
    return [*flags, *more]


def tiny(arch: str, *flags: str, seed: int = 0, noise: float = 0.3, on: LanguageModelingTask | None = None):
    """A tiny float64 model in eval mode of which no parameter is left at its initial value."""
    torch.manual_seed(seed)
    model = build(arch, *tiny_flags(arch, *flags), on=on).double()
    return models.randomise(model, seed, noise).eval()


def loops(model: nn.Module) -> list[Loop]:
    """The loops over depth; none in a model that recurs along the sequence."""
    return [module for module in model.modules() if isinstance(module, Loop)]


def untied(model: nn.Module) -> nn.Module:
    """A copy in which every pass has a block to itself."""
    model = copy.deepcopy(model)
    stack = model.decoder.stack
    loop = stack.loop
    blocks = [copy.deepcopy(loop.blocks[which]) for which in loop.order]
    stack.loop = Loop(blocks, tuple(range(loop.passes)), loop.own, loop.checkpointing).train(loop.training)
    return model


# Batches


def texts(
    lengths: tuple[int, ...] = (6, 3, 8), left_pad: bool = False, seed: int = 1, symbols: int = SYMBOLS
) -> Tensor:
    """Random texts of those lengths, padded on either side: (B, T)."""
    return models.collate(models.sentences(lengths, symbols, seed), left_pad)


def log_probabilities(model: nn.Module, tokens: Tensor) -> Tensor:
    """(B, T) -> (B, T, vocabulary), by a form of the adaptive softmax through which gradients flow."""
    x, softmax = model(tokens)[0], model.decoder.adaptive_softmax
    if softmax is None:
        return x.log_softmax(-1)
    head = softmax.head(x.flatten(0, 1)).log_softmax(-1)
    first = softmax.cutoff[0]
    bands = [tail(x.flatten(0, 1)).log_softmax(-1) + head[:, first + i, None] for i, tail in enumerate(softmax.tail)]
    return torch.cat([head[:, :first], *bands], dim=1).view(*tokens.shape, -1)


def kept(tokens: Tensor) -> Tensor:
    """(B, T) bool: what is no padding."""
    return tokens.ne(models.dictionary(SYMBOLS).pad())


def loss_and_gradients(model: nn.Module, tokens: Tensor, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss to which every probability of a token counts differently, and the gradient of every parameter."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    found = log_probabilities(model, tokens)[kept(tokens)]
    loss = (found * torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)).mean()
    loss.backward()
    gradients = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    return loss.detach(), gradients
