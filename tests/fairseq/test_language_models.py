"""Language models through fairseq's own commands: train, resume, evaluate, generate, sample, the hub, a yaml file."""

import re
from pathlib import Path

import pytest

from fairseq_plugin.models.ilr import IntraLayerRecurrence
from tests.support import cli
from tests.support.states import same_runs

pytestmark = pytest.mark.slow

ILR = ["--arch", "ilr_small", "--decoder-embed-dim", "32", "--decoder-attention-heads", "2", "--position", "alibi"]
EXACT = ["--update-epoch-batch-itr", "True"]
ADAPTIVE = ["--arch", "cycle_rev_lm", *ILR[2:6], "--decoder-layers", "4", "--decoder-unique-layers", "2"]
ADAPTIVE += ["--adaptive-input-cutoff", "6,8", "--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp"]


def train(data: Path, folder: Path, *flags, **options) -> str:
    """Run fairseq-train on blocks of 32 tokens, a log line an update."""
    text = ("--task", "language_modeling", "--tokens-per-sample", "32", "--batch-size", "8")
    steps = ("--optimizer", "adam", "--lr", "0.005", "--log-format", "json", "--log-interval", "1", "--seed", "7")
    where = ("--save-dir", folder)
    return cli.run("fairseq-train", data, *cli.HOST, *text, *steps, *where, *flags, **options)


def perplexity(data: Path, checkpoint: Path, *flags) -> tuple[int, float]:
    """How many tokens fairseq-eval-lm has evaluated, and the perplexity that it prints."""
    log = cli.run("fairseq-eval-lm", data, *cli.HOST, "--gen-subset", "test", "--path", checkpoint, *flags)
    tokens = int(re.search(r"Evaluated ([\d,]+) tokens", log)[1].replace(",", ""))
    return tokens, float(re.search(r"Perplexity: (\S+)", log)[1])


def interactive(data: Path, checkpoint: Path, lines: list[str], *flags) -> dict[int, list[str]]:
    """What fairseq-interactive makes of beginnings of texts."""
    flags = ("--task", "language_modeling", "--max-len-b", "12", *flags)
    return cli.hypotheses(cli.interactive(data, checkpoint, lines, *flags))


@pytest.fixture(scope="module")
def ilr(german, tmp_path_factory) -> tuple[Path, str]:
    """Four epochs of a looped model, and what was printed; the third one was read from the disk."""
    folder = tmp_path_factory.mktemp("ilr")
    train(german.data, folder, *ILR, *EXACT, "--max-epoch", "2")
    return folder, train(german.data, folder, *ILR, *EXACT, "--max-epoch", "4")


def test_training_learns_and_resumes_bit_by_bit(ilr, german, tmp_path):
    folder, log = ilr
    assert "Loaded checkpoint" in log
    assert [line["epoch"] for line in cli.logged(log, "train")] == [3, 4]
    straight = train(german.data, tmp_path, *ILR, *EXACT, "--max-epoch", "4")
    losses = [line["train_loss"] for line in cli.logged(straight, "train")]
    assert losses[3] < losses[1] < losses[0]
    assert same_runs(tmp_path, folder)


def test_perplexity_at_every_context(ilr, german):
    """At the length of training, at one four times as long, and with a window of what stands before each block."""
    checkpoint = ilr[0] / "checkpoint_last.pt"
    for flags in (("32",), ("128",), ("64", "--context-window", "32", "--batch-size", "1")):
        tokens, value = perplexity(german.data, checkpoint, "--tokens-per-sample", *flags)
        assert tokens == german.tokens
        assert 1.1 < value < 10


def test_beam_search_continues_prompts_as_the_hub_interface_does(ilr, german):
    folder, prompts = ilr[0], ["eins eins eins", "zwei", "drei drei"]
    search = ("--beam", "3", "--buffer-size", "3", "--batch-size", "3")
    found = interactive(german.data, folder / "checkpoint_last.pt", prompts, *search)
    assert all(found[number][0].startswith(prompt) for number, prompt in enumerate(prompts))
    hub = IntraLayerRecurrence.from_pretrained(str(folder), "checkpoint_last.pt", str(german.data))
    assert hub.sample(prompts, beam=3, max_len_b=12) == [found[number][0] for number in range(3)]
    assert len(hub.score("eins eins eins")["positional_scores"]) == 3


def test_generate_continues_every_line(ilr, german, corpus):
    flags = ("--task", "language_modeling", "--sample-break-mode", "eos", "--prefix-size", "1", "--beam", "2")
    log = cli.generate(german.data, ilr[0] / "checkpoint_last.pt", *flags, "--max-len-b", "8", "--batch-size", "128")
    assert sorted(cli.hypotheses(log)) == list(range(corpus.sentences["test"]))


def test_adaptive_inputs_and_softmax(german, tmp_path):
    log = train(german.data, tmp_path, *ADAPTIVE, "--max-epoch", "2")
    losses = [line["train_loss"] for line in cli.logged(log, "train")]
    assert losses[1] < losses[0]
    checkpoint = tmp_path / "checkpoint_last.pt"
    tokens, value = perplexity(german.data, checkpoint, "--tokens-per-sample", "32")
    assert tokens == german.tokens
    assert 1.1 < value < 30
    assert interactive(german.data, checkpoint, ["eins eins"], "--beam", "2")[0][0].startswith("eins eins")


@pytest.mark.skipif(cli.is_official(), reason="fairseq 0.12.2 needs a yaml with a list of defaults")
def test_the_yaml_file_of_the_plugin_trains_and_resumes(german, tmp_path):
    values = [
        *(f"common.user_dir={cli.PLUGIN}", f"task.data={german.data}", f"checkpoint.save_dir={tmp_path}/checkpoints"),
        *("common.cpu=true", "task.tokens_per_sample=32", "dataset.batch_size=4", "dataset.num_workers=0"),
        *("+model.decoder_embed_dim=32", "common.log_interval=1", f"hydra.run.dir={tmp_path}"),
        *("lr_scheduler.warmup_updates=2", "dataset.data_buffer_size=0", "dataset.disable_validation=true"),
    ]
    command = ("fairseq-hydra-train", "--config-dir", cli.PLUGIN / "config", "--config-name", "ilr_small", *values)
    first = cli.run(*command, "optimization.max_update=3")
    assert "num_updates 3 " in first
    again = cli.run(*command, "optimization.max_update=6")
    assert "@ 3 updates" in again
    assert "num_updates 6 " in again
    tokens, _ = perplexity(german.data, tmp_path / "checkpoints" / "checkpoint_last.pt", "--tokens-per-sample", "32")
    assert tokens == german.tokens
