"""Untrusted files: nothing in a checkpoint or a data folder is executed."""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from fairseq.data import fasta_dataset

from fairseq_repairs.replace import at_once, copies_of, instead

# fairseq's modules that call `eval` on an option, which may come from a checkpoint, or on a line of data.
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
    "fairseq.optim.fused_lamb",
    "fairseq.utils",
    "fairseq_cli.eval_lm",
    "fairseq_cli.validate",
)
OPERATORS = {ast.Add: operator.add, ast.Mult: operator.mul}
LARGEST = 10**6  # allowed length of a repeated list or string


def literal(text: str) -> Any:
    """The value of an expression of numbers, strings, lists, tuples and dictionaries, and sums or products of them.

    Replaces `eval`: `[(512, 3)] * 20` is allowed, calls and names are not.

    Raises:
        ValueError: if the text is anything else, quoting it.
        TypeError: if it is not a string, as `eval` does.
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
    if isinstance(node, ast.Tuple):
        return tuple(map(_value, node.elts))
    if isinstance(node, ast.List):
        return list(map(_value, node.elts))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left), _value(node.right)
        sizes = [len(value) for value in (left, right) if hasattr(value, "__len__")]
        times = [value for value in (left, right) if isinstance(value, int)]
        if isinstance(node.op, ast.Mult) and math.prod([*sizes, *times]) > LARGEST and sizes:
            raise ValueError("too large")
        return OPERATORS[type(node.op)](left, right)
    return ast.literal_eval(node)


@at_once
def read_options_as_literals() -> None:
    """Reads options as literals (see :func:`literal`) where fairseq evaluates them as Python.

    Options also come from checkpoints: `--arch fconv` with `encoder_layers="__import__('os')..."` would run a
    command when the file is loaded, and so would `--model-overrides` in fairseq-validate and fairseq-eval-lm.
    """
    for name in USERS_OF_EVAL:
        for module in copies_of(name):
            vars(module).setdefault("eval", literal)  # hides the built-in function in this module only


@instead(fasta_dataset.FastaDataset, "_build_index")
def index_fasta_without_shell(build: Callable, dataset: Any, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Indexes a FASTA file in Python; fairseq passes its name, which may come from a checkpoint, to a shell.

    Returns:
        The offset of each sequence in the file, and its length.
    """
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
