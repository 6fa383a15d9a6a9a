"""Every flag and argument of earlier versions still exists and has its default, but for what was removed or moved."""

import argparse
import json
from typing import Any

import pytest
from fairseq.criterions import CRITERION_REGISTRY

from tests.support import public
from tests.support.stored import REFERENCE

REMOVED = {"residual_rank", "loop_after_updates", "depth_apart", "terms"}
# Options of fairseq's models that are the criterion's now.
MOVED = {"depth_range", "depth_warmup_updates", "mixed_depth", "pass_loss"}


def earlier() -> dict[str, dict[str, Any]]:
    """The options of each registered name. The file says once what all names of a group share."""
    groups = json.loads((REFERENCE / "options.json").read_text(encoding="utf-8"))
    return {name: group["shared"] | own for group in groups for name, own in group["models"].items()}


EARLIER = earlier()


def as_json(options: dict[str, Any]) -> dict[str, Any]:
    """Options as a file holds them: tuples are lists."""
    return json.loads(json.dumps(options))


@pytest.mark.parametrize("model", [name for name in EARLIER if name not in public.IMAGE_MODELS])
def test_flags_have_their_defaults(model):
    found, before = as_json(public.flags(model)), EARLIER[model]
    gone = {flag for flag in before if flag[2:].replace("-", "_") in REMOVED | MOVED}
    kept = {flag: default for flag, default in before.items() if flag not in gone}
    assert {flag: found[flag] for flag in kept} == kept
    assert not gone & found.keys()


@pytest.mark.parametrize("model", [name for name in EARLIER if name in public.IMAGE_MODELS])
def test_arguments_have_their_defaults(model):
    found, before = as_json(public.arguments(model)), EARLIER[model]
    kept = {name: value for name, value in before.items() if name not in REMOVED}
    assert {name: found[name] for name in kept} == kept
    assert not found.keys() & REMOVED


def test_the_criterion_has_the_options_that_moved():
    parser = argparse.ArgumentParser()
    CRITERION_REGISTRY["elastic_cross_entropy"].add_args(parser)
    assert vars(parser.parse_args([])).keys() >= MOVED
