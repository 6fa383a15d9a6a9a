"""What is not public in PyTorch: in one file, with replacements that compute the same."""

import re
from pathlib import Path

import torch

import recurrence
from recurrence import private_torch


def test_replacements_compute_the_same():
    torch.manual_seed(0)
    x, grad = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    output = x.softmax(-1)
    expected = private_torch.softmax_backward(grad, output)
    torch.testing.assert_close(private_torch.softmax_backward_by_sums(grad, output), expected)


def test_private_names_of_torch_are_in_one_file():
    private = re.compile(r"torch\._\w|_python_dispatch|_call_impl|_(forward|backward)_(pre_)?hooks")
    files = Path(recurrence.__file__).parent.rglob("*.py")
    assert {path.name for path in files if private.search(path.read_text(encoding="utf-8"))} == {"private_torch.py"}
