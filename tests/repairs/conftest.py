"""Fixtures of the tests of repairs: data, and fairseq's own models trained on them."""

import logging
from pathlib import Path

import pytest

from tests.support import upstream


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> dict[str, Path]:
    """The folder of each kind of data."""
    return {kind: write(tmp_path_factory.mktemp(kind)) for kind, write in upstream.WRITERS.items()}


@pytest.fixture(scope="session")
def trained_once(data, tmp_path_factory):
    """Trains a model for an epoch, once; returns its data and its checkpoint."""
    paths: dict[str, Path] = {}

    def train(model: str) -> tuple[Path, Path]:
        of_kind = data[upstream.KINDS.get(model, "text")]
        if model not in paths:
            paths[model] = upstream.run_training(model, of_kind, tmp_path_factory.mktemp(model))
        return of_kind, paths[model]

    return train


@pytest.fixture
def said(caplog) -> pytest.LogCaptureFixture:
    """What is logged, from INFO on."""
    caplog.set_level(logging.INFO)
    return caplog
