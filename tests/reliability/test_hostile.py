"""A hostile file for every path that reads checkpoints: nothing in it is executed, and it is rejected in one line.

One file is a pickle that makes a folder. The other holds types alone that are allowed, and options that fairseq would
evaluate, or that name weights from elsewhere.
"""

import argparse
import ast
import copy
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fairseq_plugin.repairs.checkpoints import load_safely
from tests.support import cli
from tests.support.image_training import SCRIPT, flags

pytestmark = pytest.mark.slow

READERS = {
    *("load_safely", "load_checkpoint_metadata", "load_checkpoint_to_cpu", "load_ema_from_checkpoint"),
    *("load_model_ensemble", "load_model_ensemble_and_task", "resume_task_checkpoint", "load_task_ema_checkpoint"),
}
HUB = """
from fairseq.models.transformer import TransformerModel
path = Path('{file}')
TransformerModel.from_pretrained(str(path.parent), path.name, '{data}')
"""
# The commands of each module that reads a checkpoint: {data}, {images}, {file} and {folder}, which has no file yet.
FAIRSEQ = {
    "fairseq_plugin/repairs/checkpoints.py": {
        "generate": ["fairseq-generate", "{data}", *cli.HOST, "--path", "{file}"],
        "interactive": ["fairseq-interactive", "{data}", *cli.HOST, "--path", "{file}"],
        "validate": ["fairseq-validate", "{data}", *cli.HOST, "--path", "{file}", "--batch-size", "8"],
        "eval-lm": ["fairseq-eval-lm", "{data}", *cli.HOST, "--path", "{file}", "--task", "language_modeling"],
        "restore-file": ["train", "--restore-file", "{file}", "--max-update", "1"],
        "finetune-from-model": ["train", "--finetune-from-model", "{file}", "--max-update", "1"],
        "hub": ["-c", HUB],
        "ema": ["-c", "from fairseq.checkpoint_utils import load_ema_from_checkpoint as load; load('{file}')"],
    },
    "fairseq_plugin/depth.py": {"depth": ["fairseq_plugin.depth", "{data}", "--cpu", "--path", "{file}"]},
    "fairseq_plugin/average.py": {"average": ["fairseq_plugin.average", "--inputs", "{file}", "--output", "{folder}"]},
    "fairseq_plugin/convert.py": {
        "unshare": ["fairseq_plugin.convert", "unshare", "{file}", "{folder}"],
        "share": ["fairseq_plugin.convert", "share", "{file}", "{folder}", "--unique-layers", "1"],
    },
}
IMAGES = {
    "timm_plugin/checkpoints.py": {
        "unshare": ["timm_plugin.convert", "unshare", "{file}", "{folder}"],
        "share": ["timm_plugin.convert", "share", "{file}", "{folder}", "--unique-layers", "1"],
    },
    "timm_plugin/train.py": {
        "resume": ["train_image", "--resume"],
        "teacher": ["train_image", "--teacher", "vit_tiny_patch16_224", "--teacher-checkpoint", "{file}"],
    },
    "timm_plugin/accuracy.py": {"accuracy": ["timm_plugin.accuracy", "{file_folder}"]},
}


