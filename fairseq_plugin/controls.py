"""The controls of a looped model of fairseq's: command lines of unshared ones of equal storage or equal operations.

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
from fairseq_plugin.options import ConfiguredModel, flag
from recurrence import count
from recurrence.comparison.controls import Controls


class TextControls(Controls):
    """Command lines of fairseq-train. `blocks` and `passes` are by side.

    Args:
        args: the looped model's options, all filled in.
        words: its command line.
        looped: the model.
        build: builds a model from a command line, on the meta device.
    """

    def __init__(
        self, args: Namespace, words: Sequence[str], looped: nn.Module, build: Callable[[Sequence[str]], nn.Module]
    ):
        self.args, self.words, self.build = args, words, build
        loops, self.target = loops_by_side(looped), count.stored(looped)
        self.blocks = {side: len(loop.blocks) for side, loop in loops.items()}
        self.passes = {side: loop.passes for side, loop in loops.items()}
        self.half = {side: max(1, passes // 2) for side, passes in self.passes.items()}

    def unshared(self, layers: dict[str, int], **sizes: Any) -> list[str]:
        looped = ARCH_MODEL_REGISTRY[self.args.arch]
        derived = looped.unshared(self.args, layers)
        arch = derived.pop("arch", self.args.arch)
        family = ARCH_MODEL_REGISTRY[arch]
        both = family.options.known().keys() & looped.options.known().keys()
        wanted = {name: getattr(self.args, name) for name in both} | derived | sizes
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        looped.add_options(parser)
        gen_parser_from_dataclass(parser, DepthConfig())  # which an unshared model has no use for
        parser.add_argument("--arch", "-a")
        _, others = parser.parse_known_args(self.words)
        return [*others, "--arch", arch, *_flags(family, arch, wanted)]

    def more_heads(self, steps: int, hidden: int) -> dict[str, int]:
        whole = gcd(*self._of_sides("attention_heads"))
        return self._scaled(("attention_heads", "embed_dim", "ffn_embed_dim"), whole, steps, hidden)

    def narrower_heads(self, steps: int, hidden: int) -> dict[str, int]:
        """A step takes two columns off each head, so that an even width stays even, or one if it is odd; more where the
        heads of the two sides differ in width."""
        heads = zip(self._of_sides("embed_dim"), self._of_sides("attention_heads"))
        whole = gcd(*(width // number for width, number in heads))
        return self._scaled(("embed_dim", "ffn_embed_dim"), whole if whole % 2 else whole // 2, steps, hidden)

    def _of_sides(self, name: str) -> list[int]:
        return [getattr(self.args, f"{side}_{name}") for side in self.blocks]

    def _scaled(self, names: Sequence[str], whole: int, steps: int, hidden: int) -> dict[str, int]:
        """These options of each side, where the looped model is `whole` steps wide, and hidden units beyond them."""
        sizes = {}
        for side in self.blocks:
            for name in names:
                sizes[f"{side}_{name}"] = getattr(self.args, f"{side}_{name}") * (whole + steps) // whole
            sizes[f"{side}_ffn_embed_dim"] += hidden
        return sizes


def _flags(family: type[ConfiguredModel], arch: str, wanted: dict[str, Any]) -> list[str]:
    """Flags that give an architecture these values of its options; those that it has already are left out."""
    options = {name: wanted[name] for name in family.options()._get_all_attributes() if name in wanted}
    given: dict[str, Any] = {}
    for _ in range(2):  # what an option is by default may depend on others
        given |= {name: value for name, value in _other(arch, given, options).items() if value is not None}
    for name in _other(arch, given, options):
        raise ValueError(f"{flag(name)}: {arch} has it by default, and no option turns it off")
    return [flag(name) if value is True else f"{flag(name)}={value}" for name, value in given.items()]


def _other(arch: str, given: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The wanted values that an architecture does not have with these options; None for what must not be set."""
    args = Namespace(**given)
    ARCH_CONFIG_REGISTRY[arch](args)
    values = {name: None if value is False else value for name, value in wanted.items()}
    has = {name: None if getattr(args, name) is False else getattr(args, name) for name in values}
    return {name: value for name, value in values.items() if value != has[name]}
