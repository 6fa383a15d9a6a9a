"""Incremental decoding, with reordering and fairseq's own beam search, equals the full forward pass."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer

from fairseq_plugin.decoder import Contexts
from fairseq_repairs import decoding
from tests.support import language, models, speech
from tests.support.searching import (
    continue_prompts,
    expect_equal,
    expect_scores_of_the_full_forward,
    prompts,
    search,
    sources,
    translate,
    varied_model,
)

EXACT = dict(rtol=0, atol=1e-9)
LONG = 40  # more than the cache has room for at first
SIDES = {False: "padding right", True: "padding left"}
PADDED = {
    f"{arch}-{name}-{SIDES[left]}": (arch, models.CASES[arch, name], left)
    for arch, name in models.STRUCTURES
    for left in SIDES
    if not (left and arch in speech.ARCHS)  # speech is padded on the right
}
every_padded_case = pytest.mark.parametrize(("arch", "flags", "left_pad"), PADDED.values(), ids=PADDED)


def check_steps(arch: str, flags: list[str], left_pad: bool, longest: int) -> None:
    """Asserts that what is read token by token equals the full forward pass."""
    model = models.tiny(arch, *flags)
    shorter = (longest - 7, longest - 4) if left_pad and arch in language.ARCHS else (longest,) * 2
    inputs = models.inputs(arch, target_lengths=(longest, *shorter), left_pad=left_pad)
    keep = models.is_token(inputs[-1])
    found = models.read_in_steps(model, inputs)
    torch.testing.assert_close(found[keep], model(*inputs)[0][keep], **EXACT)


@every_padded_case
def test_every_step_equals_the_full_forward(arch, flags, left_pad):
    check_steps(arch, flags, left_pad, LONG)


PROMPTS = {"one of 7": [7], "one of 35": [35], "several": [9, 20, 21, 38]}


@models.every_language_case
def test_prompts_are_read_at_once(arch, flags):
    """Without padding and with padding on the left."""
    model = models.tiny(arch, *flags)
    for left_pad in (False, True):
        tokens = language.texts((LONG, 33, 36) if left_pad else (LONG,) * 3, left_pad)
        keep, expected = models.is_token(tokens), model(tokens)[0]
        for name, prompt in PROMPTS.items():
            found = models.read_in_steps(model, (tokens,), [*prompt, *range(prompt[-1] + 1, LONG + 1)])
            torch.testing.assert_close(found[keep], expected[keep], **EXACT, msg=f"{name}, {left_pad=}")


@models.every_language_model
def test_tokens_that_have_been_read_are_rejected(arch):
    model, tokens, state = models.tiny(arch), language.texts((5,)), {}
    with torch.no_grad():
        model.decoder(tokens, incremental_state=state)
        with pytest.raises(ValueError, match="5 tokens: must be > the 5 that the incremental state has seen"):
            model.decoder(tokens, incremental_state=state)


ENDS = {4: 2, 9: 0, 20: 3, 35: None}  # after this step this row ends


@every_padded_case
@torch.no_grad()
def test_reordering_within_rows_while_the_batch_shrinks(arch, flags, left_pad):
    """Beams of 3 on 4 rows: after a step, every beam continues from any beam of its row, with its tokens and logits."""
    model, beam = models.tiny(arch, *flags), 3
    writes = arch in language.ARCHS  # begins with prompts, which have lengths of their own where they are padded left
    inputs = models.inputs(arch, (5, 3, 6, 2), (5, 3, 6, 2) if left_pad and writes else (5,) * 4, left_pad=left_pad)
    of_row, chance, state = torch.arange(4).repeat_interleave(beam), torch.Generator().manual_seed(0), {}
    memory = model.encoder.reorder_encoder_out(models.encoded(model, inputs), of_row) if not writes else None
    tokens = (inputs[-1] if writes else inputs[-1][:, :1])[of_row]
    seen = model.decoder(tokens, memory)[0][:, :0]
    for t in range(36):
        seen = torch.cat([seen, model.decoder(tokens, memory, state)[0]], dim=1)
        if t in ENDS:
            keep = models.is_token(tokens)
            torch.testing.assert_close(seen[keep], model.decoder(tokens, memory)[0][keep], **EXACT)
        going = [first for first in range(0, len(of_row), beam) if of_row[first] != ENDS.get(t)]
        new_order = torch.tensor(
            [first + torch.randint(beam, (1,), generator=chance).item() for first in going for _ in range(beam)]
        )
        model.decoder.reorder_incremental_state_scripting(state, new_order)
        memory = model.encoder.reorder_encoder_out(memory, new_order) if not writes else None
        of_row, seen = of_row[new_order], seen[new_order]
        words = torch.randint(4, models.TARGET_SYMBOLS, (len(new_order), 1), generator=chance)
        tokens = torch.cat([tokens[new_order], words], dim=1)
    assert of_row.tolist() == [1] * beam


def test_projections_of_the_memory_are_copied_only_where_sentences_move():
    memory = torch.tensor([1, 1, 2, 2, 3, 3])[:, None, None] * torch.tensor([[1.0, 0]])  # sentences share a number
    contexts = Contexts([3 * memory] * 2, memory)
    expected = contexts.tensors[0]
    # Beams change places; a sentence ends; again; another sentence takes the places of one.
    orders = ([1, 0, 2, 2, 5, 4], False), ([0, 1, 4, 5], True), ([1, 1, 3, 2], False), ([2, 3, 3, 2], True)
    for order, moves in orders:
        before = contexts.tensors[0]
        expected = expected[order]
        contexts.reorder(torch.tensor(order))
        assert contexts.tensors[0] is contexts.tensors[1]
        assert torch.equal(contexts.tensors[0], expected)
        assert (contexts.tensors[0] is before) != moves


def test_states_of_every_pass_are_reordered_with_the_output():
    model, (source, lengths, _) = models.tiny("universal"), models.batch()
    whole = model.encoder(source, lengths, return_all_hiddens=True)
    found = model.encoder.reorder_encoder_out(whole, torch.tensor([2, 0]))
    assert len(found["encoder_states"]) == 4
    assert torch.equal(found["encoder_states"][-1], found["encoder_out"][0])


@models.every_model_with_encoder
@torch.no_grad()
def test_attention_weights_of_every_step(arch):
    model = models.tiny(arch)
    source, lengths, target = models.inputs(arch, target_lengths=(5, 5, 5))
    encoder_out, state = model.encoder(source, lengths), {}
    assert model.train().decoder(target, encoder_out)[1]["attn"] == [None]  # training computes none
    model.eval().make_generation_fast_(need_attn=True)
    whole = model.decoder(target, encoder_out)[1]["attn"][0]
    assert whole.shape == (3, 5, 6)
    torch.testing.assert_close(whole.sum(-1), torch.ones(3, 5, dtype=whole.dtype), **EXACT)
    padding = encoder_out["encoder_padding_mask"][0]
    assert not whole.transpose(1, 2)[padding].any()
    for t in range(5):
        step = model.decoder(target[:, : t + 1], encoder_out, state)[1]["attn"][0]
        torch.testing.assert_close(step[:, 0], whole[:, t], **EXACT)


@models.every_model_with_encoder
@pytest.mark.parametrize("left_pad", SIDES, ids=SIDES.values())
def test_beam_search(arch, left_pad):
    model, kind = varied_model(arch), models.modality_of(arch)
    rows, source = sources(arch, left_pad)
    with models.poisoned_memory():
        found = translate(search(model), source)
    assert all(len(sentence) == 4 for sentence in found)
    assert len({len(hypothesis["tokens"]) for sentence in found for hypothesis in sentence}) > 1
    expect_equal(found, translate(search(model, incremental=False), source))
    for sentence, row in zip(found, rows):
        for hypothesis in sentence:
            expect_scores_of_the_full_forward(model, hypothesis, *kind.collate_source([row]))
    expect_equal(found, [translate(search(model), kind.collate_source([row]))[0] for row in rows])


@models.every_language_case
def test_beam_search_goes_on_from_prompts(arch, flags):
    model = models.tiny(arch, *flags)
    with models.poisoned_memory():
        found = continue_prompts(search(model, beam_size=3, max_len_b=14), prompts())
    expect_equal(found, continue_prompts(search(model, incremental=False, beam_size=3, max_len_b=14), prompts()))
    for continuations, prompt in zip(found, prompts()):
        given = prompt[models.is_token(prompt)].tolist()
        assert len({tuple(one["tokens"].tolist()) for one in continuations}) == 3
        assert all(one["tokens"][: len(given)].tolist() == given for one in continuations)
        for one in continuations:
            expect_scores_of_the_full_forward(model, one)


@pytest.mark.parametrize("of_bands", [True, False])
def test_the_temperature_acts_on_probabilities(of_bands):
    """Also on those of an adaptive softmax."""
    name = "cycle_lm" if of_bands else "ilr_small"
    model = models.tiny(name)
    assert (model.decoder.adaptive_softmax is not None) == of_bands
    (tokens,) = models.inputs(name, target_lengths=(7,))
    search = SequenceGenerator([model], model.decoder.dictionary, temperature=0.5)
    decoding.apply_temperature_to_all_bands(search)
    with torch.no_grad():
        found, _ = search.model.forward_decoder(tokens, [], [{}], 0.5)
        expected = (models.log_probabilities(model, tokens)[:, -1] / 0.5).log_softmax(-1)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


def test_scores_of_bands_are_added_up_in_float32():
    model = models.tiny("cycle_lm").half()
    found = continue_prompts(search(model, beam_size=3, max_len_b=14), prompts())
    assert {one["positional_scores"].dtype for beams in found for one in beams} == {torch.float32}


def test_scores_of_bands_in_parts():
    """As of --softmax-batch."""
    model, texts, symbols = models.tiny("cycle_lm"), language.texts((9, 7)), language.task().target_dictionary
    sample = {"net_input": {"src_tokens": texts[:, :-1]}, "target": texts[:, 1:].contiguous()}
    whole, parts = (SequenceScorer(symbols, softmax_batch=rows).generate([model], sample) for rows in (None, 3))
    for one, other in zip(whole, parts):
        torch.testing.assert_close(one[0]["positional_scores"], other[0]["positional_scores"])
