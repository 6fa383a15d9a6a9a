"""A pass is little more than the calls of torch's modules: limits on Python calls, and on files that a tensor meets.

For comparison, with `tests.support.calls`: a training forward of fairseq's `transformer` takes 158 calls and a decoding
step 204, a training forward of timm's `vit_small_patch16_224` 68.
"""

import sys

import pytest

from tests.support import calls

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="a comprehension is a call of its own")
FORWARD = {"ringformer_base": 300, "cycle": 500, "ilr_small": 160, "ringformer_vit_small": 160, "sret_t": 600}
STEP = {"ringformer_base": 160, "cycle": 280}
FILES = {"ringformer_base": 9, "sret_t": 9}


@pytest.mark.parametrize("model", FORWARD)
def test_calls_and_files_of_a_training_forward(model):
    found = calls.forward(model)
    assert found.number <= FORWARD[model]
    assert len(found.files) <= FILES.get(model, len(found.files)), sorted(found.files)


@pytest.mark.parametrize("model", STEP)
def test_calls_of_a_decoding_step(model):
    assert calls.decoding_step(model) <= STEP[model]
