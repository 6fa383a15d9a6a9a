"""Modules as graphs of ONNX that store each tensor once, however often its block runs, in 32 or in eight bits."""

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxscript import ir
from onnxscript import opset20 as op
from torch import Tensor, nn

from recurrence.files import temporary_folder

OPSET = 20


def export(module: nn.Module, inputs: Sequence[Tensor], int8: bool = False, **arguments: Any) -> onnx.ModelProto:
    """The graph of a module in evaluation mode, with all weights, each of them once.

    Args:
        module: computes in float32.
        inputs: examples.
        int8: whether the weights of matrix products, embeddings and convolutions are stored in eight bits.
        **arguments: names and dynamic dimensions of inputs and outputs, as `torch.onnx.export` takes them.
    """
    with temporary_folder() as folder, _quiet():
        path = Path(folder) / "graph.onnx"
        program = torch.onnx.export(
            module.eval(),
            tuple(inputs),
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
            custom_translation_table={torch.ops.aten.cos.default: _cosine},
            **arguments,
        )
        program.save(path)
        made = onnx.load(path)
    _transpose_once(made.graph, copies=int8)
    _merge_equal(made.graph)
    made = _in_eight_bits(made) if int8 else made
    _drop_comments(made.graph)
    return made


def _cosine(angles: Any) -> Any:
    """A cosine, which earlier versions of onnxruntime (1.23) do not have in float64: there, a sine."""
    if angles.dtype != ir.DataType.DOUBLE:
        return op.Cos(angles)
    quarter = onnx.helper.make_tensor("quarter", onnx.TensorProto.DOUBLE, [], [math.pi / 2])
    return op.Sin(op.Add(angles, op.Constant(value=quarter)))


def _drop_comments(graph: onnx.GraphProto) -> None:
    """Removes where in the code each node comes from, and the shapes between nodes: longer than small models."""
    for commented in (graph, *graph.node):
        commented.ClearField("metadata_props")
    graph.ClearField("value_info")


def _in_eight_bits(made: onnx.ModelProto) -> onnx.ModelProto:
    with temporary_folder() as folder, _quiet():
        path = Path(folder) / "graph.onnx"
        kinds, flat = ["MatMul", "Gather"], {tensor.name for tensor in made.graph.initializer if len(tensor.dims) == 2}
        # Level signals are a stack of matrices, which onnxruntime cannot multiply with a zero point per channel.
        stacks = [node.name for node in made.graph.node if node.op_type == "MatMul" and node.input[1] not in flat]
        quantize_dynamic(
            made,
            path,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=kinds,
            per_channel=True,
            nodes_to_exclude=stacks,
        )
        quantised = onnx.load(path)
    _store_others(quantised.graph)
    return quantised


def _store_others(graph: onnx.GraphProto) -> None:
    """Stores kernels of convolutions and stacks of matrices in eight bits too, to be applied in float32."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    readers = {node.input[1]: node.op_type for node in graph.node if node.op_type in ("Conv", "MatMul")}
    for name in sorted(readers.keys() & tensors.keys()):
        weight = onnx.numpy_helper.to_array(tensors[name])
        channels = 0 if readers[name] == "Conv" else weight.ndim - 1  # each has a scale
        rest = tuple(axis for axis in range(weight.ndim) if axis != channels)
        scale = np.maximum(np.abs(weight).max(rest, keepdims=True), 1e-30) / 127
        stored = {f"{name}.whole": np.round(weight / scale).astype(np.int8), f"{name}.scale": scale.ravel()}
        graph.initializer.remove(tensors[name])
        graph.initializer.extend(onnx.numpy_helper.from_array(array, key) for key, array in stored.items())
        graph.node.insert(0, onnx.helper.make_node("DequantizeLinear", list(stored), [name], axis=channels))


def _transpose_once(graph: onnx.GraphProto, copies: bool) -> None:
    """Stores a matrix that every pass transposes, as it is read.

    Not an embedding that is also the output matrix, and is read in both forms, unless copies are allowed: a product
    is only quantised with a matrix that is stored as it is read.
    """
    tensors, readers = {tensor.name: tensor for tensor in graph.initializer}, _readers(graph)
    for name, tensor in tensors.items():
        nodes = [node for node in readers.get(name, []) if node.op_type == "Transpose"]
        alone = len(nodes) == len(readers.get(name, []))
        if len(tensor.dims) != 2 or not nodes or not (alone or copies):
            continue
        matrix, stored = np.ascontiguousarray(onnx.numpy_helper.to_array(tensor).T), f"{name}.transposed"
        graph.initializer.append(onnx.numpy_helper.from_array(matrix, stored))
        for node in nodes:
            _read_instead(readers, node.output[0], stored)
            graph.node.remove(node)
        if alone:
            graph.initializer.remove(tensor)


def _merge_equal(graph: onnx.GraphProto) -> None:
    """Keeps one of equal tensors; the exporter transposes a small matrix in advance, once for each pass."""
    kept: dict[tuple, str] = {}
    readers = _readers(graph)
    for tensor in list(graph.initializer):
        content = (tensor.data_type, tuple(tensor.dims), onnx.numpy_helper.to_array(tensor).tobytes())
        if (name := kept.setdefault(content, tensor.name)) != tensor.name:
            _read_instead(readers, tensor.name, name)
            graph.initializer.remove(tensor)


def _readers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    """The nodes that read each value."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    return readers


def _read_instead(readers: dict[str, list[onnx.NodeProto]], name: str, other: str) -> None:
    """Lets the readers of a value read another one."""
    for node in readers.get(name, []):
        node.input[:] = [other if each == name else each for each in node.input]
        readers.setdefault(other, []).append(node)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within the context, the exporter neither reports its steps nor warns."""
    level = logging.getLogger().manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
