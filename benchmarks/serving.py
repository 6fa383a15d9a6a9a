"""Compare a model with its files of ONNX: bytes, differences, equal tokens, milliseconds of one thread.

    python -m benchmarks.serving MODEL ... [--texts 500]

A model is `ringformer_small.pronounce`, `sret_nano.cifar10` or a registered name, which gets random weights; one of
text reads letters and writes phonemes. Milliseconds are of the processor, so that other programs on the machine count
little: of a text alone, with beam 4 or, of a language model, of 20 steps; of an image alone.
"""

import argparse
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import timm
import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from torch import nn

from fairseq_plugin import serve
from fairseq_plugin.build import architectures, build_architecture, build_language_model
from fairseq_plugin.export import onnx
from fairseq_plugin.models.ringformer import RingFormer
from fairseq_plugin.seq2seq import LoopedTransformer
from recurrence.weights.command import stored_bytes
from timm_plugin.onnx import export

SHIPPED, STEPS, TIMED = "ringformer_small.pronounce", 20, 30
Numbers = list[list[int]]


def milliseconds(run: Callable[[int], object]) -> float:
    """The median of the processor's time for the texts or images 0 to TIMED."""
    times = []
    for index in range(TIMED):
        start = time.process_time()
        run(index)
        times.append(time.process_time() - start)
    return 1000 * float(np.median(times))


def texts(count: int, symbols: int) -> Numbers:
    """Random texts of 3 to 12 symbols."""
    random = np.random.default_rng(0)
    return [random.integers(4, symbols, random.integers(3, 13)).tolist() for _ in range(count)]


def searched(model: nn.Module, target: Dictionary, given: Numbers, beam: int) -> Numbers:
    """What fairseq's search finds for each text."""
    search, found = SequenceGenerator([model], target, beam_size=beam, max_len_a=0, max_len_b=STEPS), {}
    order = sorted(range(len(given)), key=lambda index: len(given[index]))
    for start in range(0, len(order), 32):
        part = order[start : start + 32]
        rows = [torch.tensor([*given[index], target.eos()]) for index in part]
        source = nn.utils.rnn.pad_sequence(rows, True, target.pad(), padding_side="left")
        lengths = torch.tensor(list(map(len, rows)))
        best = search.generate([], {"net_input": dict(src_tokens=source, src_lengths=lengths)})
        found |= {index: texts[0]["tokens"][:-1].tolist() for index, texts in zip(part, best)}
    return [found[index] for index in range(len(given))]


def forced(served: serve.Model, tokens: np.ndarray, feed: dict) -> np.ndarray:
    """Log-probabilities after each of the tokens (B, T), step by step."""
    state, scores = served.first_state(len(tokens)), []
    for place in range(tokens.shape[1]):
        now, state = served.step(tokens[:, place : place + 1], state, feed)
        scores.append(now)
    return np.stack(scores, 1)


@torch.no_grad()
def translation(model: nn.Module, files: Sequence[serve.Model], count: int) -> None:
    """Prints the rows of an encoder-decoder."""
    source, target = model.encoder.dictionary, model.decoder.dictionary
    given = texts(count, len(source) - source.nspecial)
    rows = [np.array([[*text[:3], source.eos()]]) for text in given[:8]]
    reads = [np.array([[target.eos(), *range(4, 12)]]) for _ in rows]
    exact = [model(torch.tensor(row), None, torch.tensor(read))[0].log_softmax(-1) for row, read in zip(rows, reads)]
    for name, served in zip(("float32", "int8"), files):
        found = []
        for row, read in zip(rows, reads):
            (contexts,) = served.sessions["encoder"].run(None, {"source": row})
            found.append(forced(served, read, dict(source=row, contexts=contexts)))
        difference = max(np.abs(one - two.numpy()).max() for one, two in zip(found, exact))
        print(f"{name}: largest difference {difference:.1e}", flush=True)
    for beam in (1, 4):
        expected = searched(model, target, given, beam)
        for name, served in zip(("float32", "int8"), files):
            order = sorted(range(count), key=lambda index: len(given[index]))
            parts = [order[start : start + 32] for start in range(0, count, 32)]
            answers = {
                index: answer
                for part in parts
                for index, answer in zip(part, served.search([given[each] for each in part], beam, most=STEPS))
            }
            equal = sum(answers[index] == expected[index] for index in range(count))
            print(f"{name}: beam {beam}: {equal} of {count} texts equal", flush=True)
    runs = {"fairseq": lambda index: searched(model, target, given[index : index + 1], 4)}
    for name, served in zip(("float32", "int8"), files):
        runs[name] = lambda index, served=served: served.search(given[index : index + 1], 4, most=STEPS)
    print({name: f"{milliseconds(run):.1f} ms" for name, run in runs.items()}, flush=True)


