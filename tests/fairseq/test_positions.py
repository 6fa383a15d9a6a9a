"""Every kind of positions in every model: token by token, with padding, in every search, and where it cannot be."""

from argparse import Namespace

import pytest
import torch

from fairseq_plugin.conversion.unshare import unshared
from recurrence.position import POSITIONS, AttentionPositions
from tests.fairseq.test_incremental import EXACT, SIDES, read_in_steps
from tests.support import language, models, speech
from tests.support.searching import (
    expect_equal,
    expect_scores_of_the_full_forward,
    generator,
    sources,
    translate,
    varied_model,
)

IN_ATTENTION = ("relative", "rotary", "alibi")
OLDER = ("--encoder-learned-pos", "--decoder-learned-pos", "--no-token-positional-embeddings")
every_position = pytest.mark.parametrize("position", POSITIONS)


def possible(arch: str, position: str) -> bool:
    """Whether the architecture can have these positions."""
    if position in ("sinusoidal", "learned") and arch not in language.ARCHS and models.has_static_levels(arch):
        return False
    if position in IN_ATTENTION and arch == "recurrent_lm":
        return False
    return not (position == "learned" and arch in speech.ARCHS)


@models.every_model
@every_position
@torch.no_grad()
def test_tokens_read_step_by_step_with_padding_on_either_side(arch, position):
    if not possible(arch, position):
        with pytest.raises(ValueError, match=f"--position={position}: "):
            models.tiny(arch, "--position", position)
        return
    model = models.tiny(arch, "--position", position)
    for left_pad in SIDES if arch not in speech.ARCHS else [False]:
        lengths = (7, 4, 6) if left_pad and arch in language.ARCHS else (7, 7, 7)
        inputs = models.inputs(arch, target_lengths=lengths, left_pad=left_pad)
        keep, whole = models.is_token(inputs[-1]), model(*inputs)[0]
        torch.testing.assert_close(read_in_steps(model, inputs, list(range(1, 8)))[keep], whole[keep], **EXACT)


@every_position
@pytest.mark.parametrize("left_pad", SIDES, ids=SIDES.values())
def test_beam_search_prefixes_and_drafting(position, left_pad):
    model = varied_model("universal_small", flags=("--position", position))
    rows, source = sources("universal_small", left_pad)
    found = translate(generator(model), source)
    expect_equal(found, translate(generator(model, incremental=False), source))
    for sentence, row in zip(found, rows):
        for hypothesis in sentence:
            kind = models.modality_of("universal_small")
            expect_scores_of_the_full_forward(model, hypothesis, *kind.collate_source([row]))
    prefix = torch.tensor([[5, 9], [7, 1], [1, 1], [8, 8]])
    prefixed = [translate(generator(model, incremental=way), source, prefix) for way in (True, False)]
    expect_equal(*prefixed)
    greedy = translate(generator(model, beam=1), source)
    model.set_decoding(Namespace(draft_passes=2, draft_tokens=3))
    expect_equal(translate(generator(model, beam=1), source), greedy)


@models.every_translation_model
def test_older_options_still_work_and_may_repeat_the_new_one(arch):
    if models.has_static_levels(arch):
        return
    assert same(models.tiny(arch, *OLDER[:2]), models.tiny(arch, "--position", "learned"))
    assert same(models.tiny(arch, OLDER[0], "--position", "learned"), models.tiny(arch, "--position", "learned"))
    assert same(models.tiny(arch, OLDER[2]), models.tiny(arch, "--position", "none"))
    assert same(models.tiny(arch), models.tiny(arch, "--position", "sinusoidal"))


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two models store the same keys and add the same positions to the embedding, none inside attention."""
    added = [[side.inputs.table is None for side in (model.encoder, model.decoder)] for model in (one, other)]
    inside = [type(model.decoder.positions) for model in (one, other)]
    return (
        added[0] == added[1]
        and inside == [AttentionPositions] * 2
        and one.state_dict().keys() == other.state_dict().keys()
    )


def test_rope_is_an_older_word_for_rotary():
    older, newer = (models.tiny("ilr_small", "--position", word) for word in ("rope", "rotary"))
    newer.load_state_dict(older.state_dict())
    assert torch.equal(older(language.texts())[0], newer(language.texts())[0])


@pytest.mark.parametrize("arch", ["universal_small", "s2t_cycle", "cycle_lm"])
@pytest.mark.parametrize("position", IN_ATTENTION)
def test_fairseqs_own_classes_cannot_have_them(arch, position):
    model, args = models.tiny(arch, "--position", position), models.options(arch, "--position", position)
    args.arch = arch
    with pytest.raises(ValueError, match=f"--arch {arch}: cannot become fairseq's own: --position={position}: acts in"):
        unshared(model, args)


def test_a_checkpoint_from_before_the_option_loads():
    args = models.options("universal_small", *models.modality_of("universal_small").tiny_flags("universal_small"))
    del args.position
    model = models.modality_of("universal_small").task().build_model(args)
    assert model.encoder.inputs.table is not None
