"""What the tests of the recipes share."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Restores the environment, which a table's script sets for its commands, also where a test calls it in process."""
    with mock.patch.dict(os.environ):
        yield
