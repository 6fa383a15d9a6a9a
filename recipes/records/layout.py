"""Tables as Markdown, and what headings are called in addresses."""

import re


def table(titles: list[str], lines: list[list[str]]) -> list[str]:
    """A Markdown table."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in [titles, *lines]]
    return ["| " + " | ".join(line) + " |" for line in escaped[:1]] + [
        "|---" * len(titles) + "|",
        *("| " + " | ".join(line) + " |" for line in escaped[1:]),
    ]


def filled(titles: list[str], lines: list[list[str]]) -> list[str]:
    """The same without the columns that have nothing."""
    kept = [index for index in range(len(titles)) if any(line[index] for line in lines)]
    return table([titles[index] for index in kept], [[line[index] for index in kept] for line in lines])


def anchor(title: str) -> str:
    """What a heading is called in an address, by GitHub's rule."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
