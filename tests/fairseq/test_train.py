"""fairseq's training commands, repaired: preprocess, train, resume, validate; through the real command line."""

from pathlib import Path

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


def test_validate_needs_no_task_and_leaves_no_sentence_out(trained, corpus):
    checkpoint = trained.folder / "checkpoint_last.pt"
    flags = ("--path", checkpoint, *cli.HOST, "--batch-size", "16", "--log-format", "json")
    valid = cli.logged(cli.run("fairseq-validate", corpus.data, *flags), "valid")[-1]
    assert valid["valid_bsz"] == corpus.sentences["valid"]
    assert valid["valid_loss"] == cli.logged(trained.log, "valid")[-1]["valid_loss"]


def test_bf16_with_length_buckets(corpus, tmp_path):
    flags = ("--bf16", "--num-batch-buckets", "3", "--max-tokens", "200", "--max-update", "12")
    log = cli.train(corpus.data, tmp_path, *flags)
    losses = [line["loss"] for line in cli.logged(log)]
    assert len(losses) == 12
    assert sum(losses[-3:]) < sum(losses[:3])
    assert "'tpu': False" in log
    assert "bucketing source lengths" in log


@pytest.fixture(scope="module")
def language_model(german, tmp_path_factory) -> Path:
    """A checkpoint of fairseq's own language model, trained on complete sentences."""
    folder = tmp_path_factory.mktemp("language_model")
    model = ("--arch", "transformer_lm", "--decoder-layers", "1", "--decoder-attention-heads", "2")
    text = ("--task", "language_modeling", "--sample-break-mode", "eos", "--tokens-per-sample", "16")
    steps = ("--optimizer", "adam", "--lr", "0.005", "--batch-size", "8", "--max-update", "8")
    flags = (*cli.HOST, "--disable-validation", "--save-dir", folder)
    cli.run("fairseq-train", german.data, *model, "--decoder-embed-dim", "32", *text, *steps, *flags)
    return folder / "checkpoint_last.pt"


def evaluate(data: Path, checkpoint: Path, *flags, **options) -> str:
    return cli.run("fairseq-eval-lm", data, *cli.HOST, "--gen-subset", "test", "--path", checkpoint, *flags, **options)


def test_perplexity_is_printed_when_another_library_logs_first(german, language_model, early_log):
    log = evaluate(german.data, language_model, "--tokens-per-sample", "16", env=early_log, fresh=True)
    assert f"Evaluated {german.tokens:,} tokens" in log
    assert 1.1 < float(log.split("Perplexity: ")[1].split()[0]) < 10


def test_a_text_is_cut_to_the_positions_of_the_model(german, language_model):
    log = evaluate(german.data, language_model)
    assert "--tokens-per-sample 1024: more than the model's 16 positions, which are used instead" in log
    assert "Perplexity" in log
