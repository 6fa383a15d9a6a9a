"""timm's own tests of models, on ours; `make test-timm` runs them on all."""

import re
import subprocess

import pytest

from tests.support import cli
from tests.support.vision import is_pyramid

suite = pytest.importorskip("tests.support.timm_suite")

# One of each kind, the small ones: OWF and the plain ViT are UiT in another order of blocks.
SMALL = ["ringformer_vit_small", "uit_small", "recursive_deit_tiny", "recursive_mixer_s16", "sret_ext"]
LONG = "prune_intermediate_layers"  # which builds a model for each of its passes
PRUNED = ("ringformer_vit_small", "sret_ext")
# How many of timm's tests take every model: those of a map, and those of tokens.
TESTS = {True: 11, False: 10}


@pytest.mark.slow
def test_timms_own_tests_of_the_small_models():
    try:
        suite.fetch()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"timm's source distribution: {error}")
    models = ("--models", ",".join(SMALL), "-k", f"not {LONG} or {' or '.join(PRUNED)}")
    output = cli.python("-m", "tests.support.timm_suite", *models, "-W", "ignore", fresh=True)
    passed, rest = re.search(r"^(\d+) passed(.*) in ", output, flags=re.MULTILINE).groups()
    assert int(passed) == sum(TESTS[is_pyramid(name)] - (name not in PRUNED) for name in SMALL)
    assert re.fullmatch(r", \d+ deselected", rest)
