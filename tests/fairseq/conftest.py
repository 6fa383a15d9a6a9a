"""What tests of fairseq share beside tests/conftest.py: one side of the corpus, for language models."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import cli


class Text(NamedTuple):
    """The folder of a binary text, and the number of its test tokens, ends of lines included."""

    data: Path
    tokens: int


@pytest.fixture(scope="session")
def german(corpus, tmp_path_factory) -> Text:
    """The corpus's German side."""
    folder = tmp_path_factory.mktemp("german") / "data"
    prefixes = [argument for split in corpus.sentences for argument in (f"--{split}pref", f"{corpus.text}.{split}.de")]
    cli.preprocess("--only-source", "--srcdict", corpus.data / "dict.de.txt", "--destdir", folder, *prefixes)
    lines = corpus.text.with_name(f"{corpus.text.name}.test.de").read_text().splitlines()
    return Text(folder, sum(len(line.split()) + 1 for line in lines))
