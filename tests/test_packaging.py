"""The distribution: the wheel works outside the checkout, its dependencies are declared, make lists its targets."""

import ast
import re
import shutil
import sys
import tarfile
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from tests.support import cli

PACKAGES = ("recurrence", "fairseq_repairs", "fairseq_plugin", "timm_plugin")
HOST = {"fairseq", "omegaconf", "bitarray"}  # fairseq, and what it requires itself


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files from which the distribution is built, so that the build does not change the checkout."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(cli.REPOSITORY / name, folder)
    for name in (*PACKAGES, "tests", "recipes", "benchmarks", "docs"):
        shutil.copytree(cli.REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    cli.run(*pip, "--wheel-dir", target, source)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed."""
    folder = tmp_path_factory.mktemp("site")
    cli.run(sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", folder, wheel)
    return folder


def metadata(site: Path):
    """Metadata of the installed distribution."""
    (info,) = site.glob("*.dist-info")
    return PathDistribution(info).metadata


def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = {
        path.relative_to(cli.REPOSITORY).as_posix()
        for package in PACKAGES
        for pattern in ("*.py", "*.yaml", "README.md", "start_scripts/*.sh", "weights/**/*")
        for path in (cli.REPOSITORY / package).rglob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert ours
    assert held == ours


def test_the_licence_goes_with_it(wheel, source, site, tmp_path):
    licence = (cli.REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    with zipfile.ZipFile(wheel) as held:
        (name,) = (name for name in held.namelist() if name.endswith("LICENSE"))
        assert held.read(name).decode() == licence
    build = (
        "import os, sys; os.chdir(sys.argv[1]); from setuptools import build_meta; build_meta.build_sdist(sys.argv[2])"
    )
    cli.run(sys.executable, "-c", build, source, tmp_path)
    (packed,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as held:
        assert f"{packed.name.removesuffix('.tar.gz')}/LICENSE" in held.getnames()
    assert metadata(site)["License"] == "MIT"
    assert metadata(site)["Author"] == "the recurrent-transformers authors"


@pytest.mark.slow
def test_fairseq_trains_with_the_installed_plugin(site, corpus, tmp_path):
    away = tmp_path / "away"
    away.mkdir()
    environment = {"PYTHONPATH": str(site), "PATH": cli.search_path()}
    run = ["bash", "-c", f'cd "{away}" && python "$@"', "bash"]
    plugin = cli.run(*run, "-m", "fairseq_plugin", env=environment).splitlines()[-1]
    assert Path(plugin) == (site / "fairseq_plugin").resolve()
    script = "import recurrence, sys; sys.argv[0] = 'fairseq-train'; print('core:', recurrence.__file__); "
    script += "from fairseq_cli.train import cli_main; cli_main()"
    output = cli.run(
        *(*run, "-c", script, corpus.data, "--user-dir", plugin, "--arch", "ringformer_tiny"),
        *("--encoder-layers", "1", "--decoder-layers", "1", "--optimizer", "adam", "--lr", "0.001"),
        *("--max-update", "1", "--max-sentences", "4", "--no-save", "--disable-validation", "--cpu"),
        env=environment,
    )
    assert f"core: {site}" in output
    assert "num_updates 1 " in output


def imported(package: str) -> set[str]:
    """Top-level names of what a package imports, the standard library of Python 3.11 and our own packages apart."""
    names = set()
    for path in (cli.REPOSITORY / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"tomllib"} - set(PACKAGES)


def test_every_import_is_declared(site):
    required = metadata(site).get_all("Requires-Dist")
    declared = {re.match(r"[\w-]+", line)[0] for line in required if "extra ==" not in line}
    tools = {"fvcore", "matplotlib", "pandas", "scipy", "tabulate"}  # extras, which name what is missing
    graphs = {"onnx", "onnxruntime", "onnxscript"}  # the extra onnx, which the commands that need it name
    assert imported("recurrence") <= declared | tools | graphs
    speech = {"kaldi_native_fbank", "scipy", "soundfile", "torchaudio"}  # an extra, and what it takes the place of
    images = {"PIL", "torchvision"}  # the extra timm has them; one task reads images
    texts = {"safetensors", "sentencepiece", "tokenizers"}  # the extra fairseq has them
    assert imported("fairseq_repairs") <= declared | HOST | {"fairseq_cli"} | speech
    assert imported("fairseq_plugin") <= declared | HOST | {"fairseq_cli"} | speech | images | texts | graphs
    of_timm = {re.match(r"[\w-]+", line)[0] for line in required if re.search("extra == .timm", line)}
    assert imported("timm_plugin") <= declared | of_timm | {"PIL", "safetensors"} | tools | graphs  # timm has these two
    demo = {re.match(r"[\w-]+", line)[0] for line in required if re.search("extra == .demo", line)}
    records = {path.stem for path in (cli.REPOSITORY / "recipes" / "records").iterdir()}
    assert imported("recipes/records") <= declared | demo | records | {"fairseq", "timm"}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_help_lists_every_target():
    makefile = (cli.REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    told = set(re.findall(r"^make ([\w-]+)", cli.run("make", "-C", cli.REPOSITORY, "help"), re.MULTILINE))
    assert {"demo", "test", "lint", "bench", "test-official"} <= told
    assert told == targets - {"help"}


def test_continuous_integration_checks_style_and_then_runs_the_tests():
    script = cli.REPOSITORY / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert script.read_text().rstrip().endswith("make lint && exec make test")
