"""The unshared models with which a looped one is compared, as flags of fairseq-train; see
:meth:`ConfiguredModel.unshared`."""

import argparse
from argparse import Namespace
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import nn

from fairseq_plugin.modules import elastic
from fairseq_plugin.modules.options import ConfiguredModel
from recurrence import count
from recurrence.comparison.command import split
from recurrence.comparison.rows import widest


def control_flags(
    args: Namespace, words: Sequence[str], looped: nn.Module, build: Callable[[Sequence[str]], nn.Module]
) -> dict[str, list[str]]:
    """The flags of every row, see :data:`recurrence.comparison.rows.ROWS`.

    Args:
        args: the looped model's options, all filled in.
        words: its command line.
        looped: the model.
        build: builds a model from a command line.

    Raises:
        ValueError: if a row cannot be derived.
    """
    loops, target = looped.loops_by_side(), count.stored(looped)
    blocks = {side: len(loop.blocks) for side, loop in loops.items()}
    once = storage = unshared_flags(args, words, blocks)
    if count.stored(build(once)) != target:

        def widened(units: int, hidden: int) -> list[str]:
            return unshared_flags(args, words, blocks, **sized(args, blocks, units, hidden))

        storage = widened(*widest(lambda *sizes: count.stored(build(widened(*sizes))), target))
    deep = unshared_flags(args, words, {side: loop.passes for side, loop in loops.items()})
    return {"looped": list(words), "once": once, "storage": storage, "deep": deep, "time": storage}


def unshared_flags(args: Namespace, words: Sequence[str], layers: dict[str, int], **sizes: Any) -> list[str]:
    """The flags of an unshared model that is otherwise like a looped one.

    Args:
        args: the looped model's options, all filled in.
        words: its command line.
        layers: number of blocks by side.
        **sizes: further options.

    Raises:
        ValueError: if there is no such model.
    """
    looped = ARCH_MODEL_REGISTRY[args.arch]
    derived = looped.unshared(args, layers)
    arch = derived.pop("arch", args.arch)
    family = ARCH_MODEL_REGISTRY[arch]
    both = family.options.known().keys() & looped.options.known().keys()
    wanted = {name: getattr(args, name) for name in both} | dict.fromkeys(elastic.OPTIONS) | derived | sizes
    _, others = split(words, _actions(looped))
    _, others = split(others, _arch())
    return [*others, "--arch", arch, *_flags(family, arch, wanted)]


def sized(args: Namespace, layers: dict[str, int], units: int, hidden: int) -> dict[str, int]:
    """Options of a wider or narrower model: `units` times :func:`unit` of its heads, the width of a head unchanged.

    Args:
        args: the looped model's options.
        layers: as for :func:`unshared_flags`.
        units: heads of each side, as multiples of the smallest numbers in the same proportion.
        hidden: hidden units of each FFN beyond the proportion.
    """
    whole, sizes = unit(args, layers), {}
    for side in layers:
        for name in ("attention_heads", "embed_dim", "ffn_embed_dim"):
            sizes[f"{side}_{name}"] = getattr(args, f"{side}_{name}") * units // whole
        sizes[f"{side}_ffn_embed_dim"] += hidden
    return sizes


def unit(args: Namespace, layers: dict[str, int]) -> int:
    """The largest number that divides the heads of all sides."""
    return gcd(*(getattr(args, f"{side}_attention_heads") for side in layers))


def _actions(family: type[ConfiguredModel]) -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    family.add_args(parser)
    return parser._actions


def _arch() -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--arch", "-a")
    return parser._actions


def _flags(family: type[ConfiguredModel], arch: str, wanted: dict[str, Any]) -> list[str]:
    """Flags that give an architecture these values of its options; those that it has already are left out."""
    options = {name: wanted[name] for name in family.options()._get_all_attributes() if name in wanted}
    given: dict[str, Any] = {}
    for _ in range(2):  # what an option is by default may depend on others
        given |= {name: value for name, value in _other(arch, given, options).items() if value is not None}
    for name in _other(arch, given, options):
        raise ValueError(f"--{name.replace('_', '-')}: {arch} has it by default, and it cannot be taken back")
    flags = [(f"--{name.replace('_', '-')}", value) for name, value in given.items()]
    return [flag if value is True else f"{flag}={value}" for flag, value in flags]


def _other(arch: str, given: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The wanted values that an architecture does not have with these options; None for what must not be set."""
    args = Namespace(**given)
    ARCH_CONFIG_REGISTRY[arch](args)
    values = {name: None if value is False else value for name, value in wanted.items()}
    has = {name: None if getattr(args, name) is False else getattr(args, name) for name in values}
    return {name: value for name, value in values.items() if value != has[name]}
