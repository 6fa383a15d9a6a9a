"""fairseq's preprocessing and training, repaired: through the real command line."""

import pytest

from fairseq_plugin.repairs.checkpoints import load_safely
from tests.support import cli
from tests.support.states import same_state, trained_tensors

pytestmark = pytest.mark.slow


def test_preprocess_keeps_its_log_when_another_library_logs_first(corpus):
    log = (corpus.data / "preprocess.log").read_text()
    for split, count in corpus.sentences.items():
        assert f"{corpus.text}.{split}.en: {count} sents" in log
        assert f"{corpus.text}.{split}.en: {count} sents" in corpus.log


def test_training_learns_and_validates_every_sentence(trained, corpus):
    losses = [line["train_loss"] for line in cli.logged(trained.log, "train")]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert sum(line["bsz"] for line in cli.logged(trained.log)[:14]) == corpus.sentences["train"]
    valid = cli.logged(trained.log, "valid")
    batches = -(-corpus.sentences["valid"] // 16)
    assert {line["valid_bsz"] for line in valid} == {round(corpus.sentences["valid"] / batches, 1)}
    assert all(line["valid_bleu"] > 0 for line in valid)


def test_resume_in_the_middle_of_an_epoch_is_bit_exact(trained, corpus, tmp_path):
    middle = trained.folder / "checkpoint_2_20.pt"
    log = cli.train(corpus.data, tmp_path, *trained.flags, "--restore-file", middle, "--no-epoch-checkpoints")
    assert cli.logged(log)[0]["num_updates"] == 21
    resumed, straight = (load_safely(folder / "checkpoint_last.pt") for folder in (tmp_path, trained.folder))
    assert len(trained_tensors(resumed["model"])) > 10
    assert same_state(trained_tensors(resumed["model"]), trained_tensors(straight["model"]))
    assert same_state(resumed["last_optimizer_state"], straight["last_optimizer_state"])
    assert cli.logged(log, "valid")[-1]["valid_bleu"] == cli.logged(trained.log, "valid")[-1]["valid_bleu"]
