"""An architecture's flags, as fairseq's command line reads them."""

import argparse
import functools

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from recurrence.removed import Removed


@functools.cache
def parser(arch: str) -> argparse.ArgumentParser:
    """A parser with only the model's options."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, add_help=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return parser


def options(arch: str, *flags: str) -> argparse.Namespace:
    """What fairseq's command line passes to `build_model`: the preset, overridden by the flags."""
    args = parser(arch).parse_args(list(flags))
    args._name = arch
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def option_names(arch: str) -> set[str]:
    """The options, without those that were removed or are a criterion's, which only say so."""
    return {action.dest for action in parser(arch)._actions if not isinstance(action, Removed)}