class MakesFolder:
    """Runs when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call in the project's own modules, with the module."""
    for package in ("fairseq_plugin", "timm_plugin", "recurrence", "recipes", "benchmarks"):
        for path in sorted((cli.REPOSITORY / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    yield str(path.relative_to(cli.REPOSITORY)), node


def test_every_module_that_reads_checkpoints_is_tried():
    found = {module for module, call in calls() if ast.unparse(call.func).rpartition(".")[2] in READERS}
    scripts = {module for module in found if module.startswith("recipes/")}
    own = {"timm_plugin/repairs.py", "fairseq_plugin/compare.py"}  # the latter reads what its own runs have saved
    assert found - own - scripts == {*FAIRSEQ, *IMAGES} - {"fairseq_plugin/repairs/checkpoints.py"}
    for script in scripts:  # what they read with is repaired
        assert re.search(r"^ *(import|from) (fairseq|timm)_plugin\b", (cli.REPOSITORY / script).read_text(), re.M), (
            script
        )


def test_no_module_reads_pickles_of_any_type():
    loads = [(module, call) for module, call in calls() if ast.unparse(call.func) in ("torch.load", "pickle.load")]
    assert len(loads) > 1
    for module, call in loads:
        assert "weights_only=True" in map(ast.unparse, call.keywords), module


def tried(warm, tmp_path, file, data, images, words):
    """What a command makes of a file."""
    words = [str(word) for word in words]
    if words[0] == "train_image":
        words = [str(SCRIPT), *flags(images, tmp_path if "--resume" in words else tmp_path / "new", *words[1:])]
    if words[0] == "train":
        words = ["fairseq-train", *cli.train_command(data, tmp_path / "new", "--batch-size", "32", *words[1:])]
    if words[0] == "-c":
        words[1] = f"from pathlib import Path; {words[1]}"
    given = {
        "{file}": file,
        "{file_folder}": file.parent,
        "{folder}": tmp_path / "new",
        "{data}": data,
        "{images}": images,
    }
    for name, value in given.items():
        words = [str(word).replace(name, str(value)) for word in words]
    (ended,) = warm.run({"argv": words})
    assert not (tmp_path / "run").exists(), ended.log
    return ended


def cases(modules) -> dict:
    return {f"{module}-{name}": words for module, commands in modules.items() for name, words in commands.items()}


@pytest.mark.parametrize("words", cases(FAIRSEQ).values(), ids=cases(FAIRSEQ))
@pytest.mark.parametrize("kind", ["pickle", "options"])
def test_a_checkpoint_of_fairseq_runs_nothing(warm, text, straight, tmp_path, kind, words):
    state = load_safely(straight / "checkpoint_last.pt")
    if kind == "pickle":
        state["extra_state"]["metrics"] = MakesFolder(tmp_path / "run")
    else:
        options, code = copy.copy(state["cfg"]["model"]), f"__import__('os').mkdir({str(tmp_path / 'run')!r})"
        vars(options).update(arch="fconv", _name="fconv", encoder_layers=code, decoder_layers=code)
        state["cfg"]["model"] = options
        state["cfg"]["optimizer"] = {**(state["cfg"]["optimizer"] or {}), "adam_betas": code}
    torch.save(state, tmp_path / "hostile.pt")
    ended = tried(warm, tmp_path, tmp_path / "hostile.pt", text, None, words)
    if kind == "pickle" and words[0] != "fairseq-eval-lm":  # which asks for a dictionary of a language first
        assert ended.status != 0
        assert f"{tmp_path}/hostile.pt: rejected, because it refers to " in ended.last_line
        assert "weights_only" not in ended.last_line
    assert "Traceback" not in ended.log or words[0] == "-c"  # Python's own


@pytest.mark.parametrize("words", cases(IMAGES).values(), ids=cases(IMAGES))
@pytest.mark.parametrize("kind", ["pickle", "options"])
def test_a_checkpoint_of_an_image_model_runs_nothing(warm, images, tmp_path, kind, words):
    elsewhere = {
        "pretrained": True,
        "pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/x.pth", "file": "/etc/passwd"},
    }
    args = argparse.Namespace(model="recursive_deit_tiny", model_kwargs=elsewhere, num_classes=3, img_size=None)
    state = {"arch": "recursive_deit_tiny", "args": args, "state_dict": {}, "epoch": 0}
    if kind == "pickle":
        state["metric"] = MakesFolder(tmp_path / "run")
    file = tmp_path / "last.pth.tar"
    torch.save(state, file)
    ended = tried(warm, tmp_path, file, None, images, words)
    assert "Traceback" not in ended.log or words[0] == "-c"  # Python's own
    if kind == "pickle":
        assert ended.status != 0
        assert "nothing in it was run" in ended.log
    elif "timm_plugin.convert" in words:
        assert "last.pth.tar: not the weights of recursive_deit_tiny with {'num_classes': 3}" in ended.log
