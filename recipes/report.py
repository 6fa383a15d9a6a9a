"""Write the report: what became of the papers' claims, quality over cost, every result beside its paper's, all else.

    python recipes/report.py FOLDER

FOLDER gets report.md and report.html, a single page that needs no other file and no network. All of it comes from files
of the repository, which have their own generators: README.md and docs, recipes/README.md, RESULTS.md and its pictures.
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
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#:]+)(\))")  # of a file beside the text, no address and no heading
ADDRESS = re.compile(r"(https?:|mailto:|[^:]*$)", re.IGNORECASE)  # of the web, or without a scheme: a file
TITLE = "Recurrent transformers for fairseq and timm: the report"

STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
QUALITY = """\
Rows of one task were trained alike, on as much data. Open circles share nothing, full ones run blocks several times;
bars are 95 % intervals over the seeds, where there are several. Operations are those of a forward pass: of two
sentences of 32 tokens, of a token of a text, of 10 seconds of speech, of an image. The numbers are in
`recipes/quality/quality.csv`."""
VERDICTS = ("confirmed", "contradicted", "undecided")


def between(text: str, begin: str, end: str) -> str:
    """What stands between two marks.

    Raises:
        ValueError: if one of them is missing.
    """
    for mark in (begin, end):
        if mark not in text:
            raise ValueError(f"{mark!r}: not found")
    return text.split(begin, 1)[1].split(end, 1)[0].strip()


def deeper(text: str, levels: int) -> str:
    """Markdown whose headings stand some levels below; lines of code stay as they are."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"^(#+ )", "#" * levels + r"\1", part, flags=re.MULTILINE) for part in parts[::2]]
    return "".join(parts)


def moved(text: str, home: Path, target: Path) -> str:
    """Markdown of one folder with its links as they have to be in another."""
    return LINK.sub(lambda found: found[1] + os.path.relpath(home / found[2], target) + found[3], text)


def part(path: Path, target: Path) -> str:
    """A file's text as a part of the report: without remarks, headings one level below, links from the new place."""
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


def here(text: str) -> str:
    """Markdown whose links to tables of results lead to those in the report."""
    return re.sub(r"\]\(\w+/RESULTS\.md#", "](#", text)


def pictures(target: Path) -> list[str]:
    """Quality over stored parameters and over operations, task by task."""
    folder = os.path.relpath(ROOT / "recipes" / "quality", target)
    lines = ["## Quality over size and over work", QUALITY]
    for experiment in EXPERIMENTS:
        alike = f"{experiment.title}: {experiment.metric} ({experiment.better} is better) over"
        drawn = [f"![{alike} {cost}]({folder}/{experiment.task}-{cost}.svg)" for cost in ("parameters", "operations")]
        lines += [f"### {experiment.title}", "\n".join(drawn)]
    return lines


def report(target: Path) -> str:
    """The whole report as Markdown, to be written into the target folder."""
    recipes, docs = ROOT / "recipes", ROOT / "docs"
    claims = (recipes / "CLAIMS.md").read_text(encoding="utf-8")
    tables = (recipes / "README.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    corpora = sorted(path.parent.name for path in recipes.glob("*/RESULTS.md"))
    lines = [f"# {TITLE}", between(claims, "# What the papers claim", "<!-- overview: begin -->")]
    lines += [here(between(claims, "<!-- overview: begin -->", "<!-- overview: end -->"))]
    lines += pictures(target)
    lines += ["## The papers' tables, with ours beside them", between(tables, "## The tables", "<!-- rows: begin -->")]
    lines += [part(recipes / name / "RESULTS.md", target) for name in dict.fromkeys([*PAPERS, *corpora])]
    lines += ["## The claims, one by one", here(deeper(claims.split("<!-- overview: end -->")[1], 1).strip())]
    lines += [
        "## What there is",
        moved(between(readme, "# Recurrent transformers for fairseq and timm", "## Two"), ROOT, target),
    ]
    lines += architectures(moved((docs / "models.md").read_text(encoding="utf-8"), docs, target))
    lines += ["## Inside trained models", part(recipes / "analysis" / "README.md", target)]
    lines += [part(docs / "speed.md", target).replace("### Speed", "## Speed", 1)]
    lines += ["```sh\nmake bench\n```"]
    return "\n\n".join(lines) + "\n"


def inline(page: str, folder: Path) -> str:
    """A page whose pictures lie within it."""

    def data(found: re.Match) -> str:
        path = folder / found[1]
        kind = mimetypes.guess_type(path.name)[0]
        return f'src="data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"'

    return re.sub(r'src="([^":]+)"', data, page)


class Harmless(markdown.Extension, Treeprocessor):
    """Raw HTML of a text is shown as it is written, and links and pictures lead to files and web pages alone."""

    def extendMarkdown(self, md: markdown.Markdown) -> None:
        self.md = md
        md.preprocessors.deregister("html_block")
        md.inlinePatterns.deregister("html")
        md.treeprocessors.register(self, "harmless", 0)  # after all others

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
    body = re.sub(r"<td>.*?</td>", lambda found: found[0].replace(r"\|", "|"), body)  # escaped in code for GitHub
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
    folder.mkdir(parents=True, exist_ok=True)
    text = report(folder)
    (folder / "report.md").write_text(text, encoding="utf-8")
    (folder / "report.html").write_text(page(text, folder), encoding="utf-8")
    print(f"wrote {folder / 'report.html'}")


if __name__ == "__main__":
    main()
