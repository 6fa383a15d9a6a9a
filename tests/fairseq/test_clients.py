"""Unsupported tasks, criterions and raw text are rejected or warned about; the log has no module tree."""

import logging

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation_lev import TranslationLevenshteinConfig, TranslationLevenshteinTask

from fairseq_plugin.modules.model import check_task
from fairseq_plugin.repairs.interactive import warn_of_unknown_words
from tests.support import cli, models


def test_a_levenshtein_task_is_rejected():
    words = models.dictionary(19)
    task = TranslationLevenshteinTask(TranslationLevenshteinConfig(), words, words)
    with pytest.raises(ValueError, match="--task: TranslationLevenshteinTask edits a sentence"):
        models.build("cycle", on=task)


def test_a_task_without_source_is_rejected_by_name():
    """`fairseq-eval-lm` of a translation model, for example."""
    with pytest.raises(ValueError, match="^--task: LanguageModelingTask has no source"):
        models.tiny("cycle", on=models.task_of("cycle_lm"))


def test_multilingual_tasks_are_rejected():
    args = models.options("cycle")
    vars(args).update(
        lang_pairs=["de-en"], left_pad_source="True", left_pad_target="False", source_lang="de", target_lang="en"
    )
    words = models.dictionary(19)
    task = MultilingualTranslationTask(args, {"de": words, "en": words}, training=True)
    with pytest.raises(ValueError, match="--task: MultilingualTranslationTask builds a model of"):
        check_task(args, task)


def test_alignments_are_not_trained(corpus, tmp_path):
    criterion = ("--criterion", "label_smoothed_cross_entropy_with_alignment")
    said = cli.train(corpus.data, tmp_path, *criterion, "--max-sentences", "4", fails=True)
    assert "--criterion=label_smoothed_cross_entropy_with_alignment: fused attention gives no weights to train" in said


UNKNOWN = "of 3 symbols are unknown: segment"


@pytest.mark.parametrize(
    ("known", "line", "warning"),
    [
        ("one two three", "one two three", None),
        ("one two three", "one x two", None),
        ("one two three", "one x", None),
        ("one two three", "one x y", UNKNOWN),
    ],
)
def test_text_that_is_not_segmented_is_warned_of(known, line, warning, caplog):
    words = Dictionary()
    for word in known.split():
        words.add_symbol(word)
    with caplog.at_level(logging.WARNING):
        warn_of_unknown_words(line, words.encode_line(line, add_if_not_exist=False), words)
    assert warning in caplog.text if warning else not caplog.text


def test_speech_is_not_warned_of(caplog):
    warn_of_unknown_words("speech.wav", torch.zeros(7, 80), None)
    assert not caplog.text


def test_interactive_warns(trained, corpus):
    path = trained.folder / "checkpoint_last.pt"
    said = cli.interactive(corpus.data, path, ["all of this is raw text"], "--buffer-size", "1")
    assert "6 of 6 symbols are unknown" in said
