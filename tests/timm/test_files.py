"""Files of a run from a stranger: nothing outside its folder changes, and one module writes and removes all files."""

import argparse
import ast
import errno
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import timm
import torch

from recurrence import files
from recurrence.comparison import runs
from tests.support import cli
from tests.support.image_training import checkpoint, flags
from timm_plugin import accuracy, checkpoints, convert, depth
from timm_plugin import train as train_image
from timm_plugin._saved import OPTIONS, options_of
from timm_plugin.checkpoints import OF_IMAGES
from timm_plugin.training.files import record

OWNER = "recurrence/files.py"
# timm writes its checkpoints itself, and a saved model, in a new folder.
CHANGES = {
    *("write_text", "write_bytes", "unlink", "rename", "renames", "rmtree", "rmdir", "removedirs", "touch"),
    *("mkdir", "makedirs", "symlink", "symlink_to", "hardlink_to", "link", "mkstemp", "mkdtemp"),
    *("NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "copyfile", "copyfileobj", "copy2", "copytree"),
    *("to_csv", "savefig", "save_file"),
}
OF_MODULES = {
    ("os", "remove"),
    ("os", "replace"),
    ("shutil", "copy"),
    ("shutil", "move"),
    ("os", "truncate"),
    ("torch", "save"),
}
WRITERS_OF_FILE_OBJECTS = {  # to an open file of the module
    "recurrence/comparison/report.py": (
        "runs.dropna(axis='columns', how='all').to_csv(file, index=False, lineterminator='\\n')",
        "picture(runs, score).savefig(file, format='svg')",
    )
}


def changes_files(call: ast.Call) -> bool:
    """Whether a call writes or removes a file: by its name, or because it opens one with a mode of writing."""
    module, _, name = ast.unparse(call.func).rpartition(".")
    if module == "files":  # our module
        return False
    if name == "open":
        modes = [word.value for word in (*call.args, *(one.value for one in call.keywords)) if is_text(word)]
        return any(set(mode) & set("wax+") and set(mode) <= set("rwaxbt+") for mode in modes)
    return bool(module) and name in CHANGES or (module, name) in OF_MODULES


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def imported_from_owner(tree: ast.Module) -> set[str]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "recurrence.files"]
    return {alias.name for node in nodes for alias in node.names}


def test_one_module_writes_and_removes_files():
    found: dict[str, list[str]] = {}
    for package in ("recurrence", "timm_plugin", "fairseq_plugin"):
        for path in sorted((cli.REPOSITORY / package).rglob("*.py")):
            tree, name = ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(cli.REPOSITORY))
            ours = imported_from_owner(tree)
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and changes_files(node)]
            found[name] = [ast.unparse(call) for call in calls if ast.unparse(call.func) not in ours]
    assert len(found.pop(OWNER)) > 3  # they would be seen elsewhere
    for name, words in WRITERS_OF_FILE_OBJECTS.items():
        found[name] = [word for word in found[name] if word not in words]
    assert {name: calls for name, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "code",
    ['open(p, "w")', 'p.open(mode="ab")', "p.unlink()", "os.remove(p)", "os.replace(a, b)", "p.write_text(t)",
     "shutil.rmtree(p)", "os.rename(a, b)", "torch.save(x, p)"],
)  # fmt: skip
def test_the_search_finds(code):
    assert changes_files(ast.parse(code, mode="eval").body)


@pytest.mark.parametrize("code", ["open(p)", 'open(p, "rb")', 'text.replace("a", "b")', "p.read_text()"])
def test_the_search_leaves_out(code):
    assert not changes_files(ast.parse(code, mode="eval").body)


@pytest.fixture
def thesis(tmp_path):
    """A file of the user, beside the folder of the run."""
    path = tmp_path / "thesis.txt"
    path.write_text("mine")
    return path


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


LINE = {"epoch": 0, "eval_top1": 50.0}


@pytest.mark.parametrize("link", ["summary.csv", "summary.tmp", "summary.csv.tmp"])
def test_the_table_is_not_written_through_a_link(folder, thesis, link):
    (folder / "summary.csv").write_text("epoch,eval_top1\n0,10\n")
    if link == "summary.csv":
        thesis.write_text("epoch,eval_top1\n0,10\n")
        (folder / link).unlink()
    (folder / link).symlink_to(thesis)
    before = thesis.read_text()
    record(folder / "summary.csv", 1, {**LINE, "epoch": 1})
    assert thesis.read_text() == before
    assert not (folder / "summary.csv").is_symlink()
    assert len((folder / "summary.csv").read_text().splitlines()) == 3


