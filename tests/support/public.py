"""Models as users build them: by fairseq's command line and tasks, and by ``timm.create_model``; nothing else of ours.

So the same code builds them in every version of this project.
"""

import argparse
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, FairseqLanguageModel
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from fairseq.tasks.speech_to_text import SpeechToTextTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from timm.models import model_entrypoint
from torch import Tensor, nn

import fairseq_plugin  # noqa: F401  registers the architectures
import timm_plugin  # noqa: F401  registers the models

ARCHITECTURES = [arch for arch, model in ARCH_MODEL_REGISTRY.items() if model.__module__.startswith("fairseq_plugin.")]
IMAGE_MODELS = [name for name in timm.list_models() if model_entrypoint(name).__module__.startswith("timm_plugin.")]
MODELS = [*ARCHITECTURES, *IMAGE_MODELS]
SOURCE_SYMBOLS, SYMBOLS, FEATURES = 14, 12, 6


def task_name(arch: str) -> str:
    """fairseq's task of an architecture."""
    if issubclass(ARCH_MODEL_REGISTRY[arch], FairseqLanguageModel):
        return "language_modeling"
    return "speech_to_text" if arch.startswith("s2t_") else "translation"


def dictionary(symbols: int) -> Dictionary:
    """fairseq's dictionary of that size."""
    found = Dictionary()
    for number in range(symbols - len(found)):
        found.add_symbol(str(number))
    return found


def task_of(arch: str, source: int = SOURCE_SYMBOLS, target: int = SYMBOLS) -> FairseqTask:
    """fairseq's task of an architecture, on dictionaries of these sizes."""
    kind = task_name(arch)
    if kind == "translation":
        return TranslationTask(TranslationConfig(), dictionary(source), dictionary(target))
    if kind == "language_modeling":
        return LanguageModelingTask(LanguageModelingConfig(tokens_per_sample=32), dictionary(target))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.yaml").write_text(f"input_feat_per_channel: {FEATURES}\n")
        limits = dict(max_source_positions=6000, max_target_positions=1024)
        args = argparse.Namespace(data=folder, config_yaml="config.yaml", **limits)
        return SpeechToTextTask(args, dictionary(target))


def build(arch: str, flags: str = "", symbols: tuple[int, int] | None = None) -> nn.Module:
    """The model that `fairseq-train --arch ARCH FLAGS` builds.

    `symbols`: sizes of the dictionaries of source and target; by default they differ unless they must not.
    """
    if symbols is None:
        symbols = (SYMBOLS if "--share-all-embeddings" in flags else SOURCE_SYMBOLS, SYMBOLS)
    words = f"none --task {task_name(arch)} --arch {arch} {flags}"
    args = options.parse_args_and_arch(options.get_training_parser(), words.split())
    return task_of(arch, *symbols).build_model(args)


@contextmanager
def in_float64() -> Iterator[None]:
    """Builds models in float64, including their fixed tables."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def rows(lengths: tuple[int, ...], symbols: int, seed: int) -> list[Tensor]:
    """Random sentences of these lengths, each with the end-of-sentence symbol."""
    generator = np.random.default_rng(seed)
    return [torch.tensor([*generator.integers(4, symbols, length - 1), 2]) for length in lengths]


def weights(shape: tuple[int, ...], name: str = "") -> Tensor:
    """Normal numbers, float64, that depend only on shape and name."""
    return torch.from_numpy(np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape))


def filled(model: nn.Module, profiled: float = 1.0) -> nn.Module:
    """Sets all parameters, batch statistics and Admin's mark, each as its name says.

    Parameters are normal with deviation 0.15; vectors named weight, which scale, are so around 1. Tables stay.
    """
    state = {}
    for key, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, nn.Parameter):
            around = 1.0 if key.endswith("weight") and tensor.dim() == 1 else 0.0
            state[key] = around + 0.15 * weights(tensor.shape, key)
        elif key.endswith("running_mean"):
            state[key] = 0.15 * weights(tensor.shape, key)
        elif key.endswith("running_var"):
            state[key] = torch.exp(0.15 * weights(tensor.shape, key))
        elif key == "profiled":
            state[key] = torch.tensor(profiled)
        else:
            state[key] = tensor
    model.load_state_dict(state)
    return model


# State dicts


def full_size(name: str) -> nn.Module:
    """A registered architecture or image model at its own size, on the meta device; text has 1,000 symbols."""
    with torch.device("meta"):
        if name in IMAGE_MODELS:
            return timm.create_model(name)
        banded = "_lm" in name and name != "recurrent_lm"
        return build(name, "--adaptive-input-cutoff 200,600" if banded else "", (1000, 1000))


def described(model: nn.Module) -> list[str]:
    """The entries of a state dict, in one line if only numbers differ: `own.{0-5}.norms.{0-1}.weight 16`."""
    shapes = {key: "x".join(map(str, tensor.shape)) or "scalar" for key, tensor in model.state_dict().items()}
    lines = [(tuple(key.split(".")), shape) for key, shape in shapes.items()]
    for place in range(max(len(parts) for parts, _ in lines)):
        groups: dict[tuple, list[int]] = {}
        for parts, shape in lines:
            number = int(parts[place]) if len(parts) > place and parts[place].isdecimal() else None
            group = (*parts[:place], None, *parts[place + 1 :]) if number is not None else parts
            groups.setdefault((group, shape), []).append(number)
        lines = [
            (tuple(_numbers(numbers) if part is None else part for part in parts), shape)
            for (parts, shape), numbers in groups.items()
        ]
    return sorted(f"{'.'.join(parts)} {shape}" for parts, shape in lines)


def _numbers(numbers: list[int]) -> str:
    """3 4 5 as {3-5}, others with commas."""
    ordered = sorted(numbers)
    if len(ordered) == 1:
        return str(ordered[0])
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{{{ordered[0]}-{ordered[-1]}}}"
    return "{" + ",".join(map(str, ordered)) + "}"


# Options


def flags(arch: str) -> dict[str, Any]:
    """The default of each flag that an architecture adds to fairseq's command line, by the flag."""
    model = ARCH_MODEL_REGISTRY[arch]
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, add_help=False)
    model.add_args(parser)
    args = parser.parse_args([])
    ARCH_CONFIG_REGISTRY[arch](args)
    added = [action for action in parser._actions if hasattr(args, action.dest)]
    return {flag: getattr(args, action.dest) for action in added for flag in action.option_strings}


def arguments(name: str) -> dict[str, Any]:
    """The value of each argument of a registered image model that is built with none."""
    with torch.device("meta"):
        return vars(timm.create_model(name).config)
