"""Drafting with the first passes: the tokens and scores of a search at full depth, whatever the search does."""

import re
from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from torch import nn

from tests.support import cli, language, models
from tests.support.searching import (
    ALONG_THE_TEXT,
    OVER_DEPTH,
    continue_prompts,
    expect_equal,
    looped,
    prompts,
    search,
    sources,
    translate,
    varied_model,
)

DRAFTS = {"as few as possible": (1, 1), "all passes but one": (3, 7)}
every_draft = pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)


def drafting(model: nn.Module, passes: int = 2, tokens: int = 4) -> nn.Module:
    """The model, which drafts from now on."""
    model.set_decoding(Namespace(draft_passes=passes, draft_tokens=tokens))
    return model


@models.every_model_with_encoder
@every_draft
def test_greedy_translation(arch, draft):
    model, (_, source) = varied_model(arch), sources(arch)
    expected = translate(search(model, beam_size=1), source)
    expect_equal(translate(search(drafting(model, *draft), beam_size=1), source), expected)
    tally = model.decoder.drafting
    assert tally.given == max(len(sentence[0]["tokens"]) for sentence in expected) >= tally.checks


@pytest.mark.parametrize(("arch", "flags"), OVER_DEPTH)
@every_draft
def test_greedy_continuation(arch, flags, draft):
    model = looped(arch, *flags)
    expected = continue_prompts(search(model, beam_size=1, max_len_b=14), prompts())
    expect_equal(continue_prompts(search(drafting(model, *draft), beam_size=1, max_len_b=14), prompts()), expected)


@pytest.mark.parametrize(("arch", "flags"), ALONG_THE_TEXT)
def test_recurrence_along_the_text_is_rejected(arch, flags):
    with pytest.raises(ValueError, match="draft_passes=1: not available for KausikRecurrence"):
        drafting(models.tiny(arch, *flags), 1)


@torch.no_grad()
def test_correct_guesses_are_all_accepted():
    """Where the last passes change nothing, every full run gives as many tokens as it can."""
    model = models.tiny("takase_vanilla", "--decoder-normalize-before")
    for block in model.decoder.loop.blocks[1:]:  # of passes 0 0 1 1
        for layer in (block.self_attn.out, block.cross_attn.out, block.ffn.down):
            layer.weight.zero_()
            layer.bias.zero_()
    _, source = sources("takase_vanilla")
    expected = translate(search(model, beam_size=1), source)
    assert {len(sentence[0]["tokens"]) for sentence in expected} == {13}
    expect_equal(translate(search(drafting(model, 2, 4), beam_size=1), source), expected)
    tally = model.decoder.drafting
    assert (tally.given, tally.checks) == (13, 3)  # 5, 5 and 3


def sampled(model: nn.Module, source: tuple) -> list:
    """Translations drawn from the model's own distribution, always by the same chance."""
    strategy = Sampling(models.dictionary(models.TARGET_SYMBOLS), sampling_topp=0.9)
    torch.manual_seed(3)
    return translate(search(model, beam_size=1, max_len_b=20, temperature=0.7, search_strategy=strategy), source)


@models.every_model_with_encoder
def test_sampling_draws_the_same_tokens(arch):
    model, (_, source) = varied_model(arch), sources(arch)
    expected = sampled(model, source)
    expect_equal(sampled(drafting(model), source), expected)


def test_forced_words_penalties_ngrams_and_ensembles():
    """As with every step of the complete prefix, at full depth."""
    pair, (_, source) = [varied_model("cycle"), varied_model("cycle", seed=2)], sources("cycle")
    prefix = models.collate([row[:-1] for row in models.sentences((4, 2, 3, 4), models.TARGET_SYMBOLS, seed=5)])
    rules = dict(beam_size=1, min_len=5, unk_penalty=2.0, no_repeat_ngram_size=2)
    expected = translate(search(*pair, incremental=False, **rules), source, prefix)
    expect_equal(translate(search(*pair, **rules), source, prefix), expected)
    drafting(pair[0], 1, 5)
    drafting(pair[1], 3, 2)
    expect_equal(translate(search(*pair, **rules), source, prefix), expected)


