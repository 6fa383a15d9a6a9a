"""Models from Python: what `fairseq-train --arch` builds, without a command line or data."""

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, BaseFairseqModel
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_plugin.options import ConfiguredModel


def architectures(kind: type = ConfiguredModel, but: type | tuple = ()) -> list[str]:
    """Names of this package's architectures whose model is of a kind, by family, in the order of registration."""
    registered = ARCH_MODEL_REGISTRY.items()
    return [arch for arch, model in registered if issubclass(model, kind) and not issubclass(model, but)]


def build_architecture(
    arch: str, source: Dictionary | None, target: Dictionary, max_positions: int = 1024, **options
) -> BaseFairseqModel:
    """Builds a registered architecture for translation or speech, fairseq's own included.

    Args:
        arch: its name.
        source, target: dictionaries. Speech has no source dictionary, and needs the options `input_feat_per_channel`
            and `input_channels`.
        max_positions: longest source and target, in tokens or frames, unless the options give them.
        **options: command-line options by name, which override the preset.

    Raises:
        ValueError: if the name is not registered, or an architecture of this package has no such option or rejects its
            value.
    """
    limits = {name: options.get(name, max_positions) for name in ("max_source_positions", "max_target_positions")}
    _check(arch, options)
    args = Namespace(**{**options, **limits})
    ARCH_CONFIG_REGISTRY[arch](args)
    task = TranslationTask(TranslationConfig(**limits), source, target)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task)


def build_language_model(
    arch: str, dictionary: Dictionary, max_positions: int = 1024, output: Dictionary | None = None, **options
) -> BaseFairseqModel:
    """Builds a registered language model, fairseq's own included.

    Args:
        arch: its name.
        dictionary, output: the dictionaries of the input, and of the output if it is another.
        max_positions: number of learned positions, where there are any.
        **options: command-line options by name, which override the preset.

    Raises:
        ValueError: see :func:`build_architecture`.
    """
    _check(arch, options)
    args = Namespace(tokens_per_sample=max_positions, max_target_positions=None)
    task = LanguageModelingTask(args, dictionary, output)
    return task.build_model(Namespace(_name=arch, **options))


def _check(arch: str, options: dict[str, Any]) -> None:
    """Raises ValueError for an unknown architecture, or for an option that one of this package does not have."""
    if arch not in ARCH_MODEL_REGISTRY:
        raise ValueError(f"arch={arch}: must be a registered architecture")
    model = ARCH_MODEL_REGISTRY[arch]
    if not issubclass(model, ConfiguredModel):
        return
    for name in options.keys() - model.options.known().keys():
        instead = model.options.removed().get(name)
        rule = f"was removed: {instead}" if instead else f"not an option of {arch}"
        raise ValueError(f"{name}={options[name]}: {rule}")


def given_options(arch: str, flags: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Splits flags of `fairseq-train` into the model's options, by name, and all other flags."""
    parser, model = ArgumentParser(argument_default=SUPPRESS, allow_abbrev=False), ARCH_MODEL_REGISTRY[arch]
    add_options = model.add_options if issubclass(model, ConfiguredModel) else model.add_args
    add_options(parser)
    values, others = parser.parse_known_args(list(flags))
    return vars(values), others


def numbered_dictionary(symbols: int) -> Dictionary:
    """A dictionary of that size, including fairseq's special symbols; the other symbols are numbers."""
    dictionary = Dictionary()
    for number in range(symbols - len(dictionary)):
        dictionary.add_symbol(str(number))
    return dictionary


def unpadded_dictionary(size: int) -> Dictionary:
    """A dictionary in which every index is a symbol: the padding's index is after the last one."""
    dictionary = numbered_dictionary(size)
    del dictionary.symbols[size:], dictionary.count[size:]  # some of fairseq's own, if the size is below four
    dictionary.indices = {symbol: index for index, symbol in enumerate(dictionary.symbols)}
    dictionary.pad_index = size
    return dictionary
