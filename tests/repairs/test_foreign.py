"""Untrusted files are read without executing anything in them."""

import ast
import importlib.util
import sys
from pathlib import Path

import fairseq
import fairseq_cli
import numpy as np
import pytest
import torch
from fairseq import utils
from fairseq.data.fasta_dataset import FastaDataset

from fairseq_repairs import foreign
from fairseq_repairs.checkpoints import CheckpointError, load_safely
from fairseq_repairs.foreign import literal
from tests.support import cli

VALUES = {
    "[(512, 3)] * 2 + [(1024, 1)]": [(512, 3), (512, 3), (1024, 1)],
    "(0.9, 0.999)": (0.9, 0.999),
    " 5 * 1e-4": 5e-4,
    "-2 + 7 * 3": 19,
    "1,2": (1, 2),
    "{'dropout': 0.1}": {"dropout": 0.1},
    "None": None,
    "[True]": [True],
}
NO_VALUES = ["__import__('os').system('true')", "(lambda: 1)()", "x", "[x for x in 'a']", "'a'.join('b')", "f'{1}'"]
NO_VALUES += ["(" * 500, "10**10", "[0] * 1000000000", "1000000000 * [0]", "'a' * 1000 * 10000", "1 / 0", ""]
NO_VALUES += ["a := 1", "{**{}}", "[] - 1"]


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_a_literal_has_its_python_value(text, value):
    assert literal(text) == value == eval(text.strip())


@pytest.mark.parametrize("text", NO_VALUES)
def test_anything_else_is_rejected(text):
    with pytest.raises(ValueError, match="nothing else is evaluated"):
        literal(text)


def users_of_eval(*packages) -> set[str]:
    """The modules whose source calls `eval` by its name, in packages that are installed."""
    found = set()
    for package in packages:
        root = Path(package.__file__).parent
        for path in root.rglob("*.py"):
            module = ".".join((root.name, *path.relative_to(root).with_suffix("").parts))
            calls = (node.func for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call))
            if any(isinstance(called, ast.Name) and called.id in ("eval", "exec") for called in calls):
                found.add(module)
    return {name for name in found if ".examples." not in name}


def test_every_module_of_fairseq_that_evaluates_reads_literals():
    found = users_of_eval(fairseq, fairseq_cli)
    assert len(found) > 10
    assert found <= set(foreign.USERS_OF_EVAL)
    for name in found:
        assert [module.eval for module in foreign.copies_of(name)] == [literal], name


def test_lists_of_options_are_literals(tmp_path):
    assert utils.eval_str_list("1,2", type=int) == [1, 2]
    assert utils.eval_str_list("1e-3") == [1e-3]
    assert utils.eval_bool(None, default=True) is True
    with pytest.raises(ValueError, match="nothing else is evaluated"):
        utils.eval_str_list(f"__import__('os').mkdir({str(tmp_path / 'run')!r})")
    assert not (tmp_path / "run").exists()


def test_the_name_of_a_fasta_file_is_not_passed_to_a_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a;touch run;.fasta").write_text(">one\nACGT\nAC\n>two\nGGG\n")
    data = FastaDataset("a;touch run;")
    assert not Path("run").exists()
    assert data.sizes.tolist() == [6, 3]
    assert data[1] == (">two", "GGG")
    assert data.offsets.dtype == np.int64


def test_a_module_that_is_run_as_the_main_one_is_found_too(monkeypatch):
    spec = importlib.util.find_spec("fairseq_cli.validate")
    main = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "__main__", main)
    foreign.read_options_as_literals()
    assert main.eval is literal


PLAIN = (3, "<", None, None, None, -1, -1, 0)
HOSTILE_ARRAYS = {
    "a structure with an object": ("V8", (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0), (1,)),
    "an object": ("O8", (3, "|", None, None, None, -1, -1, 0), (1,)),
    "flags of one": ("i8", (*PLAIN[:-1], 0x3F), (1,)),
    "another size": ("i8", (*PLAIN[:5], 1, -1, 0), (1,)),
    "more than there is": ("i8", PLAIN, (10**6,)),
    "more than can be": ("i8", PLAIN, (2**40,)),
}


class Pickled:
    """Pickles as a call with these arguments, whose result gets this state."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def array(kind: str, state: tuple, shape: tuple) -> Pickled:
    """An array of a type that fairseq's checkpoints do not hold."""
    rebuild, dtype = np.empty(0).__reduce__()[0], Pickled(np.dtype, (kind, False, True), state)
    return Pickled(rebuild, (np.ndarray, (0,), b"b"), (1, shape, dtype, False, b"A" * 8))


@pytest.mark.parametrize("hostile", HOSTILE_ARRAYS.values(), ids=HOSTILE_ARRAYS)
def test_an_array_cannot_point_into_memory(hostile, tmp_path):
    torch.save({"extra_state": array(*hostile)}, tmp_path / "array.pt")
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/array.pt: .*nothing in it was run"):
        load_safely(tmp_path / "array.pt")


@pytest.mark.parametrize("function", [np.ndarray, np.dtype])
def test_functions_of_numpy_are_not_called(function, tmp_path):
    torch.save({"model": {}, "counts": Pickled(function, ((2**40,),))}, tmp_path / "array.pt")
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/array.pt: .*(not callable|nothing in it was run)"):
        load_safely(tmp_path / "array.pt")


@pytest.mark.parametrize("counts", [np.arange(4), np.ones((2, 3)).T, np.array(7)])
def test_the_arrays_of_checkpoints_are_read_and_written_again(counts, tmp_path):
    for _ in range(2):
        torch.save({"model": {}, "counts": counts}, tmp_path / "array.pt")
        counts = load_safely(tmp_path / "array.pt")["counts"]
    assert b"fairseq_repairs" not in (tmp_path / "array.pt").read_bytes()
    assert isinstance(counts, np.ndarray)
    np.testing.assert_array_equal(counts + counts, 2 * counts)


@pytest.mark.slow
def test_the_commands_that_are_imported_configure_no_logging():
    code = "import logging, fairseq_plugin; print(logging.getLogger().handlers, logging.getLogger().level)"
    found = cli.python("-W", "ignore", "-c", code, fresh=True).splitlines()[-1]
    assert found.endswith(" 30")
    assert "stdout" not in found  # iopath's own handler writes to the other stream
