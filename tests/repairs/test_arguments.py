"""Misspelt names and forgotten options of a command line are named."""

import pytest
from fairseq import options

from tests.support import upstream

MISTAKES = {
    "--arch transformr": "--arch/-a transformr: there is no such name; did you mean transformer or",
    "--arch transformer --criterion zzz": "--criterion zzz: there is no such name; --help lists all",
    "--arch transformer --log-format jsn": "--log-format jsn: must be one of json, none, simple, tqdm",
    "--arch transformer --lstm-init x": "--lstm-init is not an option",
    "--arch transformer --max-updates 5": "--max-updates is not an option; did you mean --max-update or",
    "--arch transformer --conv-kernel-sizes 5": "--conv-kernel-sizes is an option of --arch s2t_",
    "--arch transformer --label-smoothing 0.1": "--label-smoothing is an option of --criterion label_smoothed_cross_en",
}


@pytest.mark.parametrize(("words", "said"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_one_line(words, said, capsys):
    with pytest.raises(SystemExit, match="^2$"):
        upstream.arguments(*words.split()[1:])
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "warns"),
    [("--optimizer adam", True), ("--optimizer adam --lr 0.25", False), ("--optimizer nag", False), ("", False)],
)
def test_a_forgotten_rate_is_warned_of(flags, warns, said):
    parsed = options.parse_args_and_arch(
        options.get_training_parser(), ["data", "--arch", "transformer", *flags.split()]
    )
    assert parsed.lr == [0.25]
    assert ("--lr was not given: --optimizer adam begins at fairseq's default of 0.25" in said.text) == warns
