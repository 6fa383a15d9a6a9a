"""Write the report: every architecture, every result beside its paper's, pictures, speeds, and the command under each.

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
from pathlib import Path
from xml.etree import ElementTree

import markdown
from markdown.treeprocessors import Treeprocessor

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ("ringformer", "sret", "kausik", "takase", "ilr")
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#:]+)(\))")  # of a file beside the text, no address and no heading
ADDRESS = re.compile(r"(https?:|mailto:|[^:]*$)", re.IGNORECASE)  # of the web, or without a scheme: a file
TITLE = "Recurrent transformers for fairseq and timm: the report"

STYLE = """
:root { --ink: #1c1e21; --paper: #fff; --line: #d0d4da; --shade: #f4f5f7; --mark: #0b57a4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6ea; --paper: #15171a; --line: #3a3f46; --shade: #20242a; --mark: #7db4f0; }
  img { background: #fff; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1, h2, h3, h4 { line-height: 1.2; margin: 2rem 0 .6rem; }
h2 { border-top: 2px solid var(--line); padding-top: 1.4rem; }
a { color: var(--mark); }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { background: var(--shade); }
code, pre { background: var(--shade); border-radius: 4px; font: .85em/1.45 ui-monospace, monospace; }
code { padding: .1em .3em; }
td code { white-space: nowrap; }
pre { padding: .7rem; overflow-x: auto; }
pre code { padding: 0; }
img { max-width: 100%; height: auto; }
nav ul { padding-left: 1.2rem; }
"""


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


def report(target: Path) -> str:
    """The whole report as Markdown, to be written into the target folder."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    corpora = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/RESULTS.md"))
    folders = [*PAPERS, *(name for name in corpora if name not in PAPERS)]
    results = [ROOT / "recipes" / name / "RESULTS.md" for name in folders]
    pictures = ROOT / "recipes" / "analysis" / "README.md"
    lines = [
        f"# {TITLE}",
        moved(between(readme, "# Recurrent transformers for fairseq and timm", "## Two"), ROOT, target),
    ]
    docs = ROOT / "docs"
    lines += architectures(moved((docs / "models.md").read_text(encoding="utf-8"), docs, target))
    lines += ["## The papers' tables, with ours beside them", between(rows, "## The tables", "<!-- rows: begin -->")]
    lines += [part(path, target) for path in results if path.exists()]
    lines += [part(ROOT / "recipes" / "CLAIMS.md", target).replace("### What", "## What", 1)]
    if pictures.exists():
        lines += ["## Inside trained models", part(pictures, target)]
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
        extensions=["tables", "fenced_code", "toc", Harmless()], extension_configs={"toc": {"toc_depth": "2-3"}}
    )
    body = converter.convert(text)
    body = body.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    head, rest = body.split("</h1>", 1)
    contents = f"<nav>{converter.toc}</nav>"
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
