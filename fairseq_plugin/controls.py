"""The controls of a looped model: command lines of unshared ones of equal storage or equal operations.

They follow from the options of the looped model, and leave out what the control's architecture has by default.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import nn

from fairseq_plugin.elastic import DepthConfig, loops_by_side
from fairseq_plugin.options import ConfiguredModel
from recurrence import count
from recurrence.comparison.rows import check_narrower, widest, widest_below


def control_flags(
    args: Namespace,
    words: Sequence[str],
    looped: nn.Module,
    build: Callable[[Sequence[str]], nn.Module],
    names: Sequence[str],
) -> dict[str, list[str]]:
    """The flags of every row, see :data:`recurrence.comparison.rows.ROWS`.

    Args:
        args, words, looped: the looped model's options, all filled in; its command line; the model.
        build: builds a model from a command line.
        names: the rows that are asked for.

    Raises:
        ValueError: if a row cannot be derived.
    """
    loops, target = loops_by_side(looped), count.stored(looped)
    blocks = {side: len(loop.blocks) for side, loop in loops.items()}
    passes = {side: loop.passes for side, loop in loops.items()}
    once = unshared_flags(args, words, blocks)
    flags = {"looped": list(words), "once": once, "storage": once, "deep": unshared_flags(args, words, passes)}

    def as_large(layers: dict[str, int], sizes: Callable, search: Callable) -> list[str]:
        def sized(steps: int, hidden: int) -> list[str]:
            return unshared_flags(args, words, layers, **sizes(args, layers, steps, hidden))

        return sized(*search(lambda *given: count.stored(build(sized(*given))), target))

    if "storage" in names and count.stored(build(once)) != target:
        flags["storage"] = as_large(blocks, more_heads, widest)
    if "narrow" in names:
        flags["narrow"] = as_large(passes, narrower_heads, widest_below)
    return {**flags, "time": flags["storage"]}


def unshared_flags(args: Namespace, words: Sequence[str], layers: dict[str, int], **sizes: Any) -> list[str]:
    """The flags of an unshared model, with that many blocks by side, that is otherwise like a looped one.

    Raises:
        ValueError: if there is no such model.
    """
    looped = ARCH_MODEL_REGISTRY[args.arch]
    derived = looped.unshared(args, layers)
    arch = derived.pop("arch", args.arch)
    family = ARCH_MODEL_REGISTRY[arch]
    both = family.options.known().keys() & looped.options.known().keys()
    wanted = {name: getattr(args, name) for name in both} | derived | sizes
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    looped.add_options(parser)
    gen_parser_from_dataclass(parser, DepthConfig())  # which an unshared model has no use for
    parser.add_argument("--arch", "-a")
    _, others = parser.parse_known_args(words)
    return [*others, "--arch", arch, *_flags(family, arch, wanted)]


def more_heads(args: Namespace, layers: dict[str, int], steps: int, hidden: int) -> dict[str, int]:
    """Options of a wider model; the width of a head stays.

    Args:
        args: the looped model's options.
        layers: blocks by side.
        steps: more heads of each side, as multiples of the smallest numbers in the same proportion.
        hidden: hidden units of each FFN beyond the proportion.
    """
    whole, sizes = gcd(*(getattr(args, f"{side}_attention_heads") for side in layers)), {}
    for side in layers:
        for name in ("attention_heads", "embed_dim", "ffn_embed_dim"):
            sizes[f"{side}_{name}"] = getattr(args, f"{side}_{name}") * (whole + steps) // whole
        sizes[f"{side}_ffn_embed_dim"] += hidden
    return sizes


def narrower_heads(args: Namespace, layers: dict[str, int], steps: int, hidden: int) -> dict[str, int]:
    """Options of a narrower model; the number of heads stays.

    Args:
        args, layers, hidden: see :func:`more_heads`.
        steps: columns of a head, in pairs, by which it is narrower; negative.
    """
    heads = {side: getattr(args, f"{side}_attention_heads") for side in layers}
    columns = {side: getattr(args, f"{side}_embed_dim") // heads[side] for side in layers}
    whole, sizes = max(1, gcd(*columns.values()) // 2), {}
    check_narrower(whole + steps)
    for side in layers:
        sizes[f"{side}_embed_dim"] = columns[side] * (whole + steps) // whole * heads[side]
        sizes[f"{side}_ffn_embed_dim"] = getattr(args, f"{side}_ffn_embed_dim") * (whole + steps) // whole + hidden
    return sizes


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
