"""Generated tables in documents: the lines between two marks."""

from collections.abc import Iterable, Sequence


def with_table(document: str, name: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The document with the table between `<!-- name: begin -->` and `<!-- name: end -->` replaced.

    Args:
        document: a text in Markdown.
        name: of the table.
        columns: titles; a colon at the end aligns the column to the right.
        rows: the cells of each row.
    """
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, rest = document.split(begin)
    rule = "|".join("---:" if title.endswith(":") else "---" for title in columns)
    table = [_line(title.removesuffix(":") for title in columns), f"|{rule}|", *map(_line, rows)]
    return before + begin + "\n".join(table) + "\n" + end + rest.split(end)[1]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
