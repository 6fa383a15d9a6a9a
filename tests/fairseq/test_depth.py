"""fairseq models at another depth than the trained one: the output, the log, and what is rejected."""

import re

import pytest
import torch

from recurrence.depth import source_passes
from recurrence.loop import Loop, named_loops
from tests.support import language, models
from tests.support.stacks import depth_log

UNSHARED = ("vanilla", "one_wide_ffn", "takase_vanilla", "s2t_vanilla")
DEEPER = {"ilr_small": "--reuse-map 3,1,2", "ilr_large": "--reuse-map 1,1,1"}
DEEPER |= {arch: "--decoder-layers 6" for arch in language.ARCHS if arch.startswith(("cycle", "sequence", "uni"))}
for arch in models.WITH_ENCODER:
    of_decoder = "6 --block-loops 3" if arch.startswith("recursive") else "8"
    DEEPER[arch] = f"--encoder-layers 6 --decoder-layers {of_decoder}"


@pytest.mark.parametrize("arch", [arch for arch in DEEPER if arch in (*models.REPRESENTS, *language.ARCHS)])
def test_every_model_runs_at_another_depth(arch, caplog):
    trained, used = models.tiny(arch), models.tiny(arch, *DEEPER[arch].split(), seed=1)
    weights, batch = trained.state_dict(), models.inputs(arch)
    if arch.startswith(UNSHARED):
        with pytest.raises(RuntimeError, match=r"encoder.loop: the checkpoint stores \d blocks, this depth runs \d"):
            used.load_state_dict(weights)
        return
    used.load_state_dict(weights)
    loops = {name: (trained.get_submodule(name), loop) for name, loop in named_loops(used).items()}
    assert [re.sub(r" \(.*?\)", "", line) for line in depth_log(caplog)] == [
        f"{name}: runs at depth {loop.passes}, trained at {stored.passes}" for name, (stored, loop) in loops.items()
    ]
    for name, (stored, loop) in loops.items():  # by hand, what the rule gives each pass
        own = stored.own and [stored.own[source] for source in source_passes(stored.order, loop.order)]
        trained.set_submodule(name, Loop(stored.blocks, loop.order, own, inject=loop.inject).eval())
    torch.testing.assert_close(used(*batch)[0], trained(*batch)[0], rtol=0, atol=0)
    caplog.clear()
    models.tiny(arch, seed=1).load_state_dict(weights)
    assert not caplog.records
