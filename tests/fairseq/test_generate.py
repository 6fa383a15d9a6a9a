"""fairseq's decoding, repaired: generate, interactive, the hub, averaged checkpoints."""

import logging
import re

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq.sequence_scorer import SequenceScorer

import fairseq_plugin  # noqa: F401  repairs fairseq, as a notebook would
from fairseq_plugin import average
from tests.support import cli, models

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def beam_search(trained, corpus) -> str:
    flags = ("--beam", "2", "--max-len-b", "15", "--scoring", "sacrebleu")
    return cli.generate(corpus.data, trained.folder / "checkpoint_last.pt", *flags, *cli.WORKER)


def test_generate_translates_every_sentence(beam_search, corpus):
    assert sorted(cli.hypotheses(beam_search)) == list(range(corpus.sentences["test"]))
    assert f"Translated {corpus.sentences['test']:,} sentences" in beam_search


def test_generate_scores_every_sentence_with_sacrebleu(beam_search, corpus):
    reference = corpus.text.with_name(f"{corpus.text.name}.test.de").read_text().split()
    assert float(re.search(r"BLEU = (\S+)", beam_search)[1]) > 0
    assert f"ref_len = {len(reference)})" in beam_search


def test_an_averaged_checkpoint_generates(trained, corpus, tmp_path):
    output = tmp_path / "average.pt"
    average.main(["--inputs", str(trained.folder), "--num-epoch-checkpoints", "2", "--output", str(output)])
    found = cli.hypotheses(cli.generate(corpus.data, output, "--beam", "1", "--max-len-b", "15"))
    assert len(found) == corpus.sentences["test"]


def test_the_hub_prints_alignments(trained, corpus, caplog):
    hub = TransformerModel.from_pretrained(str(trained.folder), "checkpoint_last.pt", str(corpus.data))
    with caplog.at_level(logging.INFO):
        hub.translate("one two", beam=1, max_len_b=2, verbose=True, print_alignment="hard")
    assert re.search(r"A\t\d-0", caplog.text)


def test_interactive_equals_generate_and_the_hub(trained, corpus, beam_search):
    sources = corpus.text.with_name(f"{corpus.text.name}.test.en").read_text().splitlines()[:11]
    expected = [cli.hypotheses(beam_search)[number][0] for number in range(11)]
    search = ("--beam", "2", "--max-len-b", "15", "--buffer-size", "4", "--batch-size", "4")
    log = cli.interactive(corpus.data, trained.folder / "checkpoint_last.pt", sources, *search)
    assert [texts[0] for _, texts in sorted(cli.hypotheses(log).items())] == expected
    hub = TransformerModel.from_pretrained(str(trained.folder), "checkpoint_last.pt", str(corpus.data))
    assert hub.translate(sources, beam=2, max_len_b=15) == expected


def test_the_reference_of_an_empty_source_is_scored_as_it_is():
    task, model = models.task_of("cycle"), models.tiny("cycle").float()
    tokens = dict(src_tokens=torch.tensor([[5, 6, 2], [1, 1, 2]]), src_lengths=torch.tensor([3, 1]))
    shifted = torch.tensor([[2, 7, 8], [2, 9, 4]])
    sample = dict(net_input=dict(tokens, prev_output_tokens=shifted), target=torch.tensor([[7, 8, 2], [9, 4, 2]]))
    scorer = SequenceScorer(task.target_dictionary)
    for (found,), (expected,) in zip(task.inference_step(scorer, [model], sample), scorer.generate([model], sample)):
        assert torch.equal(found["tokens"], expected["tokens"])
        assert torch.equal(found["positional_scores"], expected["positional_scores"])
