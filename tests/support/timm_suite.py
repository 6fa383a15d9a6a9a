"""Runs timm's own tests of models on ours: `python -m tests.support.timm_suite [--models PATTERNS] [pytest arguments]`.

timm's tests are in its source distribution, not in its wheel. The installed version's is downloaded once, into the
environment, and its `tests/test_models.py` runs unchanged, see :mod:`tests.support.timm_backend`.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
import timm

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = Path(sys.prefix) / "share" / f"timm-{timm.__version__}"


class Unavailable(Exception):
    """timm's source distribution cannot be downloaded."""


class OurModels:
    """pytest plugin that runs only tests parametrized with one of our models, and registers timm's markers."""

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "timeout(seconds): of pytest-timeout")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        from tests.support.timm_backend import SELECTED

        def is_ours(item: pytest.Item) -> bool:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            return parameters.get("model_name") in SELECTED

        config.hook.pytest_deselected(items=[item for item in items if not is_ours(item)])
        items[:] = filter(is_ours, items)


def fetch(folder: Path = FOLDER) -> Path:
    """The installed version's `tests/test_models.py`, with timm's pyproject.toml two folders above.

    Raises:
        Unavailable: if it is not in the environment and pip cannot download it.
    """
    test_file = folder / "tests" / "test_models.py"
    if test_file.exists():
        return test_file
    name = f"timm-{timm.__version__}"
    with tempfile.TemporaryDirectory() as download:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "timm"]
        done = subprocess.run(
            [*pip, "--dest", download, f"timm=={timm.__version__}"], text=True, capture_output=True, timeout=300
        )
        if done.returncode:
            raise Unavailable(f"timm's source distribution with its tests: {done.stderr.strip()[-500:]}")
        with tarfile.open(Path(download) / f"{name}.tar.gz") as archive:
            texts = {
                path: archive.extractfile(f"{name}/{path}").read()
                for path in ("pyproject.toml", "tests/test_models.py")
            }
    test_file.parent.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        (folder / path).write_bytes(text)
    return test_file


def main() -> int:
    """Runs timm's tests on our models and returns pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--models", default="*", help="patterns of names, separated by commas (default: all of ours)")
    options, arguments = parser.parse_known_args()
    os.environ.pop("GITHUB_ACTIONS", None)  # with which timm's file skips tests
    os.environ.update(TORCH_BACKEND="tests.support.timm_backend", TIMM_PLUGIN_MODELS=options.models)
    try:
        test_file = fetch()
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 3
    settings = ["--config-file", test_file.parents[1] / "pyproject.toml"]
    command = [*settings, "-p", "no:cacheprovider", "-q", *arguments, test_file]
    return pytest.main(list(map(str, command)), plugins=[OurModels()])


if __name__ == "__main__":
    sys.exit(main())
