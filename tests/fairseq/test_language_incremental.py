"""Reading a prompt and going on token by token, with reordering, by fairseq's own search: as the whole forward pass."""

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from tests.fairseq.test_incremental import expect_equal
from tests.support import language, models

EXACT = dict(rtol=0, atol=1e-9)
LONG = 40  # more than the cache has room for at first


@torch.no_grad()
def read_in_steps(model: nn.Module, tokens: Tensor, steps: list[int]) -> Tensor:
    """What the model gives for all tokens, read in steps that end at these lengths."""
    state: dict = {}
    parts = [model.decoder(tokens[:, :end], incremental_state=state)[0] for end in steps]
    assert [part.size(1) for part in parts] == [end - start for start, end in zip([0, *steps], steps)]
    return torch.cat(parts, dim=1)


PROMPTS = {"token by token": 1, "a prompt of 7": 7, "a prompt of 35": 35}


@language.every_variant
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("left_pad", [False, True], ids=["no padding", "padding left"])
def test_every_step_equals_the_full_forward(arch, flags, prompt, left_pad):
    model = language.tiny(arch, *flags)
    tokens = language.texts((LONG, 33, 36) if left_pad else (LONG, LONG, LONG), left_pad)
    keep = language.kept(tokens)
    found = read_in_steps(model, tokens, [prompt, *range(prompt + 1, LONG + 1)])
    torch.testing.assert_close(found[keep], model(tokens)[0][keep], **EXACT)


@language.every_variant
def test_a_second_prompt_after_the_first(arch, flags):
    model, tokens = language.tiny(arch, *flags), language.texts((LONG, 35), left_pad=True)
    keep = language.kept(tokens)
    torch.testing.assert_close(
        read_in_steps(model, tokens, [9, 20, 21, 38, LONG])[keep], model(tokens)[0][keep], **EXACT
    )


@language.every_arch
def test_tokens_that_have_been_read_are_refused(arch):
    model, tokens, state = language.tiny(arch), language.texts((5,)), {}
    with torch.no_grad():
        model.decoder(tokens, incremental_state=state)
        with pytest.raises(ValueError, match="5 tokens: must be > the 5 that the incremental state has seen"):
            model.decoder(tokens, incremental_state=state)


@language.every_variant
@torch.no_grad()
def test_reordering_while_the_batch_shrinks(arch, flags):
    """Prompts of four lengths, beams of 3: after each step every beam goes on from any of its text; texts end."""
    model, beam = language.tiny(arch, *flags), 3
    tokens = language.texts((5, 3, 6, 2), left_pad=True).repeat_interleave(beam, dim=0)
    chance, of_row, state = torch.Generator().manual_seed(0), torch.arange(4).repeat_interleave(beam), {}
    for t in range(36):
        got, expected = model.decoder(tokens, incremental_state=state)[0][:, -1], model.decoder(tokens)[0][:, -1]
        torch.testing.assert_close(got, expected, **EXACT)
        ends = {4: 2, 9: 0, 20: 3}.get(t)  # the text that ends after this step
        new_order = torch.tensor(
            [
                first + torch.randint(beam, (1,), generator=chance).item()
                for first in range(0, len(of_row), beam)
                if of_row[first] != ends
                for _ in range(beam)
            ]
        )
        model.decoder.reorder_incremental_state_scripting(state, new_order)
        of_row = of_row[new_order]
        words = torch.randint(4, language.SYMBOLS, (len(new_order), 1), generator=chance)
        tokens = torch.cat([tokens[new_order], words], dim=1)
    assert of_row.tolist() == [1] * beam


# fairseq's own search


def search(model: nn.Module, incremental: bool = True, **options) -> SequenceGenerator:
    """A search; without `incremental` each step runs the whole text through the model."""
    made = SequenceGenerator([model], models.dictionary(language.SYMBOLS), **{"max_len_b": 14, **options})
    made.model.has_incremental = incremental
    return made


def go_on(made: SequenceGenerator, prompts: Tensor) -> list[list[dict]]:
    """All continuations of each prompt, best first, as the task asks the search for them."""
    lengths = language.kept(prompts).sum(1)
    return language.task().inference_step(
        made, [], {"net_input": {"src_tokens": prompts, "src_lengths": lengths}}, prefix_tokens=prompts
    )


def prompts() -> Tensor:
    """Beginnings of texts, without the end-of-sentence symbol."""
    return models.collate([row[:-1] for row in models.sentences((4, 2, 6, 3), language.SYMBOLS, seed=5)])


@language.every_variant
def test_beam_search(arch, flags):
    model = language.tiny(arch, *flags)
    with models.poisoned_memory():
        found = go_on(search(model, beam_size=3), prompts())
    expect_equal(found, go_on(search(model, incremental=False, beam_size=3), prompts()))
    for continuations, prompt in zip(found, prompts()):
        given = prompt[language.kept(prompt)].tolist()
        assert len({tuple(one["tokens"].tolist()) for one in continuations}) == 3
        assert all(one["tokens"][: len(given)].tolist() == given for one in continuations)
        for one in continuations:
            expect_scores_of_the_full_forward(model, one)


@torch.no_grad()
def expect_scores_of_the_full_forward(model: nn.Module, found: dict) -> None:
    tokens = found["tokens"]
    before = torch.cat([tokens.new_tensor([models.dictionary(language.SYMBOLS).eos()]), tokens[:-1]])
    scores = language.log_probabilities(model, before[None])[0].gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(found["positional_scores"].double(), scores, rtol=0, atol=1e-4)
