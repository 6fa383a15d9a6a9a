"""Write the report: verdicts on the papers' claims, quality over cost, all results beside the papers', and more.

    python recipes/report.py FOLDER

Writes FOLDER/report.md and FOLDER/report.html, a single page that needs no other files and no network. The report is
assembled from files of the repository, most of them generated: README.md, docs, recipes/README.md, CLAIMS.md,
RESULTS.md and their pictures.
"""

import argparse
import base64
import html
import mimetypes
import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import markdown
from markdown.treeprocessors import Treeprocessor

sys.path.insert(0, str(Path(__file__).resolve().parent / "records"))

from experiments import EXPERIMENTS  # noqa: E402
from layout import anchor  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ("ringformer", "sret", "kausik", "takase", "ilr")
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#:]+)(\))")  # a link to a file, not to a URL or a heading
ADDRESS = re.compile(r"(https?:|mailto:|[^:]*$)", re.IGNORECASE)  # a safe scheme, or none: a file
TITLE = "Recurrent transformers for fairseq and timm: the report"

STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
QUALITY = """\
All rows of a task were trained in the same way on the same amount of data. Open circles are models without sharing,
filled circles run blocks several times; bars are 95 % intervals over seeds, if there are several. Operations are for a
forward pass: on a pair of sentences of 32 tokens, on one token of a text, on 10 seconds of speech, on an image. The
numbers are in `recipes/quality/quality.csv`."""
VERDICTS = ("confirmed", "contradicted", "undecided")


def between(text: str, begin: str, end: str) -> str:
    """The text between two marks.

    Raises:
        ValueError: if a mark is missing.
    """
    for mark in (begin, end):
        if mark not in text:
            raise ValueError(f"{mark!r}: not found")
    return text.split(begin, 1)[1].split(end, 1)[0].strip()


def deeper(text: str, levels: int) -> str:
    """Demotes the headings of Markdown by some levels; code blocks are unchanged."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"^(#+ )", "#" * levels + r"\1", part, flags=re.MULTILINE) for part in parts[::2]]
    return "".join(parts)


def moved(text: str, home: Path, target: Path) -> str:
    """Rewrites the relative links of Markdown for a move from the folder `home` to `target`."""
    return LINK.sub(lambda link: link[1] + os.path.relpath(home / link[2], target) + link[3], text)


def part(path: Path, target: Path) -> str:
    """A Markdown file as a part of the report: without comments, headings demoted by two levels, links rewritten."""
    text = re.sub(r"<!--.*?-->\n?", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return deeper(moved(text, path.parent, target), 2).strip()


def architectures(models: str) -> list[str]:
    """The generated tables of docs/models.md."""
    tables = ["## Architectures"]
    for name in re.findall(r"<!-- (.+?): begin -->", models):
        tables += [
            f"### {name[0].upper()}{name[1:]}",
            between(models, f"<!-- {name}: begin -->", f"<!-- {name}: end -->"),
        ]
    return tables


def internal(text: str) -> str:
    """Rewrites links to the tables in RESULTS.md to the same tables in the report."""
    return re.sub(r"\]\(\w+/RESULTS\.md#", "](#", text)


def pictures(target: Path) -> list[str]:
    """The section on quality over stored parameters and over operations, with two pictures per task."""
    folder = os.path.relpath(ROOT / "recipes" / "quality", target)
    lines = ["## Quality over size and over work", QUALITY]
    for experiment in EXPERIMENTS:
        caption = f"{experiment.title}: {experiment.metric} ({experiment.better} is better) over"
        images = [
            f"![{caption} {cost}]({folder}/{experiment.task}-{cost}.svg)" for cost in ("parameters", "operations")
        ]
        lines += [f"### {experiment.title}", "\n".join(images)]
    return lines


def report(target: Path) -> str:
    """The full report as Markdown for the target folder."""
    recipes, docs = ROOT / "recipes", ROOT / "docs"
    claims = (recipes / "CLAIMS.md").read_text(encoding="utf-8")
    tables = (recipes / "README.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    models = (docs / "models.md").read_text(encoding="utf-8")
    results = dict.fromkeys([*PAPERS, *sorted(path.parent.name for path in recipes.glob("*/RESULTS.md"))])
    sections = [
        f"# {TITLE}",
        between(claims, "# What the papers claim", "<!-- overview: begin -->"),
        internal(between(claims, "<!-- overview: begin -->", "<!-- overview: end -->")),
        *pictures(target),
        "## The papers' tables with our results",
        between(tables, "## The tables", "<!-- rows: begin -->"),
        *(part(recipes / name / "RESULTS.md", target) for name in results),
        "## The claims in detail",
        internal(deeper(claims.split("<!-- overview: end -->")[1], 1).strip()),
        "## The project",
        moved(between(readme, "# Recurrent transformers for fairseq and timm", "## Two"), ROOT, target),
        *architectures(moved(models, docs, target)),
        "## Inside trained models",
        part(recipes / "analysis" / "README.md", target),
        part(docs / "speed.md", target).replace("### Speed", "## Speed", 1),
        "```sh\nmake bench\n```",
    ]
    return "\n\n".join(sections) + "\n"


def inline(page: str, folder: Path) -> str:
    """Embeds the pictures of an HTML page as data URIs; their paths are relative to the folder."""

    def data(attribute: re.Match) -> str:
        path = folder / attribute[1]
        kind = mimetypes.guess_type(path.name)[0]
        return f'src="data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"'

    return re.sub(r'src="([^":]+)"', data, page)


class Harmless(markdown.Extension, Treeprocessor):
    """Escapes raw HTML, and removes links and pictures with any scheme other than http, https and mailto."""

    def extendMarkdown(self, md: markdown.Markdown) -> None:
        self.md = md
        md.preprocessors.deregister("html_block")
        md.inlinePatterns.deregister("html")
        md.treeprocessors.register(self, "harmless", 0)  # runs after all others

    def run(self, root: ElementTree.Element) -> None:
        for element in root.iter():
            for name in ("href", "src"):
                if not ADDRESS.match(html.unescape(element.get(name, ""))):
                    del element.attrib[name]


def page(text: str, folder: Path) -> str:
    """The report as one HTML page."""
    converter = markdown.Markdown(
        extensions=["tables", "fenced_code", "toc", Harmless()],
        extension_configs={"toc": {"toc_depth": "2-3", "slugify": lambda title, _: anchor(title)}},
    )
    body = converter.convert(text)
    body = body.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")
    body = re.sub(r"<td>.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), body)  # GitHub needs \| in code in tables
    body = body.replace('class="scroll"', 'class="scroll claims"', 1)  # the first table
    body = re.sub(rf"<td>({'|'.join(VERDICTS)})", r'<td class="\1">\1', body)
    head, rest = body.split("</h1>", 1)
    contents = f"<details><summary>Contents</summary><nav>{converter.toc}</nav></details>"
    return inline(
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{TITLE}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{head}</h1>\n{contents}\n{rest}\n</body>\n</html>\n",
        folder,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = report(folder)
        (folder / "report.md").write_text(text, encoding="utf-8")
        (folder / "report.html").write_text(page(text, folder), encoding="utf-8")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"wrote {folder / 'report.html'}")


if __name__ == "__main__":
    main()
