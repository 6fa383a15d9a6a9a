"""Text models as ONNX: the tokens of fairseq's search, each tensor stored once, served without torch and fairseq."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("onnxscript")

from fairseq_plugin import convert, serve
from fairseq_plugin.export import onnx
from fairseq_plugin.models.ringformer import WEIGHTS
from tests.support import models, searching

SHIPPED = next(WEIGHTS.iterdir())
TRANSLATE = {
    "ringformer": ("ringformer_base",),
    "signals on keys and values": ("ringformer_base", "--cross-attention-signal", "after"),
    "learned positions": ("ringformer_base", "--position", "learned"),
    "universal": ("universal",),
    "one wide FFN": ("one_wide_ffn_base",),
    "relative, tied": ("cycle", "--position", "relative", "--share-decoder-input-output-embed"),
    "Admin": ("sequence", "--init", "admin"),
    "NLL": ("recursive_iwslt_de_en", "--nll"),
}
CONTINUE = {
    "rotary": ("ilr_small",),
    "ALiBi, injected": ("ilr_small", "--position", "alibi", "--block-loops", "2", "--inject-embedding"),
    "recurrent": ("recurrent_lm",),
    "recurrent, accumulating": ("recurrent_lm", "--window", "2", "--accumulate"),
}
slow = pytest.mark.slow


def written(model: nn.Module, arch: str, flags: tuple[str, ...], folder: Path, **options) -> serve.Model:
    """The model as it is served from a folder."""
    sides = [getattr(model, side) for side in models.SIDES if hasattr(model, side)]
    dictionaries = [side.dictionary for side in sides]
    onnx.write(model, models.saved_options(arch, *flags), folder, dictionaries, None, **options)
    return serve.Model(folder, threads=1)


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow if name != "ringformer" else ()) for name in TRANSLATE])
def test_translations_are_those_of_fairseqs_search(name, tmp_path):
    arch, *flags = TRANSLATE[name]
    model = searching.varied_model(arch, flags=flags).float()
    rows, batch = searching.sources(arch)
    expected = {
        beam: searching.translate(searching.search(model, beam_size=beam), batch) for beam in (1, 4)
    }  # before the export, which changes no weight
    served = written(model, arch, tuple(flags), tmp_path)
    texts = [row[:-1].tolist() for row in rows]
    for beam, hypotheses in expected.items():
        best = [found[0]["tokens"][:-1].tolist() for found in hypotheses]
        assert served.search(texts, beam, most=12) == best
        assert any(best)


@slow
@pytest.mark.parametrize("name", CONTINUE)
def test_steps_of_a_language_model_have_its_scores(name, tmp_path):
    arch, *flags = CONTINUE[name]
    model = models.tiny(arch, *flags).float()
    served = written(model, arch, tuple(flags), tmp_path)
    text = torch.randint(4, models.TARGET_SYMBOLS, (2, 9))
    with torch.no_grad():
        expected = model(text)[0].log_softmax(-1).numpy()
    state = served.first_state(2)
    for place in range(text.size(1)):
        scores, state = served.step(text[:, place : place + 1].numpy(), state, {})
        np.testing.assert_allclose(scores, expected[:, place], rtol=1e-4, atol=1e-4)
    prompt = text[0, :3].tolist()
    assert served.search([prompt], beam=2, most=5)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The shipped model as a folder."""
    path = tmp_path_factory.mktemp("onnx") / "model"
    convert.main(["onnx", str(SHIPPED / "model.pt"), str(path), "--dictionary", str(SHIPPED)])
    return path


def test_each_tensor_is_stored_once(folder):
    state = torch.load(SHIPPED / "model.pt", weights_only=False)["model"]
    stored = sum(tensor.numel() * 4 for tensor in state.values())  # in float32
    files = sum(file.stat().st_size for file in folder.glob("*.onnx")) + (folder / "weights.bin").stat().st_size
    assert stored * 0.95 < files < stored * 1.1 + 80_000  # which the graphs of any model take


def test_a_folder_is_served_without_torch_and_fairseq(folder):
    """By the copy of serve.py in it, in a process where neither can be imported."""
    words = [word for word in serve.Model(folder).source[4:] if word.isprintable()][:4]
    lines = [" ".join(words), "", " ".join(words[:2] + ["never-seen"])]
    blocked = "import sys; sys.modules.update(torch=None, fairseq=None, recurrence=None, fairseq_plugin=None)"
    program = f"{blocked}; sys.argv[0] = 'serve.py'; exec(open({str(folder / 'serve.py')!r}).read())"
    command = [sys.executable, "-I", "-c", program, str(folder), "--beam", "2", "--tokenized"]
    made = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    answers = made.stdout.split("\n")
    assert len(answers) == len(lines) + 1
    assert answers[0]
    assert answers[:-1] == serve.Model(folder).translate(lines, beam=2, tokenized=True)


@slow
def test_eight_bits_take_less_than_half(folder, tmp_path):
    small = tmp_path / "int8"
    convert.main(["onnx", str(SHIPPED / "model.pt"), str(small), "--dictionary", str(SHIPPED), "--int8"])
    sizes = [(path / "weights.bin").stat().st_size for path in (small, folder)]
    assert sizes[0] < 0.5 * sizes[1]
    words = serve.Model(small).source[4:9]
    line = " ".join(words)
    assert serve.Model(small).translate([line], tokenized=True)[0]


@pytest.mark.parametrize(
    ("arch", "flags", "message"),
    [
        ("s2t_cycle", (), "^--arch s2t_cycle: reads speech"),
        ("cycle_lm", ("--adaptive-input-cutoff", "8"), "^--adaptive-input-cutoff=8: bands are not exported"),
        ("recurrent_lm", ("--position", "learned"), "^--position=learned: a recurrence with positions"),
    ],
)
def test_what_is_not_exported_is_refused_by_name(arch, flags, message):
    args = models.saved_options(arch, *flags)
    with pytest.raises(ValueError, match=message):
        onnx.check(models.on_meta(arch, *flags), Namespace(**vars(args)))


def test_a_folder_that_exists_is_kept(tmp_path, capsys):
    with pytest.raises(SystemExit):
        convert.main(["onnx", str(SHIPPED / "model.pt"), str(tmp_path), "--dictionary", str(SHIPPED)])
    assert f"OUT={tmp_path}: must not exist yet" in capsys.readouterr().err


def test_a_folder_of_something_else_is_named(tmp_path):
    command = [sys.executable, serve.__file__, str(tmp_path)]
    made = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert f"FOLDER={tmp_path}: has no model.json" in made.stderr
