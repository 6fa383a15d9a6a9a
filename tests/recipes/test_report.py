"""The report: one page that holds everything, looked at by a browser."""

import base64
import re
import shutil
from pathlib import Path

import pytest

from tests.support import cli

pytest.importorskip("markdown")

import report  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the report has been written."""
    target = tmp_path_factory.mktemp("report")
    cli.python(cli.REPOSITORY / "recipes" / "report.py", target)
    return target


@pytest.fixture(scope="module")
def text(folder) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def html(folder) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_every_generated_table_is_in_it(text):
    source = (cli.REPOSITORY / "docs" / "models.md").read_text(encoding="utf-8")
    marked = re.findall(r"^<!-- .*?: begin -->\n(.*?)^<!-- .*?: end -->$", source, flags=re.MULTILINE | re.DOTALL)
    assert marked
    assert all(table in text for table in marked)


def test_every_recorded_result_and_its_command_is_in_it(text):
    for path in (cli.REPOSITORY / "recipes").glob("*/RESULTS.md"):
        results = path.read_text(encoding="utf-8")
        for block in re.findall(r"^```sh\n.*?^```$", results, flags=re.MULTILINE | re.DOTALL):
            assert block in text
        for row in re.findall(r"^\| .*\|$", results, flags=re.MULTILINE):
            assert row in text


def test_the_claims_come_first_each_with_its_verdict_and_links_that_lead_somewhere(html):
    first = html.split("</nav>")[1].split("</table>")[0]
    claims = (cli.REPOSITORY / "recipes" / "CLAIMS.md").read_text(encoding="utf-8")
    verdicts = re.findall(r"^\*\*(Confirmed|Contradicted|Undecided)\b", claims, flags=re.MULTILINE)
    shown = re.findall(r'<td class="(confirmed|contradicted|undecided)">', first)
    assert sorted(shown) == sorted(verdict.lower() for verdict in verdicts)
    ids = set(re.findall(r' id="([^"]+)"', html))
    lines = [re.findall(r'href="#([^"]+)"', line) for line in first.split("<tr>")]
    assert [len(links) for links in lines if links] == [2] * len(shown)  # its description, and the table of its rows
    assert {link for links in lines for link in links} <= ids
    assert set(re.findall(r'href="#([^"]+)"', html)) <= ids


def test_links_of_the_markdown_lead_somewhere(text, folder):
    links = [found[1] for found in report.LINK.findall(text)]
    assert links
    assert not [link for link in links if not (folder / link).exists()]


def test_the_page_is_self_contained(html):
    assert not re.findall(r'(?:src|href)="(?!data:|https?:|#)(?!\.\.)[^"]*"', html)
    assert "<script" not in html
    assert not re.findall(r'<(?:link|img)[^>]+(?:src|href)="(?!data:)', html)
    pictures = re.findall(r'src="data:(image/\w+)(?:\+xml)?;base64,([^"]+)"', html)
    assert pictures
    assert all(len(base64.b64decode(data)) > 500 for _, data in pictures)


def test_no_script_in_a_text_runs_in_the_page(tmp_path):
    text = """# Title

<script>alert(1)</script> and <img src=x onerror=alert(1)> in a line

<div onclick="alert(1)">

[a](javascript:alert(1)) [b](JavaScript:alert(1)) [c](java&#115;cript:alert(1)) [d](data:text/html,x) [e](https://e.org)

| a | b |
|---|---|
| <script>alert(2)</script> | [f](file.md) |

```sh
echo "<script>"
```
"""
    made = report.page(text, tmp_path).split("</nav>")[1]
    assert not re.findall(r"<(?:script|img|div)(?! class=.scroll)", made)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in made
    assert re.findall(r'href="([^"]*)"', made) == ["https://e.org", "file.md"]
    assert "javascript:" not in made.lower()


def test_headings_move_and_code_stays():
    assert report.deeper("# a\n```sh\n# no heading\n```\n## b", 2) == "### a\n```sh\n# no heading\n```\n#### b"
    with pytest.raises(ValueError, match="'<!-- x -->': not found"):
        report.between("text", "<!-- x -->", "text")


@pytest.fixture(scope="module")
def browser():
    """Chromium without a screen."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium on the path")
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        running = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield running
        running.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_a_browser_shows_tables_and_pictures(browser, folder, html, width):
    page, requests, errors = browser.new_page(viewport={"width": width, "height": 800}), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((folder / "report.html").as_uri())
    assert errors == []
    assert not [url for url in requests if not url.startswith(("file:", "data:"))]
    assert page.locator("h1").count() == 1
    assert page.locator("table").count() == html.count("<table>") > 10
    assert page.locator("table", has_text="ringformer_base").first.is_visible()
    loaded = page.eval_on_selector_all(
        "img", "images => images.map(image => image.complete && image.naturalWidth > 99)"
    )
    assert loaded
    assert all(loaded)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width, "the page scrolls sideways"
    assert page.eval_on_selector("table", "table => table.getBoundingClientRect().height") > 100
    links = page.eval_on_selector_all("nav a", "found => found.map(link => link.getAttribute('href').slice(1))")
    assert links
    assert all(page.evaluate("id => document.getElementById(id) !== null", link) for link in links)
    page.close()
