"""Text models as ONNX: a folder from which :mod:`fairseq_plugin.serve` translates or writes, without torch and fairseq.

`encoder.onnx` maps a source to the keys and values of cross-attention; `decoder.onnx` is one step of the decoder with
its caches. Both are dynamic in the batch, the source and the past, and read their weights from one file, in which
every tensor stands once, however often its block runs and whichever of the two needs it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch
from fairseq.data import Dictionary
from torch import Tensor, nn
from torch.export import Dim

from fairseq_plugin.language_model import LanguageModel
from fairseq_plugin.options import flag
from fairseq_plugin.seq2seq import LoopedTransformer
from recurrence.files import atomic_write, write_text
from recurrence.papers.kausik import RecurrentStack
from recurrence.papers.streaming import LayerState
from recurrence.weights.onnx import export as export_module

WEIGHTS, ABOUT, PIECES = "weights.bin", "model.json", "pieces.model"
SMALLEST = 1024  # bytes of a tensor that moves to the file of weights


class Source(nn.Module):
    """The encoder, and the projections of cross-attention: tokens (B, S) -> keys and values (K, B, S, 2 C).

    K is the number of different ones: one for each stored block of the decoder, or one for each pass.
    """

    def __init__(self, model: LoopedTransformer):
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens.eq(self.encoder.embed_tokens.padding_idx)
        x = self.encoder.inputs(self.encoder.embed_tokens(tokens), padding)
        memory, _ = self.encoder.run(x, padding)
        contexts = self.decoder.contexts({"encoder_out": [memory.transpose(0, 1)]})
        return torch.stack(list({id(context): context for context in contexts}.values()))


class Past:
    """The caches of a loop as inputs and outputs of a graph; stands in for :class:`recurrence.causal.LoopState`."""

    kept_keys = None  # of relative positions: a graph projects them again

    def __init__(self, past: Tensor):
        self.cache, self.past = self, past
        self.length = past.size(4)
        self.slots = [partial(self.write, index) for index in range(past.size(0))]
        self.present: list[Tensor] = []

    def write(self, index: int, keys_values: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`recurrence.cache.Cache.write`; passes run in order."""
        self.present.append(torch.cat([self.past[index], keys_values], dim=3))
        return self.present[index].unbind(0)


class Step(nn.Module):
    """One step of a decoder with a cache: the log-probabilities of the next token, (B, V), and the longer caches.

    Args of the call: tokens (B, 1); past (P, 2, B, H, L, C/H); of an encoder-decoder also contexts (K, B, S, 2 C),
    see :class:`Source`, and source tokens (B, S).
    """

    def __init__(self, model: nn.Module, shared: Sequence[int]):
        super().__init__()
        self.decoder, self.shared = model.decoder, shared  # the context of each pass
        # Registered here, as a decoder only borrows the encoder's, and a graph stores constants.
        self.embedding = model.decoder.embed_tokens

    def forward(self, tokens: Tensor, past: Tensor, contexts: Tensor | None = None, source: Tensor | None = None):
        decoder, state, memory = self.decoder, Past(past), {}
        x = decoder.inputs(decoder.embed_tokens(tokens), None, past.size(4))
        if contexts is not None:
            of_passes = [contexts[which] for which in self.shared]
            memory = dict(contexts=of_passes, memory_padding=source.eq(self.decoder.padding_idx))
        x = decoder.finish(decoder.run(x, None, state, None, **memory))
        return decoder.output_layer(x)[:, -1].float().log_softmax(-1), torch.stack(state.present)


class RecurrentStep(nn.Module):
    """One step of Kausik's recurrent transformer, whose state does not grow.

    Args of the call: tokens (B, 1), and for each layer the tensors of its state, as in
    :class:`recurrence.papers.streaming.LayerState`.
    """

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.decoder = model.decoder

    def forward(self, tokens: Tensor, *state: Tensor):
        decoder, layers = self.decoder, self.decoder.new_state()
        each = len(state) // len(layers.layers)
        for index, layer in enumerate(layers.layers):
            for name, tensor in zip(STATE, state[index * each :]):
                setattr(layer, name, tensor.clone())
        x = decoder.inputs(decoder.embed_tokens(tokens), None, 0)
        x = decoder.finish(decoder.run(x, None, layers, None))
        after = [getattr(layer, name) for layer in layers.layers for name in STATE[:each]]
        return decoder.output_layer(x)[:, -1].float().log_softmax(-1), *after


STATE = tuple(vars(LayerState()))


def check(model: nn.Module, args: Any) -> None:
    """Raises ValueError, naming what cannot be exported, for a model with these options."""
    if isinstance(model, LoopedTransformer) and not model.reads_text:
        raise ValueError(f"--arch {args.arch}: reads speech; only models of text are exported to ONNX")
    for name in ("adaptive_input_cutoff", "adaptive_softmax_cutoff"):
        if getattr(args, name, None) not in (None, "none"):
            rule = "bands are not exported to ONNX; must be 'none' in training"
            raise ValueError(f"{flag(name)}={getattr(args, name)}: {rule}")
    if isinstance(getattr(model.decoder, "stack", None), RecurrentStack) and args.position != "none":
        rule = "a recurrence with positions is not exported to ONNX; must be none in training"
        raise ValueError(f"--position={args.position}: {rule}")


