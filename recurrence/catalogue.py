"""Generated tables in documents: the lines between two marks are rewritten from the code."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Table:
    """A table in Markdown.

    Args:
        name: in its marks, `<!-- name: begin -->` and `<!-- name: end -->`.
        columns: titles; a colon at the end aligns the column to the right.
        rows: returns the cells of each row.
    """

    name: str
    columns: Sequence[str]
    rows: Callable[[], Iterable[Sequence[str]]]

    @property
    def marks(self) -> tuple[str, str]:
        """The lines before and after the table."""
        return f"<!-- {self.name}: begin -->", f"<!-- {self.name}: end -->"

    def render(self) -> str:
        """The table and its marks."""
        begin, end = self.marks
        titles = _line([title.removesuffix(":") for title in self.columns])
        rule = "|".join("---:" if title.endswith(":") else "---" for title in self.columns)
        return "\n".join([begin, titles, f"|{rule}|", *map(_line, self.rows()), end])

    def within(self, document: str) -> str:
        """The document with its table replaced.

        Raises:
            ValueError: if the marks are missing.
        """
        begin, end = self.marks
        if begin not in document or end not in document:
            raise ValueError(f"no table to replace: needs the lines {begin} and {end}")
        before, rest = document.split(begin, 1)
        return before + self.render() + rest.split(end, 1)[1]


def rewrite(program: str, *tables: Table) -> None:
    """A command line of this name that rewrites these tables in a document."""
    names = ", ".join(table.name for table in tables)
    parser = argparse.ArgumentParser(prog=program, description=f"Rewrites the generated tables of a document: {names}.")
    parser.add_argument("document", type=Path, help="a Markdown file that has the marks")
    path = parser.parse_args().document
    text = path.read_text(encoding="utf-8")
    for table in tables:
        text = table.within(text)
    path.write_text(text, encoding="utf-8")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
