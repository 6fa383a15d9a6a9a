"""Every kind of positions in every model: token by token, with padding, and where it cannot be."""

import pytest
import torch

from fairseq_plugin.export.unshare import unshared
from recurrence.position import POSITIONS
from tests.fairseq.test_incremental import SIDES, check_steps
from tests.support import language, models, speech

IN_ATTENTION = ("relative", "rotary", "alibi")
OLDER = ("--encoder-learned-pos", "--decoder-learned-pos", "--no-token-positional-embeddings")


def possible(arch: str, position: str) -> bool:
    """Whether the architecture can have these positions."""
    if position in ("sinusoidal", "learned") and arch not in language.ARCHS and models.has_static_levels(arch):
        return False
    if position in IN_ATTENTION and arch == "recurrent_lm":
        return False
    return not (position == "learned" and arch in speech.ARCHS)


@models.every_model
@pytest.mark.parametrize("position", POSITIONS)
def test_tokens_read_step_by_step_with_padding_on_either_side(arch, position):
    if not possible(arch, position):
        with pytest.raises(ValueError, match=f"--position={position}: "):
            models.tiny(arch, "--position", position)
        return
    for left_pad in SIDES if arch not in speech.ARCHS else [False]:
        check_steps(arch, ["--position", position], left_pad, 9)


def same(arch: str, older: tuple[str, ...], newer: tuple[str, ...]) -> bool:
    """Whether these flags give models with the same parameters and outputs."""
    one, other, inputs = models.tiny(arch, *older), models.tiny(arch, *newer, seed=1), models.inputs(arch)
    other.load_state_dict(one.state_dict())
    return torch.equal(one(*inputs)[0], other(*inputs)[0])


@models.every_translation_model
def test_older_options_still_work_and_may_repeat_the_new_one(arch):
    if models.has_static_levels(arch):
        return
    assert same(arch, OLDER[:2], ("--position", "learned"))
    assert same(arch, (OLDER[0], "--position", "learned"), ("--position", "learned"))
    assert same(arch, OLDER[2:], ("--position", "none"))
    assert same(arch, (), ("--position", "sinusoidal"))


def test_rope_is_an_older_word_for_rotary():
    assert same("ilr_small", ("--position", "rope"), ("--position", "rotary"))


@pytest.mark.parametrize("arch", ["universal_small", "s2t_cycle", "cycle_lm"])
@pytest.mark.parametrize("position", IN_ATTENTION)
def test_fairseqs_own_classes_cannot_have_them(arch, position):
    model, args = models.tiny(arch, "--position", position), models.saved_options(arch, "--position", position)
    with pytest.raises(ValueError, match=f"--arch {arch}: cannot become fairseq's own: --position={position}: acts in"):
        unshared(model, args)


def test_a_checkpoint_from_before_the_option_loads():
    args = models.saved_options("universal_small")
    del args.position
    model = models.task().build_model(args)
    assert model.encoder.inputs.table is not None
