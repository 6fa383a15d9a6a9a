"""What fairseq's users plug in or type next: refused by name, warned of, or quiet."""

import logging

import pytest
import torch
from fairseq import trainer
from fairseq.data import Dictionary
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation_lev import TranslationLevenshteinConfig, TranslationLevenshteinTask
from omegaconf import OmegaConf

from fairseq_plugin.hostfix import parallel
from fairseq_plugin.hostfix.interactive import warn_of_unknown_words
from fairseq_plugin.modules.model import check_task
from tests.support import cli, models


def test_a_levenshtein_task_is_refused():
    words = models.dictionary(19)
    task = TranslationLevenshteinTask(TranslationLevenshteinConfig(), words, words)
    with pytest.raises(ValueError, match="--task=translation_lev: edits a sentence"):
        models.build("cycle", on=task)


def test_multilingual_tasks_are_refused():
    args = models.options("cycle")
    vars(args).update(
        lang_pairs=["de-en"], left_pad_source="True", left_pad_target="False", source_lang="de", target_lang="en"
    )
    words = models.dictionary(19)
    task = MultilingualTranslationTask(args, {"de": words, "en": words}, training=True)
    with pytest.raises(ValueError, match="--task: multilingual tasks build a model for each pair of languages"):
        check_task(args, task)


@pytest.mark.parametrize("arch", ["cycle", "ilr_small"])
def test_sharded_parameters_are_refused(arch):
    cfg = OmegaConf.create({"model": {"_name": arch}, "distributed_training": {"ddp_backend": "fully_sharded"}})
    with pytest.raises(ValueError, match="--ddp-backend=fully_sharded: would gather a stored block"):
        parallel.refuse_sharding(cfg)
    for other in ({"distributed_training": {"ddp_backend": "pytorch_ddp"}}, {"model": {"_name": "transformer"}}):
        parallel.refuse_sharding(OmegaConf.merge(cfg, other))


def test_alignments_are_not_trained(corpus, tmp_path):
    said = cli.train(
        corpus.data,
        tmp_path,
        "--criterion",
        "label_smoothed_cross_entropy_with_alignment",
        "--max-sentences",
        "4",
        fails=True,
    )
    assert "--criterion=label_smoothed_cross_entropy_with_alignment: fused attention gives no weights to train" in said


def test_the_log_begins_with_what_matters(trained):
    assert "num. shared model params" in trained.log
    assert "(self_attn)" not in trained.log
    assert "detected shared parameter" not in trained.log


def test_shared_parameters_are_still_found():
    model = models.build("cycle", "--share-all-embeddings", on=models.task(19, 19))
    assert trainer._catalog_shared_params(model) == []  # a matrix that another module borrows is registered once
    model.again = model.encoder.embed_tokens
    (paths,) = trainer._catalog_shared_params(model)
    assert sorted(paths) == ["again.weight", "encoder.embed_tokens.weight"]


@pytest.mark.parametrize(("line", "warned"), [("one two three", False), ("one x two", False), ("one x y", True)])
def test_unknown_sentences_are_warned_of(line, warned, caplog):
    words = Dictionary()
    for word in ("one", "two", "three"):
        words.add_symbol(word)
    with caplog.at_level(logging.WARNING):
        warn_of_unknown_words(line, words.encode_line(line, add_if_not_exist=False), words)
    assert ("of 3 symbols are unknown: segment the text" in caplog.text) == warned
    warn_of_unknown_words("speech.wav", torch.zeros(7, 80), None)


@pytest.mark.parametrize(("line", "warned"), [("four hundred and two", True), ("\u2581four hundred and two", False)])
def test_raw_text_is_warned_of_though_most_of_it_is_known(line, warned, caplog):
    words = Dictionary()
    for piece in ("\u2581four", "four", "and", "two"):
        words.add_symbol(piece)
    with caplog.at_level(logging.WARNING):
        warn_of_unknown_words(line, words.encode_line(line, add_if_not_exist=False), words)
    assert ("none of 4 symbols begins a word: segment the text" in caplog.text) == warned


def test_interactive_warns(trained, corpus):
    path = trained.folder / "checkpoint_last.pt"
    flags = ("--user-dir", cli.REPOSITORY / "fairseq_plugin", "--path", path, "--cpu")
    said = cli.run("fairseq-interactive", corpus.data, *flags, "--buffer-size", 1, stdin="all of this is raw text\n")
    assert "6 of 6 symbols are unknown" in said
