"""Examples of the pages, and the files of this repository that a call crosses."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from tests.support.cli import REPOSITORY

GUIDE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
PACKAGES = ("recurrence", "fairseq_plugin", "timm_plugin")


def example(page: str, mark: str) -> str:
    """The one example in Python of a page in docs/ that holds a mark."""
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", text, re.S) if mark in code)
    return code


@contextmanager
def imported_example(files: dict[str, str]) -> Iterator[None]:
    """Imports the guide's files as if they stood where it says; `files` has a mark of each by the module's name."""
    try:
        for name, mark in files.items():
            module = sys.modules[name] = ModuleType(name)
            exec(example("extending.md", mark), vars(module))
        yield
    finally:
        for name in files:
            sys.modules.pop(name, None)


def files_crossed(call: Callable[[], object]) -> set[str]:
    """The files of the packages whose functions run in a call, relative to the repository."""
    files = set()

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(REPOSITORY):
            files.add(path.relative_to(REPOSITORY))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return {path.as_posix() for path in files if path.parts[0] in PACKAGES}
