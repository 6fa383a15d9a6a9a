"""The page that pronounces words (docs/pronounce), in headless Chromium with onnxruntime-web from npm."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

pytest.importorskip("onnxscript")

from fairseq_plugin import convert, serve
from fairseq_plugin.models.ringformer import WEIGHTS
from tests.support import cli

PAGE = cli.REPOSITORY / "docs" / "pronounce"
SHIPPED = next(WEIGHTS.iterdir())
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]
TYPE = """
const input = document.getElementById('word');
input.value = arguments[0];
input.dispatchEvent(new Event('input'));
"""
STATE = "return [document.getElementById('status').textContent, document.getElementById('answers').innerText]"


@contextlib.contextmanager
def started(*command) -> Iterator[str]:
    """A server of HTTP on a free port, the last argument; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*map(str, command[:-1]), command[-1].format(port)], stdout=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def post(address: str, **values) -> object:
    """What a command of WebDriver answers."""
    request = urllib.request.Request(address, json.dumps(values).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["value"]


@contextlib.contextmanager
def browser() -> Iterator[str]:
    """The address of a session of WebDriver."""
    options = {"goog:chromeOptions": {"args": FLAGS, "binary": shutil.which("chromium")}}
    with started("chromedriver", "--port={}") as driver:
        session = f"{driver}/session/{post(f'{driver}/session', capabilities={'alwaysMatch': options})['sessionId']}"
        try:
            yield session
        finally:
            urllib.request.urlopen(urllib.request.Request(session, method="DELETE"), timeout=60)


def wait_for(session: str, pattern: str) -> tuple[str, str]:
    """The page's status, once it matches, and its answers."""
    for _ in range(600):
        status, answers = post(f"{session}/execute/sync", script=STATE, args=[])
        if re.search(pattern, status):
            return status, answers
        time.sleep(0.1)
    raise AssertionError(status)


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, ("chromium", "chromedriver", "npm"))), reason="needs chromium, chromedriver and npm"
)
def test_the_page_pronounces_what_one_types(tmp_path):
    for file in ("index.html", "package.json"):
        shutil.copyfile(PAGE / file, tmp_path / file)
    npm = subprocess.run(["npm", "install", "--ignore-scripts"], cwd=tmp_path, capture_output=True, timeout=300)
    if npm.returncode:
        pytest.skip("npm reaches no registry")
    model = tmp_path / "model"
    convert.main(["onnx", str(SHIPPED / "model.pt"), str(model), "--dictionary", str(SHIPPED)])
    words = ["euphemistic", "Tollbooth"]
    expected = serve.Model(model).translate([" ".join(word.lower()) for word in words], tokenized=True)
    serving = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "-d", tmp_path, "{}")
    with started(*serving) as site, browser() as session:
        post(f"{session}/url", url=f"{site}/index.html")
        status, _ = wait_for(session, "^Loaded: ")
        size = sum((model / name).stat().st_size for name in ("encoder.onnx", "decoder.onnx", "weights.bin"))
        assert int(re.search(r"([\d,]+) bytes of model", status)[1].replace(",", "")) in range(size, size + 2000)
        for word, phonemes in zip(words, expected, strict=True):
            before = post(f"{session}/execute/sync", script=STATE, args=[])[1]
            post(f"{session}/execute/sync", script=TYPE, args=[word])
            for _ in range(600):
                _, answers = wait_for(session, "Answered in")
                if answers != before:
                    break
            assert answers.splitlines()[0] == phonemes