def test_a_link_is_replaced_by_a_copy_or_another_name(folder, thesis, monkeypatch):
    source, target = folder / "last", folder / "best"
    source.write_text("weights")
    for copied in (False, True):
        if copied:
            monkeypatch.setattr(os, "link", no_links)
        target.unlink(missing_ok=True)
        target.symlink_to(thesis)
        files.duplicate(source, target)
        assert (target.read_text(), thesis.read_text(), target.is_symlink()) == ("weights", "mine", False)
        assert {path.name for path in folder.iterdir()} == {"last", "best"}


def no_links(*_) -> None:
    raise OSError(errno.EPERM, "no hard links here")


def test_a_log_is_not_appended_to_through_a_link(folder, thesis):
    (folder / "train.log").symlink_to(thesis)
    with pytest.raises(OSError, match=f"{folder}/train.log"):
        runs.Runner(1).run(runs.Command.of(sys.executable, "-c", "print(1)"), folder / "train.log")
    (folder / ".lock").symlink_to(thesis)
    with pytest.raises(OSError, match=f"{folder}/.lock"), runs.locked(folder / ".lock"):
        pass
    assert thesis.read_text() == "mine"


def test_what_a_kill_has_left_is_removed_and_nothing_else(folder, thesis):
    left = files._beside(folder / "last.pth.tar")
    left.symlink_to(thesis)
    for name in (".mine.tmp", "summary.csv", "last.0123456789abcdef.tmp"):
        (folder / name).write_text("mine")
    files.remove_unfinished(folder)
    assert {path.name for path in folder.iterdir()} == {".mine.tmp", "summary.csv", "last.0123456789abcdef.tmp"}
    assert thesis.read_text() == "mine"


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_only_files_are_replaced(folder, kind):
    os.mkdir(folder / "summary.csv") if kind == "folder" else os.mkfifo(folder / "summary.csv")
    for use in (record, files.write_text):
        with pytest.raises(OSError, match=f"^{folder}/summary.csv: must be a file, not a folder, a pipe or a device"):
            use(folder / "summary.csv", 0 if use is record else "text")
    with pytest.raises(OSError, match="must be a file"):
        files.damage(folder / "summary.csv")


def test_a_missing_folder_is_reported_with_the_files_name(folder):
    with pytest.raises(FileNotFoundError, match=f"'{folder}/none/summary.csv'"):
        files.write_text(folder / "none/summary.csv", "")


def test_a_full_disk_is_reported_with_the_files_name(folder, monkeypatch):
    record(folder / "summary.csv", 0, LINE)
    before = (folder / "summary.csv").read_text()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{folder}/summary.csv'"):
        record(folder / "summary.csv", 1, {**LINE, "epoch": 1})
    assert [path.name for path in folder.iterdir()] == ["summary.csv"]
    assert (folder / "summary.csv").read_text() == before


def full(_) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory):
    """The folder of a run, and the checkpoint after its first of two epochs."""
    folder = tmp_path_factory.mktemp("trained")
    run_trainer(images, folder)
    state = checkpoint(folder)
    state["epoch"] = 0
    state["saver"] = {"checkpoint_files": [], "best_epoch": 0, "best_metric": 1.0, "pending": (0, 1.0)}
    return folder, state


def run_trainer(images, folder, *more) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train", *flags(images, folder, "--epochs", "2", "--batch-size", "48", *more)])
        train_image.main()


@pytest.fixture
def resumed(images, folder, trained, capsys):
    """Resumes the run after changes to its checkpoint; returns the last line of the error, or "" if it ends well."""
    shutil.copytree(trained[0], folder, dirs_exist_ok=True)

    def resume(**changes: object) -> str:
        torch.save({**trained[1], **changes}, folder / "last.pth.tar")
        try:
            run_trainer(images, folder, "--resume")
        except SystemExit as error:
            return error.code if isinstance(error.code, str) else capsys.readouterr().err.strip().splitlines()[-1]
        return ""

    return resume


