"""Files from strangers: nothing that a checkpoint, an archive or a data folder says is run."""

import ast
import importlib
import logging
import operator
import sys
import tarfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import file_utils
from fairseq.data import fasta_dataset

from fairseq_plugin.hostfix.replace import replace

# The modules of fairseq that call `eval` on an option, on one that a checkpoint holds, or on a line of data.
USERS_OF_EVAL = (
    "fairseq.criterions.ctc",
    "fairseq.data.audio.raw_audio_dataset",
    "fairseq.data.codedataset",
    "fairseq.models.fconv",
    "fairseq.models.fconv_lm",
    "fairseq.models.fconv_self_att",
    "fairseq.models.hubert.hubert",
    "fairseq.models.lightconv_lm",
    "fairseq.models.speech_to_text.s2t_wav_transformer",
    "fairseq.models.transformer_lm",
    "fairseq.models.wav2vec.wav2vec",
    "fairseq.models.wav2vec.wav2vec2",
    "fairseq.optim.adafactor",
    "fairseq.optim.adam",
    "fairseq.optim.adamax",
    "fairseq.optim.cpu_adam",
    "fairseq.optim.fused_adam",
    "fairseq.optim.fused_lamb",
    "fairseq.utils",
    "fairseq_cli.eval_lm",
    "fairseq_cli.validate",
)
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
LARGEST = 10**6  # length of a repeated list, base of a power


def literal_options() -> None:
    """Read options as literals where fairseq evaluates them as Python (see :func:`literal`).

    They come from checkpoints too, so that ``--arch fconv`` with ``encoder_layers="__import__('os')..."`` runs a
    command in whoever loads the file; ``--model-overrides`` does so in fairseq-validate and fairseq-eval-lm.
    """
    for name in USERS_OF_EVAL:
        for module in modules(name):
            module.eval = literal  # found before the built-in one, in this module alone


def modules(name: str) -> Iterator[types.ModuleType]:
    """A module of fairseq, and its other copy where ``python -m`` has started it as the main one.

    A module of a command configures logging when it is imported; that is undone, as nobody has asked for it.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        module = importlib.import_module(name)
    except ImportError:  # of another version of fairseq
        return
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    yield module
    main = sys.modules["__main__"]
    package, _, stem = name.rpartition(".")
    if Path(getattr(main, "__file__", None) or "").parts[-2:] == (package, f"{stem}.py"):
        yield main


def literal(text: str) -> Any:
    """The value of an expression of numbers, strings, lists, tuples and dictionaries, and sums or products of them.

    Stands in for ``eval``: ``[(512, 3)] * 20`` has a value, a call or a name has none.

    Raises:
        ValueError: quoting the text.
        TypeError: if it is no text, as ``eval`` does.
    """
    if not isinstance(text, str):
        raise TypeError(f"{text!r}: must be text")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
        quoted = text if len(text) < 200 else f"{text[:200]}..."
        raise ValueError(
            f"{quoted!r}: must be a number, a string, a list, a tuple or a dictionary, or a sum or product of such; "
            "nothing else is evaluated"
        ) from None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Tuple | ast.List):
        return (tuple if isinstance(node, ast.Tuple) else list)(map(_value, node.elts))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if not isinstance(node, ast.BinOp):
        return ast.literal_eval(node)
    left, right = _value(node.left), _value(node.right)
    power, product = isinstance(node.op, ast.Pow), isinstance(node.op, ast.Mult)
    repeated = product and any(hasattr(side, "__len__") for side in (left, right))
    if (power and (_size(left) > LARGEST or abs(right) > 64)) or (repeated and _size(left) * _size(right) > LARGEST):
        raise ValueError("too large")
    return OPERATORS[type(node.op)](left, right) if type(node.op) in OPERATORS else ast.literal_eval(node)


def _size(value: Any) -> float:
    return len(value) if hasattr(value, "__len__") else abs(value)


def archives_stay_inside() -> None:
    """Unpack a model's archive into its own folder alone: fairseq writes wherever the names in it point."""

    class _Tarfile(types.ModuleType):
        def __getattr__(self, name: str):
            return getattr(tarfile, name)

        @staticmethod
        def open(*args, **kwargs) -> tarfile.TarFile:
            archive = tarfile.open(*args, **kwargs)  # noqa: SIM115  the caller closes it
            archive.extraction_filter = tarfile.data_filter
            return archive

    if file_utils.tarfile is tarfile:
        file_utils.tarfile = _Tarfile("tarfile")


def fasta_without_shell() -> None:
    """Index a FASTA file in Python: fairseq hands its name, of which a checkpoint holds a part, to a shell."""

    def index_in_python(build: Callable) -> Callable:
        def _build_index(self, path: str) -> tuple[np.ndarray, np.ndarray]:
            offsets, sizes, at = [], [], 0
            with open(fasta_dataset.fasta_file_path(path), "rb") as file:
                for line in file:
                    if line.startswith(b">"):
                        offsets.append(at)
                        sizes.append(0)
                    elif sizes:
                        sizes[-1] += len(line.rstrip(b"\r\n"))
                    at += len(line)
            return np.array(offsets, dtype=np.int64), np.array(sizes, dtype=np.int64)

        return _build_index

    replace(fasta_dataset.FastaDataset, "_build_index", index_in_python)
