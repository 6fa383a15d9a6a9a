"""Values outside their range are rejected by the option's name when the command line is parsed."""

from argparse import Namespace
from pathlib import Path

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from fairseq_cli import preprocess

from fairseq_repairs import ranges
from fairseq_repairs.checkpoints import load_safely
from tests.support import upstream

OUTSIDE = {
    "--max-tokens": ["0", "-1"],
    "--num-workers": ["-1"],
    "--warmup-updates": ["0", "-1"],
    "--update-freq": ["0", "2,0"],
    **dict.fromkeys(["--save-interval", "--validate-interval", "--log-interval"], ["0"]),
    "--keep-interval-updates-pattern": ["0"],
    "--label-smoothing": ["nan"],
    "--adam-betas": ["x", "0.9"],
    "--optimizer-overrides": ["lr"],
    "--eval-bleu-args": ["{beam}", "4"],
    "--eval-bleu-detok-args": ["x"],
}
TRIED = [(option, value) for option in OUTSIDE for value in OUTSIDE[option]]
TRAINING = ["data", "--task", "translation", "--arch", "transformer", "--criterion", "label_smoothed_cross_entropy"]
TRAINING += ["--optimizer", "adam", "--lr-scheduler", "inverse_sqrt"]


def train(*flags: str):
    return options.parse_args_and_arch(options.get_training_parser(), [*TRAINING, *flags])


@pytest.fixture
def text(data) -> Path:
    return data["text"]


@pytest.mark.parametrize(("option", "value"), TRIED)
def test_a_number_outside_its_range_is_rejected(option, value):
    with pytest.raises(ValueError, match=f"^{option} .*: must be "):
        train(f"{option}={value}")


def test_a_cosine_may_be_nothing_but_warm_up(text, tmp_path):
    cosine = ("--lr-scheduler", "cosine", "--warmup-updates", "2", "--max-update", "2", "--max-epoch", "2")
    last = upstream.run_training("transformer", text, tmp_path, "--lr", "0.25", *cosine)
    assert load_safely(last)["last_optimizer_state"]["param_groups"][0]["lr"] == 0.25


def test_a_polynomial_decay_ends_with_the_training():
    decay = ("--lr-scheduler=polynomial_decay", "--max-update")
    assert convert_namespace_to_omegaconf(train(*decay, "60")).lr_scheduler.total_num_update == 60
    given = train(*decay, "60", "--total-num-update", "70")
    assert convert_namespace_to_omegaconf(given).lr_scheduler.total_num_update == 70
    with pytest.raises(ValueError, match="^--lr-scheduler polynomial_decay: needs --total-num-update or --max-update$"):
        train(*decay, "0")


def test_the_configuration_of_fairseq_hydra_train_too():
    configuration = convert_namespace_to_omegaconf(train())
    configuration.lr_scheduler.warmup_updates = 0
    with pytest.raises(ValueError, match="^--warmup-updates 0: must be "):
        Trainer(configuration, None, None, None)


FAILING = ["--lr-scheduler", "inverse_sqrt", "--update-freq", "1", "--max-epoch", "2"]
FAILING += ["--eval-bleu", "--eval-bleu-detok", "moses", "--save-interval-updates", "1", "--keep-interval-updates", "1"]


@pytest.mark.parametrize(("option", "value"), TRIED)
def test_what_is_rejected_fails_in_fairseq(option, value, text, tmp_path, monkeypatch):
    monkeypatch.setattr(ranges.check_ranges, "__code__", (lambda args, trains: None).__code__)
    with pytest.raises(Exception, match="."):
        upstream.run_training("transformer", text, tmp_path, *FAILING, f"{option}={value}")


def test_the_training_that_they_end_does_not_fail_without_them(text, tmp_path):
    upstream.run_training("transformer", text, tmp_path, *FAILING)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--clip-norm", "-1"), ("--batch-size", "0"), ("--batch-size-valid", "-1"), ("--max-tokens-valid", "0")),
        *(("--label-smoothing", "1"), ("--adam-betas", "(0.9, 1)")),
    ],
)
def test_what_fairseq_does_is_not_rejected(option, value, text, tmp_path):
    upstream.run_training("transformer", text, tmp_path, f"{option}={value}")


@pytest.mark.parametrize("number", ["0", "-1"])
@pytest.mark.parametrize(
    ("command", "model", "flags"),
    [
        ("generate", "transformer", ["--max-len-b", "4"]),
        ("validate", "transformer", []),
        ("eval_lm", "transformer_lm", ["--tokens-per-sample", "12"]),
    ],
)
def test_a_command_that_does_not_train_has_no_limit_on_tokens(command, model, flags, number, trained_once):
    text, path = trained_once(model)
    upstream.use(command, text, path, *flags, "--max-tokens", number)


@pytest.mark.parametrize("flag", ["--beam 0", "--nbest 0", "--model-overrides x", "--tokens-per-sample 0"])
def test_generation_too(flag):
    words = ["data", "--task", "language_modeling", "--path", "x.pt", *flag.split()]
    with pytest.raises(ValueError, match=f"^{flag}: must "):
        options.parse_args_and_arch(options.get_generation_parser(), words)


def test_more_hypotheses_than_the_beam_has_are_all_of_them(trained_once):
    text, path = trained_once("transformer")
    found = upstream.use("generate", text, path, "--beam", "2", "--nbest", "3", "--max-len-b", "5")[1]
    assert found.count("\nH-0\t") == 2


@pytest.mark.parametrize("window", ["12", "13"])
def test_a_context_window_leaves_room_for_tokens(window):
    words = ["data", "--task", "language_modeling", "--path", "x.pt", "--tokens-per-sample", "12"]
    message = f"^--context-window {window}: must be < --tokens-per-sample 12"
    with pytest.raises(ValueError, match=message):
        options.parse_args_and_arch(options.get_eval_lm_parser(), [*words, f"--context-window={window}"])
    options.parse_args_and_arch(options.get_eval_lm_parser(), [*words, "--context-window=11"])


def test_preprocessing_needs_a_worker():
    with pytest.raises(ValueError, match="^--workers 0: must be >= 1"):
        preprocess.main(Namespace(workers=0))


def test_every_rule_is_tried():
    tried = {option[2:].replace("-", "_") for option in OUTSIDE}
    others = {"beam", "nbest", "workers", "model_overrides", "tokens_per_sample"}
    assert tried | others == {"warmup_updates", *ranges.RULES, *ranges.RULES_OF_TRAINING}
