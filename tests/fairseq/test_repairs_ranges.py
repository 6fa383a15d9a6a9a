"""Numbers outside their range are rejected by the option's name when the command line is parsed."""

from argparse import Namespace

import pytest
from fairseq import options
from fairseq_cli import preprocess

from fairseq_plugin.repairs.ranges import RULES

OUTSIDE = {
    "--batch-size": ["0", "-1"],
    "--batch-size-valid": ["0"],
    "--max-tokens": ["0"],
    "--max-tokens-valid": ["-5"],
    "--num-workers": ["-1"],
    "--warmup-updates": ["-1"],
    "--clip-norm": ["-1", "nan"],
    "--update-freq": ["0", "2,0"],
    "--label-smoothing": ["1", "-0.1", "nan"],
    "--adam-betas": ["x", "0.9", "(0.9, 1)", "(0.9, nan)"],
    "--eval-bleu-args": ["{beam}", "4"],
    "--eval-bleu-detok-args": ["x"],
}
TRAINING = ["data", "--task", "translation", "--arch", "transformer", "--criterion", "label_smoothed_cross_entropy"]
TRAINING += ["--optimizer", "adam", "--lr-scheduler", "inverse_sqrt"]


def train(*flags: str):
    return options.parse_args_and_arch(options.get_training_parser(), [*TRAINING, *flags])


@pytest.mark.parametrize(("option", "value"), [(option, value) for option in OUTSIDE for value in OUTSIDE[option]])
def test_a_number_outside_its_range_is_rejected(option, value):
    with pytest.raises(ValueError, match=f"^{option} .*: must be "):
        train(f"{option}={value}")


@pytest.mark.parametrize("flags", [["--beam", "0"], ["--nbest", "0"], ["--beam", "2", "--nbest", "3"]])
def test_nbest_must_not_exceed_the_beam(flags):
    with pytest.raises(ValueError, match="^--(beam|nbest) [03]: must be "):
        options.parse_args_and_arch(options.get_generation_parser(), ["data", "--path", "x.pt", *flags])


@pytest.mark.parametrize("window", ["12", "13", "-1"])
def test_a_context_window_leaves_room_for_tokens(window):
    words = ["data", "--task", "language_modeling", "--path", "x.pt", "--tokens-per-sample", "12"]
    message = f"^--context-window {window}: must be >= 0 and < --tokens-per-sample 12"
    with pytest.raises(ValueError, match=message):
        options.parse_args_and_arch(options.get_eval_lm_parser(), [*words, f"--context-window={window}"])
    options.parse_args_and_arch(options.get_eval_lm_parser(), [*words, "--context-window=11"])


def test_preprocessing_needs_a_worker():
    with pytest.raises(ValueError, match="^--workers 0: must be >= 1"):
        preprocess.main(Namespace(workers=0))


def test_numbers_in_range_are_kept():
    args = train("--batch-size", "1", "--update-freq", "1,2", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "0")
    assert (args.batch_size, args.update_freq, args.adam_betas, args.clip_norm) == (1, [1, 2], "(0.9, 0.98)", 0)
    args = train("--batch-size-valid", "200", "--max-tokens-valid", "4096")
    assert (args.batch_size_valid, args.max_tokens_valid) == ("200", "4096")


def test_every_rule_is_tried():
    tried = {option[2:].replace("-", "_") for option in OUTSIDE}
    assert tried | {"beam", "nbest", "workers"} == set(RULES)
