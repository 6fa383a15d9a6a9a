"""Averages of what a run has spent, which the log tells when the interpreter ends."""

import atexit
import logging

logger = logging.getLogger(__name__)


class Tally:
    """A sum and how many entries it has.

    Args:
        report: what the log is to say in the end; {average} stands for the average.
    """

    def __init__(self, report: str):
        self.report = report
        self.total = self.entries = 0

    def add(self, total: int, entries: int) -> None:
        """Takes down that so many entries sum up to that much."""
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
