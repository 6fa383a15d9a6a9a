"""Jobs for the warm interpreter (tests/support/warm.py) that train a small translation model."""

from pathlib import Path

from tests.support import cli

FLAGS = ("--batch-size", "64", "--dropout", "0.1", "--update-epoch-batch-itr", "True", "--log-interval", "100")


def training_job(corpus, folder: Path, *flags, **job) -> dict:
    """A job that trains the small translation model on the corpus; `job` is passed on to the warm interpreter."""
    return {"argv": ["fairseq-train", *cli.train_command(corpus.data, folder, *FLAGS, *flags)], **job}
