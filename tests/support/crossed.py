"""The files of this repository that a call crosses."""

import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.cli import REPOSITORY

PACKAGES = ("recurrence", "fairseq_plugin", "timm_plugin")


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