def test_alignments():
    model, (_, source) = varied_model("cycle"), sources("cycle")
    model.make_generation_fast_(need_attn=True)
    sample = {"net_input": dict(zip(("src_tokens", "src_lengths"), source))}

    def attention() -> list:
        made = SequenceGeneratorWithAlignment(
            [model], models.dictionary(models.TARGET_SYMBOLS), print_alignment="soft", beam_size=1, max_len_b=12
        )
        return [sentence[0]["attention"] for sentence in made.generate([], sample)]

    expected = attention()
    drafting(model)
    torch.testing.assert_close(attention(), expected)


def test_nothing_is_drafted_past_the_longest_text():
    """Learned positions end there."""
    model = drafting(models.tiny("ilr_small", "--position", "learned"), 2, 9)
    tokens, state = language.texts((language.POSITIONS,) * 2), {}
    with torch.no_grad():
        for length in range(1, language.POSITIONS + 1):
            model.decoder(tokens[:, :length], incremental_state=state)


def test_padding_is_never_guessed():
    model = drafting(models.tiny("ilr_small"))
    with torch.no_grad():
        model.decoder.output_projection.weight[1] = 100.0  # the padding's
        state = torch.ones(2, 1, 16, dtype=torch.float64)
        assert model.decoder.output_layer(model.decoder.finish(state)).argmax(-1).tolist() == [[1], [1]]
        assert 1 not in model.decoder.guess(state)


REJECTED = [
    (dict(draft_passes=4), "draft_passes=4: must be >= 1 and < the 4 passes of the decoder"),
    (dict(draft_passes=0), "draft_passes=0: must be >= 1 and < the 4 passes of the decoder"),
    (dict(draft_passes=2, draft_tokens=0), "draft_tokens=0: must be >= 1"),
    (dict(draft_tokens=2), "draft_tokens=2: needs draft_passes"),
    (dict(draft_passes=2, eight_bits=True), "draft_passes=2: does not go with eight_bits"),
]


@pytest.mark.parametrize(("options", "message"), REJECTED, ids=[message.split(":")[0] for _, message in REJECTED])
def test_wrong_options_are_rejected(options, message):
    for model in (models.tiny("universal_tiny"), looped("universal_lm")):
        with pytest.raises(ValueError, match=re.escape(message)):
            model.set_decoding(Namespace(**options))


def test_drafting_rejects_a_beam_above_1():
    for model in (models.tiny("universal_tiny"), looped("universal_lm")):
        drafting(model)
        with pytest.raises(ValueError, match="draft_passes=2: drafts one continuation; needs --beam 1, not 3"):
            SequenceGenerator([model], Dictionary(), beam_size=3)


@pytest.mark.slow
def test_the_commands_and_the_hub(trained, corpus):
    path, flags = trained.folder / "checkpoint_last.pt", ("--beam", "1", "--max-len-b", "15")
    subset = "--gen-subset", "valid"
    expected = cli.hypotheses(cli.generate(corpus.data, path, *flags, *subset))
    drafts = ("--model-overrides", "{'draft_passes': 1, 'draft_tokens': 3}")
    log = cli.generate(corpus.data, path, *flags, *subset, *drafts)
    assert cli.hypotheses(log) == expected
    assert 1 <= float(re.search(r"drafting: (\S+) of at most 4 tokens a check on average", log)[1]) <= 4
    assert "draft_passes=2: must be >= 1 and < the 2 passes" in cli.generate(
        corpus.data, path, *flags, "--model-overrides", "{'draft_passes': 2}", fails=True
    )
    lines = corpus.text.with_name(f"{corpus.text.name}.valid.en").read_text().splitlines()[:11]
    typed = cli.interactive(corpus.data, path, lines, *flags, *drafts)
    assert cli.hypotheses(typed) == {number: expected[number] for number in range(11)}
    hub = TransformerModel.from_pretrained(
        str(trained.folder), "checkpoint_last.pt", str(corpus.data), draft_passes=1, draft_tokens=3
    )
    assert hub.models[0].decoder.drafting.tokens == 3
    assert hub.translate(lines, beam=1, max_len_b=15) == [expected[number][0] for number in range(11)]
