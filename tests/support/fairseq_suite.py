"""Runs fairseq's own tests without and with the plugin: `python -m tests.support.fairseq_suite CHECKOUT`.

The tests come from a checkout of fairseq; what they test is the installed fairseq. Prints how many pass in each file,
then which tests only the plugin breaks, which only it mends, and which fail in both cases. More options go to pytest.

Usage::

    python -m tests.support.fairseq_suite ../fairseq
    python -m tests.support.fairseq_suite ../fairseq --files 'test_train.py,speech/*' -k load
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree

from tests.support.cli import REPOSITORY

LINKED = ("examples", "scripts", "tests")  # not `fairseq`, which would hide the installed one
WITHOUT, WITH = (), ("-p", "fairseq_plugin")  # pytest imports the plugin before the tests
SECONDS = 900  # for one test; the slowest take more than a minute on a quiet core
PASSED = ""
Outcomes = dict[str, str]  # test -> the first line of its error, or PASSED; skipped tests are left out


def link_tests(checkout: Path, folder: Path) -> list[str]:
    """Links a checkout's tests, and what they import, into a folder; returns the test files, relative to `tests`.

    Raises:
        FileNotFoundError: if it is no checkout of fairseq.
    """
    for name in LINKED:
        (folder / name).symlink_to((checkout / name).resolve(strict=True))
    tests = folder / "tests"
    return sorted(str(path.relative_to(tests)) for path in tests.glob("**/test_*.py"))


def run(folder: Path, file: str, options: list[str]) -> Outcomes:
    """Runs a test file in its own process."""
    with tempfile.TemporaryDirectory() as results:
        report = Path(results, "report.xml")
        settings = ("-q", "-p", "no:cacheprovider", "--timeout", str(SECONDS), f"--junit-xml={report}")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *settings, *options, f"tests/{file}"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if not report.exists():
            return {file: f"exit status {done.returncode}: {done.stdout.strip()[-200:]}"}
        return dict(outcomes(ElementTree.parse(report)))


def outcomes(report: ElementTree.ElementTree) -> Iterator[tuple[str, str]]:
    """Each test of pytest's report in JUnit's format, with the first line of its error, or PASSED."""
    for case in report.iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        errors = [child for child in case if child.tag in ("error", "failure")]
        if errors:
            yield name, errors[0].get("message").split("\n")[0][:200]
        elif case.find("skipped") is None:
            yield name, PASSED


def row(name: str, *found: Outcomes) -> str:
    """A line of the table: how many tests pass without and with the plugin."""
    return f"| {' | '.join([name, *(f'{list(each.values()).count(PASSED)} of {len(each)}' for each in found)])} |"


def main() -> int:
    """Prints the comparison; returns 1 if a test fails only with the plugin."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("checkout", type=Path, help="folder of a checkout of fairseq")
    parser.add_argument("--files", default="*", help="patterns of files in its folder tests, separated by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once (default: one per core)")
    given, options = parser.parse_known_args()
    # A shell's background process ignores Ctrl-C, and so would the test that waits for one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    without: Outcomes = {}
    with_plugin: Outcomes = {}
    print("| test file | without the plugin | with it |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        patterns = given.files.split(",")
        found = link_tests(given.checkout, Path(folder))
        files = [file for file in found if any(fnmatch(file, pattern) for pattern in patterns)]

        def run_both(file: str) -> list[Outcomes]:
            return [run(Path(folder), file, [*plugin, *options]) for plugin in (WITHOUT, WITH)]

        for file, both in zip(files, pool.map(run_both, files), strict=True):
            without |= both[0]
            with_plugin |= both[1]
            print(row(file, *both), flush=True)
    print(row("all", without, with_plugin))
    failing = {name: error for name, error in with_plugin.items() if error}
    broken = {name: error for name, error in failing.items() if not without.get(name)}
    mended = {name: error for name, error in without.items() if error and with_plugin.get(name) == PASSED}
    both = {name: failing[name] for name in failing.keys() - broken.keys()}
    titles = ("only the plugin breaks", "only the plugin mends", "fail with and without it")
    for title, tests in zip(titles, (broken, mended, both)):
        print(f"\n{title}: {len(tests) or 'none'}", *(f"  {name}: {error}" for name, error in tests.items()), sep="\n")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
