"""Compare a model with its files of ONNX: bytes, differences, equal texts, BLEU, milliseconds of one thread.

    python -m benchmarks.serving MODEL ... [--texts 500]

A model of text is a checkpoint: the first texts of its data's test set are translated, or continued from their first
four symbols. A model of images is a registered name, which gets random weights, or `sret_nano.cifar10`. Milliseconds
are of the processor, so that other programs on the machine count little: of a text alone, with beam 4, of an image
alone.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import onnxruntime
import timm
import torch
from ctranslate2.converters import FairseqConverter
from fairseq import checkpoint_utils
from fairseq.data.data_utils import load_indexed_dataset
from fairseq.sequence_generator import SequenceGenerator
from sacrebleu import corpus_bleu
from torch import nn

import fairseq_plugin
from fairseq_plugin import convert, serve
from fairseq_plugin.export import onnx
from fairseq_repairs.checkpoints import load_safely
from recurrence.weights.command import stored_bytes
from timm_plugin.onnx import export

PROMPT, CONTINUED, LONGEST = 4, 20, 60  # symbols of a prompt, of its continuation, of a translation
TIMED, BATCH = 30, 32
Numbers = list[list[int]]
Run = Callable[[Numbers, int], Numbers]  # what a search finds for each text with a beam


def milliseconds(run: Callable[[int], object]) -> float:
    """The median of the processor's time for the texts or images 0 to TIMED."""
    times = []
    for index in range(TIMED):
        start = time.process_time()
        run(index)
        times.append(time.process_time() - start)
    return 1000 * float(np.median(times))


def size(files: Sequence[Path]) -> str:
    return f"{sum(file.stat().st_size for file in files):,} bytes"


def by_fairseq(model: nn.Module, texts: Numbers, beam: int) -> Numbers:
    """What fairseq's search finds for each text."""
    target, translates = model.decoder.dictionary, hasattr(model, "encoder")
    longest = LONGEST if translates else PROMPT + CONTINUED
    search = SequenceGenerator([model], target, beam_size=beam, max_len_a=0, max_len_b=longest)
    end = [target.eos()] if translates else []
    rows = [torch.tensor([*text, *end]) for text in texts]
    source = nn.utils.rnn.pad_sequence(rows, True, target.pad(), padding_side="left")
    inputs = dict(src_tokens=source, src_lengths=torch.tensor(list(map(len, rows))))
    prompts = None if translates else source
    found = search.generate([], {"net_input": inputs}, prefix_tokens=prompts)
    return [best["tokens"][0 if translates else PROMPT : -1].tolist() for best, *_ in found]


def by_onnx(served: serve.Model, texts: Numbers, beam: int) -> Numbers:
    """The same of a folder of ONNX."""
    if served.about["translates"]:
        return served.search(texts, beam, LONGEST)
    return [served.search([text], beam, CONTINUED)[0] for text in texts]


def all_of(run: Run, texts: Numbers, beam: int) -> Numbers:
    """What a search finds for many texts, in batches of similar lengths."""
    order, found = sorted(range(len(texts)), key=lambda index: len(texts[index])), {}
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        found |= zip(part, run([texts[index] for index in part], beam))
    return [found[index] for index in range(len(texts))]


def difference(model: nn.Module, served: serve.Model, texts: Numbers, outputs: Numbers) -> float:
    """The largest difference of a log-probability between the two, after each symbol of the expected outputs."""
    largest = 0.0
    for text, output in zip(texts, outputs):
        inputs, read, given = served.first_state(1), [served.start, *output], ()
        if served.about["translates"]:
            source = np.array([[*text, served.eos]])
            (contexts,) = served.sessions["encoder"].run(None, {"source": source})
            inputs, given = inputs | dict(source=source, contexts=contexts), (torch.tensor(source), None)
        exact = model(*given, torch.tensor([read]))[0].log_softmax(-1)[0].numpy()
        for place, symbol in enumerate(read):
            scores, inputs = served.step(np.array([[symbol]]), inputs)
            largest = max(largest, np.abs(scores[0] - exact[place]).max())
    return largest


