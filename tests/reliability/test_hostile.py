"""A hostile file for every path that reads checkpoints: nothing in it is executed, and it is rejected in one line.

One file is a pickle that makes a folder. The other holds types alone that are allowed, and options that fairseq would
evaluate, or that name weights from elsewhere.
"""

import argparse
import ast
import copy
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fairseq_repairs.checkpoints import load_safely
from tests.repairs.test_foreign import Pickled
from tests.support import cli, warm
from tests.support.image_training import SCRIPT, flags

pytestmark = pytest.mark.slow

READERS = {
    *("load_safely", "load_checkpoint_metadata", "load_checkpoint_to_cpu", "load_ema_from_checkpoint"),
    *("load_model_ensemble", "load_model_ensemble_and_task", "resume_task_checkpoint", "load_task_ema_checkpoint"),
}
HUB = "import fairseq.models.transformer as it; it.TransformerModel.from_pretrained('{folder}', 'hostile.pt', '{data}')"
EMA = "import fairseq.checkpoint_utils as it; it.load_ema_from_checkpoint('{file}')"
# The commands of each module that reads a checkpoint, which is a file in a folder; `new` does not exist yet.
FAIRSEQ = {
    "fairseq_repairs/checkpoints.py": {
        "generate": "fairseq-generate {data} {host} --path {file}",
        "interactive": "fairseq-interactive {data} {host} --path {file}",
        "validate": "fairseq-validate {data} {host} --path {file} --batch-size 8",
        "eval-lm": "fairseq-eval-lm {folder} {host} --path {file} --task language_modeling",
        "restore-file": "{train} --restore-file {file}",
        "finetune-from-model": "{train} --finetune-from-model {file}",
        "hub": f'python -c "{HUB}"',
        "ema": f'python -c "{EMA}"',
    },
    "fairseq_plugin/depth.py": {"depth": "python -m fairseq_plugin.depth {data} --cpu --path {file}"},
    "fairseq_plugin/average.py": {"average": "python -m fairseq_plugin.average --inputs {file} --output {new}"},
    "fairseq_plugin/convert.py": {
        "unshare": "python -m fairseq_plugin.convert unshare {file} {new}",
    },
}
IMAGES = {
    "timm_plugin/checkpoints.py": {
        "unshare": "python -m timm_plugin.convert unshare {file} {new}",
        "accuracy": "python -m timm_plugin.accuracy {folder}",
    },
    "timm_plugin/train.py": {
        "resume": "{train_image} --output {folder} --resume",
        "teacher": "{train_image} --teacher vit_tiny_patch16_224 --teacher-checkpoint {file}",
    },
}


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call in the project's own modules, with the module."""
    for package in ("fairseq_plugin", "fairseq_repairs", "timm_plugin", "recurrence", "recipes", "benchmarks"):
        for path in sorted((cli.REPOSITORY / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    yield str(path.relative_to(cli.REPOSITORY)), node


def test_every_module_that_reads_checkpoints_is_tried():
    found = {module for module, call in calls() if ast.unparse(call.func).rpartition(".")[2] in READERS}
    scripts = {module for module in found if module.startswith(("recipes/", "benchmarks/"))}
    own = {"timm_plugin/repairs.py", "fairseq_plugin/compare.py"}  # the latter reads what its own runs have saved
    own.add("fairseq_plugin/models/speech.py")  # reads by the function of --restore-file, which is tried
    assert found - own - scripts == {*FAIRSEQ, *IMAGES} - {"fairseq_repairs/checkpoints.py"}
    for script in scripts:  # what they read with is repaired
        assert re.search(r"^ *(import|from) (fairseq|timm)_plugin\b", (cli.REPOSITORY / script).read_text(), re.M), (
            script
        )


def test_no_module_reads_pickles_of_any_type():
    loads = [(module, call) for module, call in calls() if ast.unparse(call.func) in ("torch.load", "pickle.load")]
    assert len(loads) > 1
    for module, call in loads:
        assert "weights_only=True" in map(ast.unparse, call.keywords), module


def tried(file: Path, data: Path | None, images: Path | None, command: str) -> warm.Ended:
    """What a command makes of a file; asserts that the file has made no folder."""
    new = file.with_name("new")
    train = ["fairseq-train", *cli.train_command(data, new, "--batch-size", "32", "--max-update", "1")]
    long = {"host": cli.HOST, "train": train, "train_image": ["python", SCRIPT, *flags(images, new)]}
    given = {name: shlex.join(map(str, words)) for name, words in long.items()}
    command = command.format(file=file, folder=file.parent, new=new, data=data, **given)
    (ended,) = warm.run({"argv": shlex.split(command)})
    assert not file.with_name("run").exists(), ended.log
    return ended


def cases(modules) -> dict:
    return {f"{module}-{name}": command for module, commands in modules.items() for name, command in commands.items()}


@pytest.mark.parametrize("command", cases(FAIRSEQ).values(), ids=cases(FAIRSEQ))
@pytest.mark.parametrize("kind", ["pickle", "options"])
def test_a_checkpoint_of_fairseq_runs_nothing(corpus, straight, tmp_path, kind, command):
    state = load_safely(straight / "checkpoint_last.pt")
    if kind == "pickle":
        state["extra_state"]["metrics"] = Pickled(os.mkdir, (str(tmp_path / "run"),))
    else:
        options, code = copy.copy(state["cfg"]["model"]), f"__import__('os').mkdir({str(tmp_path / 'run')!r})"
        vars(options).update(arch="fconv", _name="fconv", encoder_layers=code, decoder_layers=code)
        state["cfg"]["model"] = options
        state["cfg"]["optimizer"] = {**(state["cfg"]["optimizer"] or {}), "adam_betas": code}
    torch.save(state, tmp_path / "hostile.pt")
    (tmp_path / "dict.txt").write_bytes((corpus.data / "dict.en.txt").read_bytes())  # for fairseq-eval-lm
    ended = tried(tmp_path / "hostile.pt", corpus.data, None, command)
    if kind == "pickle":
        assert ended.status != 0
        assert f"{tmp_path}/hostile.pt: rejected, because it refers to " in ended.last_line
        assert "weights_only" not in ended.last_line
    assert "Traceback" not in ended.log or "python -c" in command  # Python's own


@pytest.mark.parametrize("command", cases(IMAGES).values(), ids=cases(IMAGES))
@pytest.mark.parametrize("kind", ["pickle", "options"])
def test_a_checkpoint_of_an_image_model_runs_nothing(images, tmp_path, kind, command):
    weights = {"url": "http://127.0.0.1:9/x.pth", "file": "/etc/passwd"}
    elsewhere = {"pretrained": True, "pretrained_cfg_overlay": weights}
    args = argparse.Namespace(model="recursive_deit_tiny", model_kwargs=elsewhere, num_classes=3, img_size=None)
    state = {"arch": "recursive_deit_tiny", "args": args, "state_dict": {}, "epoch": 0}
    if kind == "pickle":
        state["metric"] = Pickled(os.mkdir, (str(tmp_path / "run"),))
    torch.save(state, tmp_path / "last.pth.tar")
    ended = tried(tmp_path / "last.pth.tar", None, images, command)
    assert "Traceback" not in ended.log
    if kind == "pickle":
        assert ended.status != 0
        assert "nothing in it was run" in ended.log
    elif "timm_plugin.convert" in command:
        assert "last.pth.tar: its options describe a model of 5,524,995 parameters: must be <= " in ended.log
