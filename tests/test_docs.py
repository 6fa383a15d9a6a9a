"""README and docs: tables agree with the registries, and programs accept the commands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fairseq_plugin
import timm_plugin
from fairseq_plugin.build import architectures
from fairseq_plugin.models.ringformer import RingFormer
from recurrence.block import Shape
from tests.support import cli
from tests.support.recipes import PARSERS, parsed

ROOT = cli.REPOSITORY
DOCUMENTS = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in DOCUMENTS}
MODELS = TEXTS["docs/models.md"]
USER_DIR = str(Path(fairseq_plugin.__file__).parent)

sys.path.insert(0, str(ROOT / "docs"))

import models  # noqa: E402
import results  # noqa: E402


def fences(language: str) -> list:
    """Every example in a language, a test case named by its document."""
    return [
        pytest.param(example, id=f"{name}-{number}")
        for name, text in TEXTS.items()
        for number, example in enumerate(re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M), start=1)
    ]


SHELL, PYTHON = fences("sh"), fences("python")


def commands(program: str) -> list[list[str]]:
    """The argument lists with which a program is called in the shell examples."""
    lines = "\n".join(example.values[0] for example in SHELL).replace("\\\n", " ").splitlines()
    called = (
        shlex.split(line.replace("--user-dir fairseq_plugin", f"--user-dir {USER_DIR}"), comments=True)
        for line in lines
        if line.strip().startswith(program)
    )
    found = [words[1:] for words in called if words[:1] == [program]]
    if program == "fairseq-train":  # as torchrun starts it too
        started = [words for words in commands("torchrun") if "fairseq_cli.train" in words]
        found += [words[words.index("fairseq_cli.train") + 1 :] for words in started]
    return found


OF_TEXTS = ("architectures", "speech models", "language models")


@pytest.mark.parametrize("tables", [OF_TEXTS, pytest.param(("image models",), marks=pytest.mark.slow)])
def test_the_tables_of_models_are_up_to_date(tables):
    assert models.within(MODELS, *tables) == MODELS, "run: python docs/models.py"


def test_examples_score_words():
    """Not pieces."""
    scored = ("fairseq_plugin.compare", "fairseq_plugin.depth")
    found = [words for words in commands("python") if set(scored) & set(words) and "--task" not in words]
    assert found
    assert not [words for words in found if "--remove-bpe sentencepiece" not in " ".join(words)]


def test_every_model_has_a_row():
    assert {*architectures(), *timm_plugin.MODELS} <= set(re.findall(r"^\| `(\w+)` \|", MODELS, re.M))


def test_the_results_are_those_recorded():
    page = TEXTS["docs/which-model.md"]
    assert results.within(page) == page, "run: python docs/results.py"


def test_the_front_page_is_short():
    assert len(TEXTS["README.md"].splitlines()) <= 120
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", TEXTS["README.md"], flags=re.S)
    assert len(re.findall(r"\d+(?:[.,]\d+)*", prose)) <= 80
    pages = {f"docs/{path.name}" for path in ROOT.glob("docs/*.md")}
    assert pages <= set(re.findall(r"\]\(([^)#]+)\)", TEXTS["README.md"]))


@pytest.mark.parametrize("example", SHELL)
def test_shell_examples_parse(example):
    subprocess.run(["bash", "-n"], input=example, text=True, check=True)


@pytest.mark.parametrize("example", PYTHON)
def test_python_examples_compile(example):
    compile(example, "example", "exec")


def test_the_example_of_eight_bits_takes_a_hub_interface():
    pytest.importorskip("torchao")
    (example,) = (text.values[0] for text in PYTHON if "quantize_dynamic" in text.values[0])
    exec(example, dict(model=RingFormer.from_pretrained("ringformer_small.pronounce")))


@pytest.mark.parametrize("pre_norm", [False, True])
def test_the_block_of_the_guide_computes_its_equations(pre_norm):
    (example,) = (text.values[0] for text in PYTHON if "class ScaledBlock" in text.values[0])
    names: dict = {}
    exec(example, names)
    torch.manual_seed(0)
    loop = names["scaled"](Shape(8, 12, 2), 3, pre_norm=pre_norm).double()
    for parameter in loop.parameters():
        nn.init.normal_(parameter, std=0.5)
    x, block = torch.randn(2, 5, 8, dtype=torch.float64), loop.blocks[0]
    y = x
    for own in loop.own:
        for scale, run, norm in zip(own.scales, (block.self_attn, block.ffn), block.norms):
            y = y + scale * run(norm(y)) if pre_norm else norm(y + scale * run(y))
    torch.testing.assert_close(loop(x), y)


@pytest.mark.parametrize("program", PARSERS)
def test_commands_are_accepted(program):
    calls = commands(program)
    assert calls
    for arguments in calls:
        parsed(program, *arguments)


def test_examples_limit_the_checkpoints_they_keep():
    keeps = ("--keep-last-epochs", "--no-epoch-checkpoints")
    assert [call for call in commands("fairseq-train") if not set(keeps) & set(call)] == []


def test_examples_save_where_they_validate():
    """fairseq chooses checkpoint_best.pt among the validations at which it saves."""
    often = [call for call in commands("fairseq-train") if "--validate-interval-updates" in call]
    assert all("--save-interval-updates" in call for call in often)


def test_comparisons_have_folders_of_their_own():
    calls = [call for call in commands("python") if "fairseq_plugin.compare" in call]
    folders = [call[call.index("--output") + 1] for call in calls]
    assert len(set(folders)) == len(folders) > 1


def test_examples_do_not_resume_the_training_of_another():
    """The commands of README.md and docs/translation.md train one model."""
    folders = {call[call.index("--save-dir") + 1]: call[call.index("--arch") + 1] for call in commands("fairseq-train")}
    assert len(folders) == len(commands("fairseq-train")) - 1
    assert folders["checkpoints"] == "ringformer_base"


def test_examples_segment_raw_text():
    for call in commands("fairseq-interactive"):
        speech = "speech_to_text" in call
        assert speech or call[call.index("--bpe") + 1] == "sentencepiece"
        assert "--remove-bpe" not in call, "it would leave --bpe no blanks to join"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["python", "torchrun", "make"])
def test_our_programs_know_the_options(program):
    """Every option of every call of our own programs is in its help; every target is make's."""
    # Start programs of fairseq and timm, take the options of a trainer, or are part of an export.
    trainers = {"fairseq_cli.train", "timm_plugin.run", "fairseq_plugin.compare", "timm_plugin.compare"}
    others = {*trainers, "served/serve.py"}
    calls = [words for words in commands(program) if not others & set(words)]
    assert calls
    helps: dict[tuple, str] = {}
    subcommands = ("unshare", "hf", "onnx", "train", "encode")
    for words in calls:
        if program == "make":
            assert words[0] in re.findall(r"^make ([\w-]+)", cli.run("make", "-C", ROOT, "help"), re.M)
            continue
        script = next(i for i, word in enumerate(words) if word.endswith(".py") or words[i - 1] == "-m")
        module = words[script - 1] == "-m"
        subcommand = [word for word in words[script + 1 : script + 2] if word in subcommands]
        called = (*(["-m"] if module else []), words[script], *subcommand)
        if called not in helps:
            helps[called] = cli.run(sys.executable, "-W", "ignore", *called, "--help", env={"PYTHONPATH": str(ROOT)})
        known = set(re.findall(r"--[a-z][\w-]*", helps[called]))
        assert {word for word in words[script:] if word.startswith("--")} <= known, words


def test_scripts_that_are_called_exist():
    lines = "\n".join(example.values[0] for example in SHELL).split()
    scripts = {word for word in lines if re.fullmatch(r"recipes/\S+\.(sh|py)", word)}
    assert scripts
    assert [script for script in sorted(scripts) if not (ROOT / script).exists()] == []


def anchors(text: str) -> set[str]:
    """The anchors that a Markdown page gives its headings."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


OTHERS = ROOT / "fairseq_repairs" / "README.md", *sorted(ROOT.glob("recipes/**/*.md"))
PAGES = [path.relative_to(ROOT).as_posix() for path in (*DOCUMENTS, *OTHERS)]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link