HISTORY = {"checkpoint_files": [], "best_epoch": 0, "best_metric": -1.0, "pending": (0, -1.0)}


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["../thesis.txt", "{parent}/thesis.txt", "summary.csv", "checkpoint-0.pth.tar/..", 3])
def test_a_checkpoint_removes_no_file_but_checkpoints_of_its_folder(folder, thesis, resumed, entry):
    entry = entry.format(parent=folder.parent) if isinstance(entry, str) else entry
    error = resumed(saver={**HISTORY, "checkpoint_files": [(entry, -1.0)]})
    assert f"{folder}/last.pth.tar: checkpoint_files={entry!r}: must name checkpoints of its own folder" in error
    assert thesis.read_text() == "mine"
    assert (folder / "summary.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("key", HISTORY)
def test_a_history_of_other_types_is_named(folder, resumed, key):
    assert resumed(saver={**HISTORY, key: "../x"}).startswith(f"train: error: {folder}/last.pth.tar: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("args", None), ("state_dict", [1]), ("state_dict", {}), ("state_dict", {"head.weight": "text"})),
        *(("epoch", "3"), ("epoch", -1), ("epoch", True), ("epoch", None), ("saver", [1]), ("arch", 3)),
        *(("optimizer", {}), ("optimizer", {"state": 3, "param_groups": [{}]}), ("optimizer", "adam")),
    ],
)
def test_a_malformed_checkpoint_is_not_resumed(folder, resumed, part, value):
    assert f"--resume {folder}/last.pth.tar: " in resumed(**{part: value})


def saved(folder, **changes: object) -> Path:
    """A checkpoint of a small model, after changes to it."""
    model = timm.create_model("vit_tiny_patch16_224", patch_size=4, embed_dim=24, depth=1, num_heads=2, num_classes=3)
    state = {"arch": "vit_tiny_patch16_224", "args": argparse.Namespace(), "state_dict": model.state_dict(), "epoch": 0}
    torch.save({**state, **changes}, folder / "last.pth.tar")
    return folder / "last.pth.tar"


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("args", None), ("args", {"data": "x"}), ("state_dict", [1]), ("state_dict", {}), ("epoch", "x")),
        *(("state_dict", {3: torch.zeros(2)}), ("state_dict", {"norm.weight": "x"}), ("arch", ["a"])),
        *(("state_dict_ema", 3.5), ("model", float("nan"))),
    ],
)
def test_a_malformed_checkpoint_is_named_by_every_command(folder, rejected, part, value):
    path = saved(folder, **{part: value})
    for main, words in (
        (accuracy.main, [folder]),
        (convert.main, ["unshare", path, folder / "new"]),
        (depth.main, [folder, "--checkpoint", path]),
    ):
        error = rejected(main, *words)
        assert f"error: {path}: " in error.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "text",
    [
        '{"architecture": NaN}',
        '{"architecture": ["sret_t"]}',
        '{"architecture": "none"}',
        "[" * 100_000,
        "[1]",
        "{",
        "",
    ],
)
def test_a_malformed_folder_is_named(folder, rejected, text):
    (folder / "config.json").write_text(text)
    error = rejected(convert.main, "unshare", folder, folder / "new")
    assert f"error: {folder}/config.json: " in error.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "arguments", ['{"depth": 1000000000}', '{"depth": NaN}', "[1]", '"depth"', '{"depth": [[[[[1]]]]]}']
)
def test_arguments_in_a_folder_have_bounds(folder, arguments):
    (folder / "config.json").write_text(f'{{"architecture": "sret_t", "model_args": {arguments}}}')
    with pytest.raises(ValueError, match=f"^{folder}/config.json: model_args: must be names and values"):
        checkpoints.load(folder)


