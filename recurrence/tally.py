"""Averages that are logged when the interpreter exits."""

import atexit
import logging

logger = logging.getLogger(__name__)


class Tally:
    """A sum and its number of entries.

    Args:
        report: the log message at exit; {average} stands for the average.
    """

    def __init__(self, report: str):
        self.report = report
        self.total = self.entries = 0

    def add(self, total: int, entries: int) -> None:
        """Adds `entries` entries whose sum is `total`."""
        if not self.entries:
            atexit.register(self.log)
        self.total, self.entries = self.total + total, self.entries + entries

    @property
    def average(self) -> float:
        """0 before there is any entry."""
        return self.total / max(1, self.entries)

    def log(self) -> None:
        """Writes the report."""
        logger.info(self.report.format(average=f"{self.average:.2f}"))
