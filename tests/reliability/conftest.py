"""Fixtures of the reliability tests: a warm interpreter, data, and an undisturbed run."""

from pathlib import Path

import pytest

from tests.reliability.jobs import training_job
from tests.support.warm import Warm


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    started = Warm(tmp_path_factory.mktemp("warm"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def text(corpus) -> Path:
    """The folder of a small binarized corpus."""
    return corpus.data


@pytest.fixture(scope="session")
def straight(warm, text, tmp_path_factory) -> Path:
    """The folder of an undisturbed run of two epochs with five updates each."""
    folder = tmp_path_factory.mktemp("straight")
    (ended,) = warm.run(training_job(text, folder, "--max-epoch", "2", "--keep-last-epochs", "1"))
    assert ended.status == 0, ended.log[-2000:]
    return folder
