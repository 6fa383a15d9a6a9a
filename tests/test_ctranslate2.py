"""Unshared models in CTranslate2, by its own converter of fairseq's checkpoints: the same translations, stored once."""

from pathlib import Path

import pytest
import torch

from fairseq_plugin import convert
from tests import cli

ctranslate2 = pytest.importorskip("ctranslate2")

from ctranslate2.converters import FairseqConverter  # noqa: E402


@pytest.fixture(scope="module")
def unshared(trained, tmp_path_factory) -> Path:
    """The host's checkpoint of the trained RingFormer."""
    path = tmp_path_factory.mktemp("ctranslate2") / "unshared.pt"
    convert.main(["unshare", str(trained.folder / "checkpoint_last.pt"), str(path)])
    return path


def export(checkpoint: Path, data: Path, **options) -> Path:
    """The folder of the converted model."""
    folder = checkpoint.with_suffix("".join(options.values()) or ".float32")
    FairseqConverter(str(checkpoint), str(data), "en", "de").convert(str(folder), **options)
    return folder


def test_it_translates_as_fairseq_does(unshared, corpus, trained):
    translator = ctranslate2.Translator(str(export(unshared, corpus.data)), intra_threads=1)
    sources = corpus.text.with_name(f"{corpus.text.name}.test.en").read_text().splitlines()
    results = translator.translate_batch([line.split() for line in sources], beam_size=2, max_decoding_length=15)
    found = [" ".join(result.hypotheses[0]) for result in results]
    flags = ("--beam", "2", "--max-len-b", "14", "--batch-size", "128")  # the end of the sentence counts here
    log = cli.hypotheses(cli.generate(corpus.data, trained.folder / "checkpoint_last.pt", *flags))
    expected = [log[number][0] for number in range(len(sources))]
    assert sum(ours == theirs for ours, theirs in zip(found, expected)) > 0.98 * len(expected)


@pytest.mark.parametrize("options", [{}, dict(quantization="int8")], ids=["float32", "int8"])
def test_layers_that_are_equal_are_stored_once(unshared, corpus, options):
    state = torch.load(unshared, weights_only=True)
    first = {key: tensor for key, tensor in state["model"].items() if ".layers.0." in key}
    tied = {key.replace("layers.0", "layers.1"): tensor for key, tensor in first.items()}
    apart = {key: tensor + 0.01 for key, tensor in tied.items()}
    sizes = []
    for name, layers in (("tied", tied), ("apart", apart)):
        checkpoint = unshared.with_name(f"{name}.pt")
        torch.save({**state, "model": {**state["model"], **layers}}, checkpoint)
        sizes.append((export(checkpoint, corpus.data, **options) / "model.bin").stat().st_size)
    matrices = sum(tensor.numel() for tensor in tied.values() if tensor.dim() == 2)
    assert sizes[1] - sizes[0] >= matrices * (1 if options else 4)