@torch.no_grad()
def language(model: nn.Module, files: Sequence[serve.Model], count: int) -> None:
    """Prints the rows of a language model, whose most likely next symbols are compared at each place."""
    tokens = np.random.default_rng(0).integers(4, len(model.decoder.dictionary), (count, STEPS))
    exact = model(torch.tensor(tokens))[0].log_softmax(-1).numpy()
    for name, served in zip(("float32", "int8"), files):
        found = forced(served, tokens, {})
        equal = (found.argmax(-1) == exact.argmax(-1)).all(1).sum()
        difference = np.abs(found - exact).max()
        print(f"{name}: largest difference {difference:.1e}; {equal} of {count} texts equal", flush=True)

    def steps(index: int) -> None:
        state: dict = {}
        for place in range(1, STEPS + 1):
            model(torch.tensor(tokens[index : index + 1, :place]), incremental_state=state)

    runs = {"fairseq": steps}
    for name, served in zip(("float32", "int8"), files):
        runs[name] = lambda index, served=served: forced(served, tokens[index : index + 1], {})
    print({name: f"{milliseconds(run):.1f} ms" for name, run in runs.items()}, flush=True)


@torch.no_grad()
def of_text(name: str, count: int) -> None:
    hub = RingFormer.from_pretrained(SHIPPED)
    letters, phonemes = hub.task.source_dictionary, hub.task.target_dictionary
    if name == SHIPPED:
        model = hub.models[0].float()
    elif name in architectures(LoopedTransformer):
        model = build_architecture(name, letters, phonemes)
    else:
        model = build_language_model(name, phonemes)
    model.eval()
    print(f"{stored_bytes(model.state_dict().values()):,} bytes of weights")
    dictionaries = [letters, phonemes] if hasattr(model, "encoder") else [phonemes]
    args = Namespace(arch=name, position=None)
    with tempfile.TemporaryDirectory() as parent:
        files = []
        for int8 in (False, True):
            folder = Path(parent) / f"int8-{int8}"
            folder.mkdir()
            onnx.write(model, args, folder, dictionaries, None, int8)
            graphs = [*folder.glob("*.onnx"), folder / onnx.WEIGHTS]
            size = sum(file.stat().st_size for file in graphs)
            print(f"{'int8' if int8 else 'float32'}: {size:,} bytes", flush=True)
            files.append(serve.Model(folder, threads=1))
        (translation if len(dictionaries) == 2 else language)(model, files, count)


@torch.no_grad()
def of_images(name: str, count: int) -> None:
    model = timm.create_model(name, pretrained="." in name).eval()
    print(f"{stored_bytes(model.state_dict().values()):,} bytes of weights")
    images = torch.randn(count, model.in_chans, *model.patch_embed.img_size)
    exact = torch.cat([model(part) for part in images.split(8)])
    runs = {"torch": lambda index: model(images[index : index + 1])}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for kind, int8 in (("float32", False), ("int8", True)):
        made = export(model, int8).SerializeToString()
        session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
        runs[kind] = lambda index, run=session.run: run(None, {"images": images[index : index + 1].numpy()})
        found = np.concatenate([session.run(None, {"images": part.numpy()})[0] for part in images.split(8)])
        equal = (found.argmax(1) == exact.numpy().argmax(1)).sum()
        difference = np.abs(found - exact.numpy()).max()
        print(f"{kind}: {len(made):,} bytes", flush=True)
        print(f"{kind}: largest difference {difference:.1e}; {equal} of {count} classes equal", flush=True)
    print({kind: f"{milliseconds(run):.1f} ms" for kind, run in runs.items()}, flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--texts", type=int, default=500, help="texts or images to compare (500)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.models:
        print(f"\n{name}", flush=True)
        torch.manual_seed(0)
        (of_images if timm.is_model(name.partition(".")[0]) else of_text)(name, options.texts)


if __name__ == "__main__":
    main()
