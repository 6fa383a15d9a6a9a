"""Markdown: tables, and the anchors of headings."""

import re


def table(titles: list[str], lines: list[list[str]]) -> list[str]:
    """The lines of a Markdown table."""
    header, *body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in [titles, *lines]]
    return [header, "|---" * len(titles) + "|", *body]


def without_empty_columns(titles: list[str], lines: list[list[str]]) -> list[str]:
    """The same, without the columns that are empty in every line."""
    kept = [index for index in range(len(titles)) if any(line[index] for line in lines)]
    return table([titles[index] for index in kept], [[line[index] for index in kept] for line in lines])


def anchor(title: str) -> str:
    """The anchor of a heading, by GitHub's rule."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
