"""fairseq's own beam search on tiny models, and comparisons of its results."""

from collections.abc import Sequence

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from tests.support import language, models


@torch.no_grad()
def varied_model(arch: str, flags: Sequence[str] = ()) -> nn.Module:
    """A tiny model whose predictions depend on the context, the end of the sentence most of all.

    With a random output layer, a tiny model repeats one symbol forever: beams never split, cross or end. This one
    projects onto the directions in which features of different contexts differ.
    """
    model = models.tiny(arch, *flags)
    source, lengths, target = models.inputs(arch, (5, 3, 6) * 4, (12,) * 12)
    features = model.decoder(target, model.encoder(source, lengths), features_only=True)[0].flatten(0, 1)
    mean = features.mean(0)
    without_mean = torch.eye(len(mean), dtype=mean.dtype) - torch.outer(mean, mean) / mean.dot(mean)
    _, scales, directions = torch.linalg.svd(features @ without_mean, full_matrices=False)
    keep = scales > 1e-3 * scales[0]
    whiten = directions[keep] / scales[keep, None] * len(features) ** 0.5
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(models.TARGET_SYMBOLS, len(whiten), generator=generator, dtype=mean.dtype)
    weight[model.decoder.dictionary.eos()] *= 2
    model.decoder.output_projection.weight.copy_(weight @ whiten @ without_mean)
    return model


def search(*ensemble: nn.Module, incremental: bool = True, **options) -> SequenceGenerator:
    """A beam search, of width 4; without `incremental`, each step runs the complete prefix through the model."""
    options = {"beam_size": 4, "max_len_b": 12, **options}
    found = SequenceGenerator(list(ensemble), models.dictionary(models.TARGET_SYMBOLS), **options)
    found.model.has_incremental = incremental
    return found


def translate(
    search: SequenceGenerator, source: tuple[Tensor, Tensor], prefix: Tensor | None = None
) -> list[list[dict]]:
    """All hypotheses of each sentence, best first."""
    batch = dict(zip(("src_tokens", "src_lengths"), source))
    return search.generate([], {"net_input": batch}, prefix_tokens=prefix)


def sources(arch: str, left_pad: bool = True) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    """Four sources, and the batch of them."""
    kind = models.modality_of(arch)
    rows = [row for row, _ in kind.rows((5, 2, 7, 4), (1, 1, 1, 1))]
    return rows, kind.collate_source(rows, left_pad)


def continue_prompts(search: SequenceGenerator, prompts: Tensor) -> list[list[dict]]:
    """All continuations of each prompt, best first, through the inference step of fairseq's language modeling task."""
    net_input = {"src_tokens": prompts, "src_lengths": models.is_token(prompts).sum(1)}
    return language.task().inference_step(search, [], {"net_input": net_input}, prefix_tokens=prompts)


def prompts() -> Tensor:
    """Prompts of different lengths, without the end-of-sentence symbol: (B, T)."""
    return models.collate([row[:-1] for row in models.sentences((4, 2, 6, 3), language.SYMBOLS, seed=5)])


def expect_equal(found: list[list[dict]], expected: list[list[dict]]) -> None:
    """Asserts equal tokens and, because the search adds up scores in float32, nearly equal scores."""
    for one, other in zip(found, expected, strict=True):
        assert [h["tokens"].tolist() for h in one] == [h["tokens"].tolist() for h in other]
        scores = [[h["positional_scores"] for h in hypotheses] for hypotheses in (one, other)]
        torch.testing.assert_close(*scores, rtol=0, atol=1e-4)


@torch.no_grad()
def expect_scores_of_the_full_forward(model: nn.Module, hypothesis: dict, *source: Tensor) -> None:
    """Asserts that a hypothesis has the scores that one forward pass gives it."""
    tokens = hypothesis["tokens"]
    found = models.log_probabilities(model, *source, models.collate([tokens], target=True))[0]
    scores = found.gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(hypothesis["positional_scores"].double(), scores, rtol=0, atol=1e-4)
