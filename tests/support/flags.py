"""An architecture's flags, as fairseq's command line reads them."""

import argparse
import functools

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_plugin.modules.elastic import OPTIONS as DEPTH_OPTIONS


@functools.cache
def parser(arch: str) -> argparse.ArgumentParser:
    """A command line of the model's options alone."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, add_help=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return parser


def options(arch: str, *flags: str) -> argparse.Namespace:
    """What fairseq's command line hands to `build_model`: the flags, and the preset where no flag was given."""
    args = parser(arch).parse_args(list(flags))
    args._name = arch
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def option_names(arch: str) -> set[str]:
    """Its options but those of its depth in training, which test_elastic.py has."""
    return {action.dest for action in parser(arch)._actions} - set(DEPTH_OPTIONS)
