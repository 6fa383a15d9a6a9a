"""What the tests of reliability share: a warm interpreter, and the runs that nothing has disturbed."""

from pathlib import Path

import pytest

from tests.support import cli
from tests.support.image_training import write_images
from tests.support.warm import Warm

FLAGS = ("--batch-size", "64", "--dropout", "0.1", "--update-epoch-batch-itr", "True", "--log-interval", "100")


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    started = Warm(tmp_path_factory.mktemp("warm"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> Path:
    """The folder of a few images."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder)
    return folder


@pytest.fixture(scope="session")
def text(corpus) -> Path:
    """The folder of a small binary corpus."""
    return corpus.data


def trains(data: Path, folder: Path, *flags, **job) -> dict:
    """A job that trains the small model of translation."""
    return {"argv": ["fairseq-train", *cli.train_command(data, folder, *FLAGS, *flags)], **job}


@pytest.fixture(scope="session")
def straight(warm, text, tmp_path_factory) -> Path:
    """The folder of three epochs of four updates that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("straight")
    (ended,) = warm.run(trains(text, folder, "--max-epoch", "3", "--keep-last-epochs", "1"))
    assert ended.status == 0, ended.log[-2000:]
    return folder
