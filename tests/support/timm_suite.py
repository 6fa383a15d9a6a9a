"""Runs timm's own tests of models on ours: `python -m tests.support.timm_suite [--models PATTERNS] [pytest arguments]`.

timm's tests are in its source distribution, not in its wheel. The installed version's is downloaded once, into the
environment. Its `tests/test_models.py` runs unchanged: it parametrizes its tests with `timm.list_models`, which is
replaced by a function that returns our models only.
"""

import argparse
import fnmatch
import functools
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
import timm
from timm.models import get_pretrained_cfg

from timm_plugin import FAMILIES, MODELS

FOLDER = Path(sys.prefix) / "share" / f"timm-{timm.__version__}"
# To two of the file's lists of families ours are added. For each, an entry that no other list has, and what is added:
# models whose `forward_features` returns tokens instead of a map, and modules that have `forward_intermediates`.
ADDED = {
    "vit_*": [name for name in MODELS if get_pretrained_cfg(name).pool_size is None],
    "vision_transformer": [family.__name__.rpartition(".")[2] for family in FAMILIES],
}


def list_models(selected: list[str], theirs: Any, *given: Any, **options: Any) -> list[str]:
    """The selected of our models among what timm's own function lists."""

    def extended(value: Any) -> Any:
        marker = next((marker for marker in ADDED if isinstance(value, list) and marker in value), None)
        return value if marker is None else [*value, *ADDED[marker]]

    found = theirs(*map(extended, given), **{name: extended(value) for name, value in options.items()})
    return [name for name in found if name.split(".")[0] in selected]


class OurModels:
    """pytest plugin that runs only tests parametrized with one of our models, and registers timm's markers."""

    def __init__(self, selected: list[str]):
        self.selected = selected

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "timeout(seconds): of pytest-timeout")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        def is_ours(item: pytest.Item) -> bool:
            return hasattr(item, "callspec") and item.callspec.params.get("model_name") in self.selected

        config.hook.pytest_deselected(items=[item for item in items if not is_ours(item)])
        items[:] = filter(is_ours, items)


def fetch() -> Path:
    """The installed version's `tests/test_models.py`, with timm's pyproject.toml two folders above.

    Raises:
        subprocess.CalledProcessError: if it is not in the environment and pip cannot download it.
    """
    test_file = FOLDER / "tests" / "test_models.py"
    if test_file.exists():
        return test_file
    with tempfile.TemporaryDirectory() as download:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "timm")
        subprocess.run((*pip, "--dest", download, f"timm=={timm.__version__}"), check=True, timeout=300)
        test_file.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(Path(download) / f"{FOLDER.name}.tar.gz") as archive:
            for path in ("pyproject.toml", "tests/test_models.py"):
                (FOLDER / path).write_bytes(archive.extractfile(f"{FOLDER.name}/{path}").read())
    return test_file


def main() -> int:
    """Runs timm's tests on our models and returns pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--models", default="*", help="patterns of names, separated by commas (default: all of ours)")
    options, arguments = parser.parse_known_args()
    os.environ.pop("GITHUB_ACTIONS", None)  # with which timm's file skips tests
    selected = [name for name in MODELS if any(fnmatch.fnmatch(name, part) for part in options.models.split(","))]
    timm.list_models = functools.partial(list_models, selected, timm.list_models)
    test_file = fetch()
    settings = ["--config-file", test_file.parents[1] / "pyproject.toml", "-p", "no:cacheprovider", "-q"]
    command = [*settings, *arguments, test_file]
    return pytest.main(list(map(str, command)), plugins=[OurModels(selected)])


if __name__ == "__main__":
    sys.exit(main())
