"""README.md says what is so: its table is the registry's, its commands are accepted by the programs that they name."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from fairseq import options

import fairseq_plugin
from fairseq_plugin.catalogue import architectures, with_table

README = Path(__file__).resolve().parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
USER_DIR = str(Path(fairseq_plugin.__file__).parent)
SHELL = re.findall(r"```sh\n(.*?)```", TEXT, re.S)
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def commands(program):
    """The argument lists with which a program is called in the shell examples."""
    lines = "\n".join(SHELL).replace("\\\n", " ").splitlines()
    called = (
        shlex.split(line.replace("--user-dir fairseq_plugin", f"--user-dir {USER_DIR}"), comments=True)
        for line in lines
    )
    return [words[1:] for words in called if words[:1] == [program]]


def test_table_of_architectures_is_up_to_date():
    assert with_table(TEXT) == TEXT, "run: python -m fairseq_plugin.catalogue README.md"
    assert all(f"| `{arch}` |" in TEXT for arch in architectures())


@pytest.mark.parametrize("example", SHELL)
def test_shell_examples_parse(example):
    subprocess.run(["bash", "-n"], input=example, text=True, check=True)


@pytest.mark.parametrize("example", PYTHON)
def test_python_examples_compile(example):
    compile(example, "README.md", "exec")


@pytest.mark.parametrize(
    ("program", "parser"),
    [
        ("fairseq-preprocess", options.get_preprocessing_parser),
        ("fairseq-train", options.get_training_parser),
        ("fairseq-generate", options.get_generation_parser),
        ("fairseq-eval-lm", options.get_eval_lm_parser),
        ("fairseq-interactive", lambda: options.get_generation_parser(interactive=True)),
    ],
)
def test_commands_are_accepted(program, parser):
    calls = commands(program)
    assert calls
    for arguments in calls:
        if program == "fairseq-preprocess":  # has no architecture
            parser().parse_args(arguments)
        else:
            options.parse_args_and_arch(parser(), arguments)


def test_files_that_are_linked_exist():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if not link.startswith("http")]
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
