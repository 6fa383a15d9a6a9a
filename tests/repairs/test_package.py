"""The package: it repairs fairseq alone, when it is imported, and imports nothing of this project."""

import ast
import json
import shutil

import pytest

from tests.support import cli, upstream

# Compares what torch, numpy and fairseq, and their classes, hold before and after the repairs are imported, twice over.
INSPECT = """
import json, sys
import fairseq.trainer, torch, numpy

def snapshot(*packages):
    modules = [name for name in sys.modules if name.split(".")[0] in packages]
    found = {f"{name}:{key}": value for name in modules for key, value in list(vars(sys.modules[name]).items())}
    classes = {key: value for key, value in found.items() if isinstance(value, type)}
    return found | {f"{key}.{name}": value for key, owner in classes.items() for name, value in vars(owner).items()}

def allowed():
    globals_ = torch.serialization.get_safe_globals()
    return {x[1] if isinstance(x, tuple) else f"{x.__module__}.{x.__qualname__}" for x in globals_}

before, upstream, torch_s_own = snapshot("torch", "numpy"), snapshot("fairseq"), allowed()
import fairseq_repairs
changed = lambda old, new: sorted(key for key in old if key not in new or new[key] is not old[key])
foreign, repaired = changed(before, snapshot("torch", "numpy")), snapshot("fairseq")
for name in [name for name in sys.modules if name.startswith("fairseq_repairs")]:
    del sys.modules[name]
import fairseq_repairs
print(json.dumps(dict(foreign=foreign, again=changed(repaired, snapshot("fairseq")), mended=changed(upstream, repaired),
                      allowed=sorted(allowed() - torch_s_own))))
"""


class TestImport:
    @pytest.fixture(scope="class")
    @staticmethod
    def seen() -> dict[str, list[str]]:
        return json.loads(cli.python("-W", "ignore", "-c", INSPECT, fresh=True).splitlines()[-1])

    def test_torch_and_numpy_stay_as_they_are(self, seen):
        allowed_by_design = "torch._weights_only_unpickler:_marked_safe_globals_set"
        assert [name for name in seen["foreign"] if name != allowed_by_design] == []

    def test_only_the_types_of_fairseq_s_own_checkpoints_are_allowed(self, seen):
        assert seen["allowed"] == [
            "argparse.Namespace",
            "array",
            "fairseq.data.dictionary.Dictionary",
            "numpy._core.multiarray._reconstruct",
            "numpy._core.multiarray.scalar",
            "numpy.core.multiarray._reconstruct",
            "numpy.core.multiarray.scalar",
            "numpy.dtype",
            "numpy.ndarray",
        ]

    def test_importing_again_changes_nothing(self, seen):
        mended = {"fairseq.checkpoint_utils:load_checkpoint_to_cpu", "fairseq.trainer:Trainer.load_checkpoint"}
        assert mended <= set(seen["mended"])
        assert seen["again"] == []


@pytest.mark.parametrize("folder", ["fairseq_repairs", "tests/repairs"])
def test_nothing_else_of_this_project_is_imported(folder):
    files = list((cli.REPOSITORY / folder).glob("*.py"))
    assert len(files) > 9
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            packages = {name.partition(".")[0] for name in names}
            assert not packages & {"recurrence", "fairseq_plugin", "timm_plugin"}, file


ALONE = """
import sys
sys.path.remove(sys.argv.pop(1))
sys.modules.update(recurrence=None, fairseq_plugin=None, timm_plugin=None)
from importlib import import_module
command = sys.argv.pop(1)
sys.argv[0] = f"fairseq-{command}"
import_module(f"fairseq_cli.{command}").cli_main()
"""


@pytest.mark.slow
def test_fairseq_s_transformer_trains_resumes_and_translates_with_nothing_else(tmp_path):
    """As `--user-dir fairseq_repairs`, in a folder beside which there is nothing else."""
    package = tmp_path / "alone" / "fairseq_repairs"
    shutil.copytree(cli.REPOSITORY / "fairseq_repairs", package, ignore=shutil.ignore_patterns("__pycache__"))
    upstream.write_raw_text(tmp_path)

    def run(command: str, *words: object) -> str:
        """Runs a command that sees nothing of this repository, in the copy's folder."""
        words = [cli.REPOSITORY, command, *words, "--user-dir", package.name]
        inside = ["bash", "-c", f'cd "{package.parent}" && exec python -c "$0" "$@"', ALONE]
        return cli.run(*inside, *words, env={"PYTHONPATH": "", "PATH": cli.search_path()})

    prefixes = [f"--{split}pref={tmp_path / split}" for split in upstream.SENTENCES]
    run("preprocess", "--source-lang=en", "--target-lang=de", *prefixes, f"--destdir={tmp_path / 'data'}")
    train = (tmp_path / "data", "--arch", "transformer", *upstream.TRANSFORMER, "--optimizer", "adam", "--cpu")
    train += ("--save-dir", tmp_path, "--max-tokens", "100", "--num-workers", "0", "--max-epoch")
    run("train", *train, "1")
    assert "Loaded checkpoint" in run("train", *train, "2")
    path = tmp_path / "checkpoint_last.pt"
    found = run("generate", tmp_path / "data", "--path", path, "--cpu", "--max-len-b", "9", "--beam", "2")
    assert len(cli.hypotheses(found)) == upstream.SENTENCES["test"]
