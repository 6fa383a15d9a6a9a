"""Search: blocked n-grams, diverse beams, and limits on the length."""

from functools import partial

import pytest
import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import DiverseBeamSearch, LengthConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment

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


class TestBatch:
    """A sentence has the hypotheses that it has alone."""

    @pytest.fixture(scope="class")
    @staticmethod
    def words():
        return upstream.dictionary(23)

    @pytest.fixture(scope="class")
    @staticmethod
    def model(words):
        model = upstream.built("transformer", words)
        model.decoder.output_projection.weight.data[words.eos()] *= 2  # so that some end before others
        return model

    @pytest.fixture(scope="class")
    @staticmethod
    def rows(words) -> list[list[int]]:
        chance = torch.Generator().manual_seed(0)
        lengths = (5, 2, 7, 4)
        return [
            [*torch.randint(words.nspecial, 23, (length,), generator=chance).tolist(), words.eos()]
            for length in lengths
        ]

    @staticmethod
    def generate(search: SequenceGenerator, rows: list[list[int]], numbers: list[int], prefix=None) -> list:
        """The hypotheses of sentences with these numbers in the corpus."""
        longest = max(map(len, rows))
        tokens = torch.tensor([[search.pad] * (longest - len(row)) + row for row in rows])
        source = {"src_tokens": tokens, "src_lengths": torch.tensor(list(map(len, rows)))}
        found = search.generate([], {"id": torch.tensor(numbers), "net_input": source}, prefix_tokens=prefix)
        return [[(one["tokens"].tolist(), round(float(one["score"]), 3)) for one in beams] for beams in found]

    def test_diverse_beams(self, model, words, rows):
        strategy = DiverseBeamSearch(words, num_groups=2, diversity_strength=0.5)
        search = SequenceGenerator([model], words, beam_size=4, max_len_b=12, search_strategy=strategy)
        together = self.generate(search, rows, [2, 0, 9, 1])
        assert len({len(beams[0][0]) for beams in together}) > 1
        assert together == [self.generate(search, [row], [0])[0] for row in rows]

    def test_an_empty_reference_is_no_prefix(self, model, words, rows):
        search = SequenceGenerator([model], words, beam_size=4, max_len_b=12)
        given = torch.tensor([[words.eos()], [5], [6], [7]])
        together = self.generate(search, rows, [0, 1, 2, 3], given)
        assert together[0] == self.generate(search, rows[:1], [0])[0]
        assert [beams[0][0][0] for beams in together[1:]] == [5, 6, 7]

    def test_searches_are_scripted(self, model, words):
        """TorchScript compiles the methods of their classes, in which no repair may be."""
        for strategy in (DiverseBeamSearch(words, 2, 0.5), LengthConstrainedBeamSearch(words, 1, 0, 1, 0)):
            torch.jit.script(SequenceGenerator([model], words, beam_size=4, search_strategy=strategy))

    @pytest.mark.parametrize(
        "kind", [SequenceGenerator, partial(SequenceGeneratorWithAlignment, left_pad_target=False)]
    )
    @pytest.mark.parametrize("least", [3, 6])
    def test_the_least_length_beside_longer_prefixes(self, model, words, rows, kind, least):
        search = kind([model], words, beam_size=4, max_len_b=12, min_len=least)
        prefixes, pad = [[5, 6, 7, 8, 9], [5], [], [5, 6]], words.pad()
        given = torch.tensor([prefix + [pad] * (5 - len(prefix)) for prefix in prefixes])
        together = self.generate(search, rows, [0, 1, 2, 3], given)
        alone = [
            self.generate(search, [row], [0], torch.tensor([prefix], dtype=torch.long))[0]
            for row, prefix in zip(rows, prefixes)
        ]
        assert together == alone
        assert min(len(tokens) for beams in together for tokens, _ in beams) == 1 + least  # with the end

    def test_as_many_words_as_the_source_has(self, model, words, rows):
        strategy = LengthConstrainedBeamSearch(words, 1, 0, 1, 0)  # as of --match-source-len
        search = SequenceGenerator([model], words, beam_size=4, match_source_len=True, search_strategy=strategy)
        together = self.generate(search, rows, [0, 1, 2, 3])
        assert [[len(tokens) for tokens, _ in beams] for beams in together] == [[len(row)] * 4 for row in rows]
        assert together == [self.generate(search, [row], [0])[0] for row in rows]
        prefix = torch.tensor([[5]] * 2)  # which leaves one hypothesis of a single word
        found = self.generate(search, [rows[0], [7, words.eos()]], [0, 1], prefix)
        assert [len(beams[0][0]) for beams in found] == [len(rows[0]), 2]
