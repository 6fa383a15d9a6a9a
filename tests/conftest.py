"""Fixtures that several test files share: one small corpus, its binary form, and one trained checkpoint a session."""

import gc
import importlib
import logging
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import pytest

from tests.support import cli, small_corpus, stored

# transformers and peft import torchaudio where there is one, and fail where it was built for another torch. What has
# imported transformers before remembers that there is one, so it is hidden before all else.
try:
    import torchaudio  # noqa: F401
except (ImportError, OSError, RuntimeError):
    sys.modules["torchaudio"] = None

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
SENTENCES = {"train": 203, "valid": 37, "test": 1001}  # none a multiple of 8


def pytest_collection_finish() -> None:
    """Looks for no garbage among modules and tests, which stay: a full pass over them takes a quarter of a second."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow what begins with a training, and all but the first model of each kind of a test over all models.

    Files with slow tests come first, so that no core is idle at the end.
    """
    tried = set()
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        model = next((given[name] for name in ("arch", "case", "structure", "name") if name in given), None)
        if model is not None and (kind := cases().kind(model)):
            of_a_kind = item.path, item.originalname, kind
            if of_a_kind in tried:
                item.add_marker(pytest.mark.slow)
            tried.add(of_a_kind)
        if "trained" in getattr(item, "fixturenames", ()) and "trained" not in given:
            item.add_marker(pytest.mark.slow)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def cases() -> ModuleType:
    """tests/support/cases.py, which imports fairseq and timm."""
    return importlib.import_module("tests.support.cases")


def pytest_sessionfinish() -> None:
    """What a model logs as the interpreter ends would find the streams of the tests closed, and say so at length."""
    logging.raiseExceptions = False


class Corpus(NamedTuple):
    """A corpus and its size.

    text: prefix of the raw files, ``{text}.{split}.{language}``.
    data: the folder that fairseq-preprocess has written.
    sentences: number of sentences of each split.
    """

    text: Path
    data: Path
    sentences: dict[str, int]


def write_corpus(text: Path) -> None:
    """Write one to four number words a line, beside their translation with each word said three times."""
    chance = random.Random(0)
    for split, count in SENTENCES.items():
        source = [chance.choices(list(WORDS), k=chance.randint(1, 4)) for _ in range(count)]
        target = [[WORDS[word] for word in line for _ in range(3)] for line in source]
        for language, lines in zip(("en", "de"), (source, target), strict=True):
            path = text.with_name(f"{text.name}.{split}.{language}")
            path.write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A corpus of number words, preprocessed by the real command line."""
    folder = tmp_path_factory.mktemp("corpus")
    text, data = folder / "numbers", folder / "data"
    write_corpus(text)
    prefixes = [argument for split in SENTENCES for argument in (f"--{split}pref", f"{text}.{split}")]
    flags = ["--source-lang", "en", "--target-lang", "de", "--joined-dictionary", "--destdir", data, *prefixes]
    cli.preprocess(*flags)
    return Corpus(text, data, SENTENCES)


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of earlier versions, and their corpus in its folder `data`."""
    folder = tmp_path_factory.mktemp("earlier")
    stored.extract(folder)
    (folder / "data").mkdir()
    small_corpus.write(folder / "data")
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of generated images, SPLIT/COLOUR/NUMBER.png."""
    folder = tmp_path_factory.mktemp("images")
    importlib.import_module("tests.support.image_training").write_images(folder)
    return folder


@pytest.fixture
def rejected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """Calls a command's main function with words that it must reject as argparse does; returns what it says."""

    def call(main: Callable, *words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["command", *map(str, words)])
        with pytest.raises(SystemExit, match="^2$"):
            main()
        return capsys.readouterr().err

    return call


class Training(NamedTuple):
    """A finished training.

    folder: its checkpoints: of every epoch, of every tenth update, ``checkpoint_last.pt`` and ``checkpoint_best.pt``.
    flags: its flags beside those of ``cli.train_command``.
    log: what it printed.
    """

    folder: Path
    flags: list[str]
    log: str


@pytest.fixture(scope="session")
def trained(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Three epochs with BLEU after each, with a data worker."""
    folder = tmp_path_factory.mktemp("trained")
    flags = [
        *("--max-epoch", "3", "--batch-size", "16", "--dropout", "0.1", "--update-epoch-batch-itr", "True"),
        *("--save-interval-updates", "10", "--validate-interval-updates", "1000"),
        *("--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 15}', "--eval-bleu-detok", "space"),
        *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric", *cli.WORKER),
    ]
    return Training(folder, flags, cli.train(corpus.data, folder, *flags))
