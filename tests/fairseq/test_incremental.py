"""Decoding step by step, with reordering, by fairseq's own beam search: always what the whole forward pass gives."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from tests.support import models, speech

EXACT = dict(rtol=0, atol=1e-9)
PADDING = {"source right": False, "source left": True}
either_side = pytest.mark.parametrize("left_pad", PADDING.values(), ids=PADDING)


@torch.no_grad()
def steps(model: nn.Module, encoder_out: dict, target: Tensor) -> Tensor:
    """Logits of all positions, one at a time: (B, T, vocabulary)."""
    state: dict = {}
    logits = [model.decoder(target[:, : t + 1], encoder_out, state)[0] for t in range(target.size(1))]
    assert all(step.size(1) == 1 for step in logits)
    return torch.cat(logits, dim=1)


@models.every_case
@either_side
def test_every_step_equals_the_full_forward(arch, flags, left_pad):
    model = models.tiny(arch, *flags)
    source, lengths, target = models.inputs(arch, target_lengths=(40, 40, 40), left_pad=left_pad)
    expected, _ = model(source, lengths, target)
    torch.testing.assert_close(steps(model, model.encoder(source, lengths), target), expected, **EXACT)


@models.every_arch
def test_learned_positions_step_by_step(arch):
    if models.has_static_levels(arch):
        with pytest.raises(ValueError, match="--encoder-learned-pos: does not go with level signals"):
            models.tiny(arch, "--encoder-learned-pos", "--decoder-learned-pos")
        return
    model = models.tiny(arch, "--encoder-learned-pos", "--decoder-learned-pos")
    source, lengths, target = models.inputs(arch, target_lengths=(7, 7, 7))
    expected, _ = model(source, lengths, target)
    torch.testing.assert_close(steps(model, model.encoder(source, lengths), target), expected, **EXACT)


@models.every_case
@either_side
@torch.no_grad()
def test_reordering_within_sentences_while_the_batch_shrinks(arch, flags, left_pad):
    """Beams of 3 on 4 sentences: after each step every beam goes on from any beam of its sentence; sentences end."""
    model, beam = models.tiny(arch, *flags), 3
    source, lengths, _ = models.inputs(arch, source_lengths=(5, 3, 6, 2), left_pad=left_pad)
    chance = torch.Generator().manual_seed(0)
    of_row = torch.arange(4).repeat_interleave(beam)
    encoder_out = model.encoder.reorder_encoder_out(model.encoder(source, lengths), of_row)
    state: dict = {}
    target = torch.full((len(of_row), 1), model.decoder.dictionary.eos())
    for t in range(36):
        got, _ = model.decoder(target, encoder_out, state)
        expected, _ = model.decoder(target, encoder_out)
        torch.testing.assert_close(got[:, 0], expected[:, -1], **EXACT)
        ends = {4: 2, 9: 0, 20: 3}.get(t)  # the sentence that ends after this step
        new_order = torch.tensor(
            [
                first + torch.randint(beam, (1,), generator=chance).item()
                for first in range(0, len(of_row), beam)
                if of_row[first] != ends
                for _ in range(beam)
            ]
        )
        model.decoder.reorder_incremental_state_scripting(state, new_order)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, new_order)
        of_row = of_row[new_order]
        words = torch.randint(4, models.TARGET_SYMBOLS, (len(new_order), 1), generator=chance)
        target = torch.cat([target[new_order], words], dim=1)
    assert of_row.tolist() == [1] * beam


@models.every_model
@torch.no_grad()
def test_attention_weights_of_every_step(arch):
    model = models.tiny(arch)
    model.make_generation_fast_(need_attn=True)
    source, lengths, target = models.inputs(arch, target_lengths=(5, 5, 5))
    encoder_out, state = model.encoder(source, lengths), {}
    whole = model.decoder(target, encoder_out)[1]["attn"][0]
    assert whole.shape == (3, 5, 6)
    torch.testing.assert_close(whole.sum(-1), torch.ones(3, 5, dtype=whole.dtype), **EXACT)
    padding = encoder_out["encoder_padding_mask"][0]
    assert not whole.transpose(1, 2)[padding].any()
    for t in range(5):
        step = model.decoder(target[:, : t + 1], encoder_out, state)[1]["attn"][0]
        torch.testing.assert_close(step[:, 0], whole[:, t], **EXACT)


# fairseq's own beam search


@torch.no_grad()
def talkative(arch: str, seed: int = 0) -> nn.Module:
    """A tiny model whose output layer reads what differs between contexts, and above all whether to end.

    Any random output layer would say one symbol for ever, and beams would neither split and cross nor end.
    """
    model = models.tiny(arch, seed=seed)
    source, lengths, target = models.inputs(arch, (5, 3, 6) * 4, (12,) * 12)
    features = model.decoder(target, model.encoder(source, lengths), features_only=True)[0].flatten(0, 1)
    mean = features.mean(0)
    without_mean = torch.eye(len(mean), dtype=mean.dtype) - torch.outer(mean, mean) / mean.dot(mean)
    _, scales, directions = torch.linalg.svd(features @ without_mean, full_matrices=False)
    keep = scales > 1e-3 * scales[0]
    whiten = directions[keep] / scales[keep, None] * len(features) ** 0.5
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(models.TARGET_SYMBOLS, len(whiten), generator=generator, dtype=mean.dtype)
    weight[model.decoder.dictionary.eos()] *= 2
    model.decoder.output_projection.weight.copy_(weight @ whiten @ without_mean)
    return model


def generator(*ensemble: nn.Module, incremental: bool = True, beam: int = 4) -> SequenceGenerator:
    """A beam search; without `incremental` each step runs the whole prefix through the model."""
    search = SequenceGenerator(list(ensemble), models.dictionary(models.TARGET_SYMBOLS), beam_size=beam, max_len_b=12)
    search.model.has_incremental = incremental
    return search


def translate(
    search: SequenceGenerator, source: tuple[Tensor, Tensor], prefix: Tensor | None = None
) -> list[list[dict]]:
    """All hypotheses of each sentence, best first."""
    batch = dict(zip(("src_tokens", "src_lengths"), source))
    return search.generate([], {"net_input": batch}, prefix_tokens=prefix)


def expect_equal(got: list[list[dict]], expected: list[list[dict]]) -> None:
    """Tokens are equal, scores nearly so: the search adds them up in float32."""
    for found, wanted in zip(got, expected):
        assert [h["tokens"].tolist() for h in found] == [h["tokens"].tolist() for h in wanted]
        scores = [[h["positional_scores"] for h in sentence] for sentence in (found, wanted)]
        torch.testing.assert_close(*scores, rtol=0, atol=1e-4)
    assert len(got) == len(expected)


def sources(arch: str, left_pad: bool = True) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    rows = models.source(arch, (5, 2, 7, 4), seed=3)
    return rows, models.collate_source(arch, rows, left_pad)


@models.every_model
@either_side
def test_beam_search(arch, left_pad):
    model = talkative(arch)
    rows, source = sources(arch, left_pad)
    with models.poisoned_memory():
        found = translate(generator(model), source)
    assert all(len(sentence) == 4 for sentence in found)
    assert len({len(hypothesis["tokens"]) for sentence in found for hypothesis in sentence}) > 2
    expect_equal(found, translate(generator(model, incremental=False), source))
    for sentence, row in zip(found, rows):
        for hypothesis in sentence:
            expect_scores_of_the_full_forward(model, models.collate_source(arch, [row]), hypothesis)
    expect_equal(found, [translate(generator(model), models.collate_source(arch, [row]))[0] for row in rows])


@torch.no_grad()
def expect_scores_of_the_full_forward(model: nn.Module, source: tuple[Tensor, Tensor], hypothesis: dict) -> None:
    tokens = hypothesis["tokens"]
    logits, _ = model(*source, models.collate([tokens], target=True))
    scores = logits[0].log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(hypothesis["positional_scores"].double(), scores, rtol=0, atol=1e-4)


@models.every_model
def test_prefix_tokens(arch):
    model, (_, source) = talkative(arch), sources(arch)
    prefix = models.collate([row[:-1] for row in models.sentences((4, 2, 3, 4), models.TARGET_SYMBOLS, seed=5)])
    found = translate(generator(model), source, prefix)
    expect_equal(found, translate(generator(model, incremental=False), source, prefix))
    for sentence, forced in zip(found, prefix):
        forced = forced[forced.ne(model.decoder.dictionary.pad())].tolist()
        assert all(hypothesis["tokens"][: len(forced)].tolist() == forced for hypothesis in sentence)


@models.every_model
def test_ensemble_with_another_architecture(arch):
    peers, step = (speech.ARCHS, 1) if arch in speech.ARCHS else (models.ARCHS, 5)
    other = peers[peers.index(arch) - step]
    assert other != arch
    pair, (_, source) = [talkative(arch), talkative(other, seed=2)], sources(arch)
    found = translate(generator(*pair), source)
    expect_equal(found, translate(generator(*pair, incremental=False), source))
    assert best(found) != best(translate(generator(pair[0]), source))


def best(found: list[list[dict]]) -> list[list[int]]:
    return [sentence[0]["tokens"].tolist() for sentence in found]