def by_ctranslate2(state: dict[str, Any], data: str, folder: Path, symbols: list[list[str]]) -> dict[str, Run]:
    """The searches of CTranslate2, which runs no loops, in the unshared model, by their names.

    Args:
        state: of the looped model's checkpoint.
        data: its folder of data, with the dictionaries.
        folder: for the files.
        symbols: the symbols of source and target by number: CTranslate2 reads and writes symbols, not numbers.
    """
    path, runs = folder / "unshared.pt", {}
    checkpoint_utils.torch_persistent_save(convert.unshare_checkpoint(state), str(path))
    converter = FairseqConverter(str(path), data, user_dir=str(Path(fairseq_plugin.__file__).parent))
    numbers = {symbol: number for number, symbol in enumerate(symbols[1])}
    for kind in ("float32", "int8"):
        made = folder / f"ctranslate2-{kind}"
        converter.convert(str(made), quantization=kind)
        name = f"CTranslate2, {kind}"
        print(f"{name}: {size([made / 'model.bin'])}")
        translator = ctranslate2.Translator(str(made), inter_threads=1, intra_threads=1)

        def run(texts: Numbers, beam: int, translator: ctranslate2.Translator = translator) -> Numbers:
            words = [[symbols[0][number] for number in text] for text in texts]
            found = translator.translate_batch(words, beam_size=beam, max_decoding_length=LONGEST)
            return [[numbers[word] for word in each.hypotheses[0]] for each in found]

        runs[name] = run
    return runs


def test_set(task: Any, data: str, count: int) -> tuple[Numbers, Numbers]:
    """The first texts and their translations; for a language model the beginnings of lines, and the lines."""
    if hasattr(task, "src_dict"):
        task.load_dataset("test")
        sides = task.dataset("test").src, task.dataset("test").tgt
        texts, expected = ([row[:-1].tolist() for row, _ in zip(side, range(count))] for side in sides)
    else:
        rows = load_indexed_dataset(f"{data}/test", task.dictionary)
        expected = [row[:-1].tolist() for row in rows if len(row) > PROMPT][:count]
        texts = [row[:PROMPT] for row in expected]
    return texts, expected


@torch.no_grad()
def of_text(path: str, count: int) -> None:
    state = load_safely(path)
    (model,), options, task = checkpoint_utils.load_model_ensemble_and_task([path])
    model.float().eval()
    data, target, translates = options.task.data, model.decoder.dictionary, hasattr(model, "encoder")
    texts, expected = test_set(task, data, count)
    print(f"{stored_bytes(model.state_dict().values()):,} bytes of weights; {len(texts)} texts")
    runs: dict[str, Run] = {"fairseq": lambda texts, beam: by_fairseq(model, texts, beam)}
    with tempfile.TemporaryDirectory() as parent:
        for kind in ("float32", "int8"):
            folder = Path(parent) / kind
            convert.write_onnx(state, folder, Path(data), None, kind == "int8")
            print(f"{kind}: {size([*folder.glob('*.onnx'), folder / onnx.WEIGHTS])}")
            served = serve.Model(folder, threads=1)
            largest = difference(model, served, texts[:20], expected[:20])
            print(f"{kind}: largest difference {largest:.1e}", flush=True)
            runs[kind] = lambda texts, beam, served=served: by_onnx(served, texts, beam)
        if translates:
            symbols = [task.source_dictionary.symbols, target.symbols]
            runs |= by_ctranslate2(state, data, Path(parent), symbols)
        for name, run in runs.items():
            taken = milliseconds(lambda index, run=run: run([texts[index % len(texts)]], 4))
            print(f"{name}: {taken:.1f} ms", flush=True)
        for beam in (1, 4):
            found = {name: all_of(run, texts, beam) for name, run in runs.items()}
            for name, outputs in found.items():
                equal = sum(one == other for one, other in zip(outputs, found["fairseq"]))
                print(f"{name}: beam {beam}: {equal} of {len(texts)} texts equal", flush=True)
                if translates:
                    lines = [target.string(row, "sentencepiece") for row in outputs]
                    bleu = corpus_bleu(lines, [[target.string(row, "sentencepiece") for row in expected]])
                    print(f"{name}: beam {beam}: BLEU {bleu.score:.2f}", flush=True)


@torch.no_grad()
def of_images(name: str, count: int) -> None:
    model = timm.create_model(name, pretrained="." in name).eval()
    print(f"{stored_bytes(model.state_dict().values()):,} bytes of weights")
    images = torch.randn(count, model.in_chans, *model.patch_embed.img_size)
    exact = torch.cat([model(part) for part in images.split(8)])
    alone = images.split(1)
    runs = {"torch": lambda index: model(alone[index % count])}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for kind, int8 in (("float32", False), ("int8", True)):
        made = export(model, int8).SerializeToString()
        session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
        runs[kind] = lambda index, run=session.run: run(None, {"images": alone[index % count].numpy()})
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