def test_a_pipe_is_not_read(folder, rejected):
    os.mkfifo(path := folder / "last.pth.tar")
    os.mkfifo(folder / "model.safetensors")
    (folder / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    for read in (path, folder):
        error = rejected(convert.main, "unshare", read, folder / "new").strip().splitlines()[-1]
        assert ": must be a file, not a folder, a pipe or a device" in error
        assert f"error: {folder}/" in error


def test_a_compressed_checkpoint_is_not_unpacked(folder, rejected):
    path = saved(folder, padding=torch.zeros(10**6))
    with zipfile.ZipFile(path) as stored:
        parts = {name: stored.read(name) for name in stored.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    error = rejected(convert.main, "unshare", path, folder / "new")
    assert f"error: {path}: unpacks to 4," in error


def test_a_tensor_is_no_larger_than_its_file(folder, rejected):
    path = saved(folder, optimizer={"state": {0: {"step": torch.zeros(1).expand(10**12)}}})
    error = rejected(convert.main, "unshare", path, folder / "new")
    assert "bytes: does not hold a tensor of shape (1000000000000,)" in error


def test_a_model_larger_than_its_file_is_not_built(folder, rejected):
    """Of 320 GB."""
    kwargs = {"embed_dim": 81_920, "depth": 1, "num_heads": 2}
    path = saved(folder, args=argparse.Namespace(model_kwargs=kwargs))
    error = rejected(convert.main, "unshare", path, folder / "new")
    assert f"error: {path}: its options describe a model of 80," in error
    assert " parameters: must be <= " in error


HOSTILE = {
    "dataset": ["wds/x", "hfds/x", "tfds/x", "pipe:touch ran", 3],
    "data": [3, ["x"], "a\0b"],
    "workers": [3000, -1, "2", 1.5, True],
    "batch_size": [0, 10**9, "64"],
    "img_size": [0, 10**9, (8, 8), "16"],
    "input_size": [(3, 16), (3, 16, 10**9), 16],
    "num_classes": [-1, 10**9, "3"],
    "in_chans": [0, 10**9],
    "crop_pct": [0, 2, float("nan"), "1"],
    "mean": [float("nan"), [float("nan")] * 3, "0.5", []],
    "std": [[2, 2, 2], 3],
    "label_names": ["cat", [3], 5],
    "model_kwargs": [
        "depth=1",
        {"depth": 10**9},
        {"depth": 1001},
        {"depths": (1, 1001)},
        {3: 4},
        [("depth",)],
        {"drop_rate": float("inf")},
        {"embed_dim": 100_001},
        {"permutation_seed": 2**63},
        5,
    ],
    **dict.fromkeys(["train_split", "val_split", "device", "interpolation", "gp"], [3, ["x"]]),
}


def test_every_option_that_may_be_read_is_tried():
    assert HOSTILE.keys() == OPTIONS.keys()


@pytest.mark.parametrize("option", HOSTILE)
def test_options_of_a_run_have_types_and_bounds(folder, rejected, option):
    for value in HOSTILE[option]:
        path = saved(folder, args=argparse.Namespace(**{option: value}))
        commands = [(accuracy.main, [folder]), (convert.main, ["unshare", path, folder / "new"])]
        for main, words in commands[:1] if option in OF_IMAGES else commands:
            error = rejected(main, *words).strip().splitlines()[-1]
            assert f"error: {path}: {option}={str(value)[:100]!r}: {OPTIONS[option].text}" in error


def test_a_seed_and_a_warm_up_may_be_large(folder):
    given = argparse.Namespace(model_kwargs=[("depth_seed", 2**63 - 1), ("depth_warmup_updates", 375_000)])
    assert options_of(folder, given).model_kwargs == given.model_kwargs


def test_only_listed_options_are_read(folder):
    args = argparse.Namespace(data="x", dataset="torch/cifar10", workers=2, mixup=object, output="/", teacher=None)
    read = {"data": "x", "dataset": "torch/cifar10", "workers": 2, "img_size": None, "crop_pct": None}
    assert vars(options_of(folder, args)) == read


@pytest.mark.slow
def test_a_run_is_not_resumed_through_links(folder, thesis, resumed):
    """Of the names under which timm and this trainer write."""
    for name in ("tmp.pth.tar", "model_best.pth.tar", "model_best.pth.tar.tmp", "checkpoint-1.pth.tar", "summary.tmp"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(thesis)
    assert resumed() == ""
    assert thesis.read_text() == "mine"
    assert checkpoint(folder)["epoch"] == 1
    assert not (folder / "model_best.pth.tar").is_symlink()


def test_the_preprocessing_of_a_folder_is_checked(tmp_path):
    (tmp_path / "config.json").write_text('{"architecture": "sret_t", "pretrained_cfg": {"mean": [{"x": 1}]}}')
    with pytest.raises(ValueError, match=rf"^{tmp_path}/config\.json: mean=.*: must be numbers in 0 \.\. 1"):
        checkpoints.load(tmp_path)
    (tmp_path / "config.json").write_text('{"architecture": "sret_t", "pretrained_cfg": [1]}')
    with pytest.raises(ValueError, match="pretrained_cfg must be names and values"):
        checkpoints.load(tmp_path)


def test_bytes_that_are_no_pickle_are_named(tmp_path):
    (tmp_path / "bare.pth.tar").write_bytes(b"\x80\x02R.")  # calls what is not there
    with pytest.raises(ValueError, match=r"bare\.pth\.tar: not a checkpoint that can be read safely"):
        checkpoints.load(tmp_path / "bare.pth.tar", "sret_t")


def test_a_table_with_an_endless_field_is_named(tmp_path):
    table = tmp_path / "summary.csv"
    table.write_text("epoch,eval_top1\n1," + "1" * 200_000)
    with pytest.raises(ValueError, match=r"summary\.csv: cannot be read as CSV: field larger"):
        files.read_table(table)
