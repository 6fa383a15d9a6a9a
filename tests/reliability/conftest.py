"""Fixtures of the reliability tests: data, and an undisturbed run, and honest files."""

from pathlib import Path

import pytest

from tests.support import warm


@pytest.fixture(scope="session")
def straight(corpus, tmp_path_factory) -> Path:
    """The folder of an undisturbed run of two epochs with five updates each."""
    folder = tmp_path_factory.mktemp("straight")
    warm.succeed(warm.training_job(corpus, folder, "--max-epoch", "2", "--keep-last-epochs", "1"))
    return folder


@pytest.fixture(scope="session")
def honest(corpus, straight, images, tmp_path_factory) -> Path:
    """A folder with honest files of every type."""
    from tests.reliability.readers import write_honest_files  # not above: imports both plugins

    folder = tmp_path_factory.mktemp("honest")
    write_honest_files(folder, corpus, straight, images)
    return folder