@dataclass(frozen=True)
class Graph:
    """A module to export, with example inputs by name, names of outputs, and the dynamic dimensions of each input."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: list[str]
    dynamic: list[dict[int, str]]


@torch.no_grad()
def graphs(model: nn.Module) -> list[Graph]:
    """Those of an encoder-decoder: the encoder, and a step of the decoder; of a language model: a step."""
    stack = getattr(model.decoder, "stack", None)
    if isinstance(stack, RecurrentStack):
        return [_recurrent_step(model)]
    tokens = torch.full((2, 1), model.decoder.dictionary.eos())
    loop = model.decoder.loop if stack is None else stack.loop
    attention = next(block.self_attn for block in loop.blocks if block.self_attn is not None)
    past = torch.zeros(loop.passes, 2, 2, attention.heads, 3, attention.out.in_features // attention.heads)
    inputs, dynamic = {"tokens": tokens, "past": past}, [{0: "batch"}, {2: "batch", 4: "past"}]
    outputs = ["scores", "present"]
    if stack is not None:
        return [Graph("decoder", Step(model, []), inputs, outputs, dynamic)]
    source = torch.full((2, 5), model.encoder.dictionary.eos())
    encoder = Graph("encoder", Source(model), {"source": source}, ["contexts"], [{0: "batch", 1: "source"}])
    memory = torch.zeros(5, 2, loop.blocks[0].cross_attn.kv.in_features)
    found = [id(context) for context in model.decoder.contexts({"encoder_out": [memory]})]
    which = [list(dict.fromkeys(found)).index(each) for each in found]
    inputs |= {"contexts": encoder.module(source), "source": source}
    dynamic += [{1: "batch", 2: "source"}, {0: "batch", 1: "source"}]
    return [encoder, Graph("decoder", Step(model, which), inputs, outputs, dynamic)]


def _recurrent_step(model: LanguageModel) -> Graph:
    decoder = model.decoder
    tokens, state = torch.full((2, 1), decoder.dictionary.eos()), decoder.new_state()
    decoder.run(decoder.inputs(decoder.embed_tokens(tokens), None), None, state, None)
    inputs = {
        f"{name}.{index}": tensor.zero_()
        for index, layer in enumerate(state.layers)
        for name in STATE
        if (tensor := getattr(layer, name)) is not None
    }
    names = ["scores", *(f"{name}.after" for name in inputs)]
    return Graph("decoder", RecurrentStep(model), {"tokens": tokens, **inputs}, names, [{0: "batch"}] * len(names))


class Weights:
    """The tensors of several graphs in one file: each is stored once, also if graphs or passes share it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._places: dict[bytes, int] = {}

    def move(self, graph: onnx.ModelProto) -> None:
        """Moves the large tensors of a graph to the file, which stands beside it."""
        for tensor in graph.graph.initializer:
            content = tensor.raw_data
            if len(content) >= SMALLEST:
                place = self._places.setdefault(content, len(self.data))
                if place == len(self.data):
                    self.data += content
                onnx.external_data_helper.set_external_data(tensor, WEIGHTS, place, len(content))
                tensor.ClearField("raw_data")
                tensor.data_location = onnx.TensorProto.EXTERNAL


def export(graph: Graph, int8: bool = False) -> onnx.ModelProto:
    """The graph in ONNX, with all weights, each of them once; in eight bits those of matrix products and embeddings."""
    names: dict[str, Any] = {}
    shapes: list[Any] = [
        {dim: names.setdefault(name, Dim(name)) for dim, name in dims.items()} for dims in graph.dynamic
    ]
    if isinstance(graph.module, RecurrentStep):  # whose state are variable arguments
        shapes = [shapes[0], tuple(shapes[1:])]
    arguments = dict(input_names=list(graph.inputs), output_names=graph.outputs, dynamic_shapes=tuple(shapes))
    return export_module(graph.module, list(graph.inputs.values()), int8, **arguments)


def write(
    model: nn.Module,
    args: Any,
    folder: Path,
    dictionaries: Sequence[Dictionary],
    pieces: Path | None,
    int8: bool = False,
) -> None:
    """Writes a trained model to an empty folder.

    Args:
        model: an encoder-decoder or language model of text, see :func:`check`.
        args: its options.
        folder: exists.
        dictionaries: of the source, if there is one, and of the output.
        pieces: the sentencepiece model of the training text; None if it was split at spaces.
        int8: whether weights are stored in eight bits.
    """
    model.eval()  # which returns nothing in a model that fairseq has prepared for generation
    made, weights, state = graphs(model.float()), Weights(), {}
    for graph in made:
        program = export(graph, int8)
        weights.move(program)
        _write(folder / f"{graph.name}.onnx", program.SerializeToString())
    given, places = made[-1].inputs, made[-1].dynamic
    for (name, tensor), dims in zip(list(given.items())[1:], places[1:]):
        if name not in ("contexts", "source"):
            state[name] = [dims.get(dim, size) for dim, size in enumerate(tensor.shape)]
    _write(folder / WEIGHTS, weights.data)
    output = dictionaries[-1]
    about = dict(
        architecture=args.arch,
        translates=len(made) == 2,
        symbols=[dictionary.symbols for dictionary in dictionaries],
        pad=output.pad(),
        eos=output.eos(),
        start=output.bos() if getattr(args, "add_bos_token", False) else output.eos(),  # of each output
        unk=output.unk(),
        state=state,  # inputs of a step and their shapes; its other outputs are their next values, in this order
        types={name: str(given[name].numpy().dtype) for name in state},
        longest_source=min(model.encoder.max_positions(), 1 << 20) if len(made) == 2 else None,
        longest=min(model.decoder.max_positions(), 1 << 20),
        pieces=None if pieces is None else PIECES,
    )
    write_text(folder / ABOUT, json.dumps(about, ensure_ascii=False))
    if pieces is not None:
        _write(folder / PIECES, pieces.read_bytes())
    _write(folder / "serve.py", Path(__file__).parents[1].joinpath("serve.py").read_bytes())


def _write(path: Path, data: bytes | bytearray) -> None:
    with atomic_write(path, "wb") as file:
        file.write(data)
