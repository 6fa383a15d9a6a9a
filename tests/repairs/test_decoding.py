"""Search: blocked n-grams, and diverse beams."""

import pytest
import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import DiverseBeamSearch
from fairseq.sequence_generator import SequenceGenerator

import fairseq_repairs  # noqa: F401
from tests.support import upstream


class TestNgrams:
    @staticmethod
    def banned(block, tokens: torch.Tensor, step: int) -> list[set[int]]:
        rows = len(tokens)
        lprobs = block(tokens, torch.zeros(rows, 9), bsz=rows, beam_size=1, step=step)
        return [set(row.isneginf().nonzero().flatten().tolist()) for row in lprobs]

    @staticmethod
    def expected(words: list[int], n: int) -> set[int]:
        """Words that would complete an n-gram once more; the opening symbol is no word of a unigram."""
        words = words[1:] if n == 1 else words
        seen = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        return {word for word in range(9) if tuple(words[len(words) - n + 1 :]) + (word,) in seen}

    @pytest.mark.parametrize("n", [1, 2, 3, 4])
    def test_bans_what_would_repeat(self, n):
        block, chance = NGramRepeatBlock(n, use_extension=False), torch.Generator().manual_seed(n)
        some_banned = False
        for step in range(12):
            tokens = torch.full((5, 14), 1)
            tokens[:, : step + 1] = torch.randint(4, 7, (5, step + 1), generator=chance)
            tokens[:, 0] = 2
            found = self.banned(block, tokens, step)
            assert found == [self.expected(row[: step + 1].tolist(), n) for row in tokens]
            some_banned |= any(found)
        assert some_banned

    def test_a_prefix_may_repeat(self):
        """Each row repeats "5 6"; in the first, only this word is possible."""
        block = NGramRepeatBlock(2, use_extension=False)
        lprobs = torch.zeros(2, 9)
        lprobs[0, torch.arange(9) != 6] = float("-inf")
        found = block(torch.tensor([[2, 5, 6, 5, 1]] * 2), lprobs, bsz=2, beam_size=1, step=3)
        assert found[0].isfinite().nonzero().tolist() == [[6]]
        assert found[1].isneginf().nonzero().tolist() == [[6]]


def test_diverse_beams_of_a_sentence_are_those_that_it_has_alone():
    words = upstream.dictionary(23)
    model = upstream.built("transformer", words)
    model.decoder.output_projection.weight.data[words.eos()] *= 2  # so that some end before others
    strategy = DiverseBeamSearch(words, num_groups=2, diversity_strength=0.5)
    search = SequenceGenerator([model], words, beam_size=4, max_len_b=12, search_strategy=strategy)
    chance, rows = torch.Generator().manual_seed(0), []
    for length in (5, 2, 7, 4):
        rows.append([*torch.randint(words.nspecial, 23, (length,), generator=chance).tolist(), words.eos()])

    def generate(chosen: list[list[int]], numbers: list[int]) -> list:
        """The hypotheses of sentences with these numbers in the corpus."""
        longest = max(map(len, chosen))
        tokens = torch.tensor([[words.pad()] * (longest - len(row)) + row for row in chosen])
        source = {"src_tokens": tokens, "src_lengths": torch.tensor(list(map(len, chosen)))}
        found = search.generate([], {"id": torch.tensor(numbers), "net_input": source})
        return [[(one["tokens"].tolist(), round(float(one["score"]), 3)) for one in beams] for beams in found]

    together = generate(rows, [2, 0, 9, 1])
    assert len({len(beams[0][0]) for beams in together}) > 1
    assert together == [generate([row], [0])[0] for row in rows]
