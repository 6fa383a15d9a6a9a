"""What fairseq logs about a model, and which warnings about its own code are hidden."""

import sys
import warnings

import pytest
from fairseq import trainer
from torch import nn

from fairseq_repairs.log import hide_warnings_about_fairseq


def test_absent_biases_are_no_shared_parameter():
    tied = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("one", "two", "three")})
    tied["two"].weight = tied["one"].weight
    assert trainer._catalog_shared_params(tied) == [["one.weight", "two.weight"]]


@pytest.mark.parametrize(
    ("words", "level", "hidden"),
    [("fairseq-train", None, True), ("fairseq-train --log-format=json", None, False), ("fairseq-train", "INFO", False)],
)
def test_warnings_about_fairseq_are_hidden_unless_a_log_is_chosen(words, level, hidden, monkeypatch):
    monkeypatch.setattr(sys, "argv", words.split())
    monkeypatch.setattr(sys, "warnoptions", [])
    monkeypatch.delenv("LOGLEVEL", raising=False)
    if level:
        monkeypatch.setenv("LOGLEVEL", level)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        hide_warnings_about_fairseq()
        warnings.warn_explicit("old", FutureWarning, "x.py", 1, module="fairseq.tasks.fairseq_task")
        warnings.warn_explicit("mine", FutureWarning, "x.py", 1, module="my_models")
    assert [str(one.message) for one in shown] == ["mine"] if hidden else ["old", "mine"]
