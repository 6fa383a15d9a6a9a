"""Text models as ONNX: the tokens of fairseq's search, each tensor stored once, served without torch and fairseq."""

import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqDecoder, FairseqLanguageModel
from onnx import TensorProto, load
from torch import nn

pytest.importorskip("onnxscript")

from fairseq_plugin import convert, serve
from fairseq_plugin.export import onnx, upstream
from fairseq_plugin.models.ringformer import WEIGHTS
from fairseq_repairs.checkpoints import load_safely
from fairseq_repairs.corpus import digest
from recurrence.weights.command import stored_bytes
from tests.support import guide, language, models, searching

SHIPPED = next(WEIGHTS.iterdir())
TWICE = ("--encoder-layers", "2", "--decoder-layers", "2")  # an export takes as long as it has passes
SIGNALS = ("--cross-attention-signal", "after", "--position", "learned")
AGAIN = ("--encoder-order", "0,1,0", "--decoder-order", "0,1,0")
RELATIVE = ("--position", "relative", "--share-decoder-input-output-embed")
TRANSLATE = {
    "ringformer": ("ringformer_base", *TWICE),
    "signals on keys and values, learned positions": ("ringformer_base", *TWICE, *SIGNALS),
    "universal": ("universal", *TWICE),
    "one wide FFN": ("one_wide_ffn_base", *TWICE),
    "Admin, relative, tied": ("cycle", *AGAIN, "--init", "admin", *RELATIVE),
    "NLL": ("recursive_iwslt_de_en", "--nll"),
}
CONTINUE = {
    "rotary": ("ilr_small",),
    "ALiBi, injected": ("ilr_small", "--position", "alibi", "--block-loops", "2", "--inject-embedding"),
    "recurrent": ("recurrent_lm",),
    "recurrent, accumulating": ("recurrent_lm", "--window", "2", "--accumulate"),
}
GRAPHS = 100_000  # bytes of the graphs of any model: a tenth of a megabyte, so that files are at most 1.10 of that
WITHOUT = "import sys; sys.modules.update(torch=None, fairseq=None, recurrence=None, fairseq_plugin=None)"
slow = pytest.mark.slow


def written(model: nn.Module, arch: str, flags: tuple[str, ...], folder: Path, **of_task) -> serve.Model:
    """The model as it is served from a folder; of_task: options of its task."""
    sides = [getattr(model, side) for side in models.SIDES if hasattr(model, side)]
    args = Namespace(**{**vars(models.saved_options(arch, *flags)), **of_task})
    onnx.write(model, args, folder, [side.dictionary for side in sides], None)
    return serve.Model(folder, threads=1)


def stored_once(model: nn.Module, folder: Path) -> bool:
    """Whether the files hold the model's weights once, beside the graphs."""
    size = sum(file.stat().st_size for file in (*folder.glob("*.onnx"), folder / onnx.WEIGHTS))
    return size < stored_bytes(model.state_dict().values()) + GRAPHS


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
    assert stored_once(model, tmp_path)


@slow
@pytest.mark.parametrize("name", CONTINUE)
def test_scores_and_continuations_of_a_language_model_are_fairseqs(name, tmp_path, caplog):
    arch, *flags = CONTINUE[name]
    model = models.tiny(arch, *flags).float()
    text = torch.randint(4, models.TARGET_SYMBOLS, (3, 9))
    prompts = text[:, :3]
    with torch.no_grad():
        expected = model(text)[0].log_softmax(-1).numpy()
    found = {beam: searching.continue_prompts(searching.search(model, beam_size=beam), prompts) for beam in (1, 4)}
    served = written(model, arch, tuple(flags), tmp_path)
    state = served.first_state(3)
    for place in range(text.size(1)):
        scores, state = served.step(text[:, place : place + 1].numpy(), state)
        np.testing.assert_allclose(scores, expected[:, place], rtol=1e-4, atol=1e-4)
    for beam, hypotheses in found.items():
        best = [each[0]["tokens"][prompts.size(1) : -1].tolist() for each in hypotheses]
        assert [served.search([prompt], beam, most=9)[0] for prompt in prompts.tolist()] == best
        assert any(best)
    assert stored_once(model, tmp_path)
    served.about["longest"] = 13  # ends all where this search ends
    first, *others = (served.decode(prompt) for prompt in prompts.tolist())
    continued = served.translate([first, " ".join([first] * 4), *others, ""], beam=4, tokenized=True)
    assert [continued.pop(0), *continued[1:-1]] == [served.decode(text) for text in best]
    assert continued[0] == ""
    assert continued[-1]  # of no prompt
    assert caplog.messages[-1] == "line 2: has 12 symbols: must have < 12: left empty"


@slow
def test_a_language_model_with_a_symbol_at_the_start_continues_as_in_fairseq(tmp_path):
    """`--add-bos-token`; without it, fairseq's texts begin with the end of a sentence."""
    model, task = models.tiny("ilr_small").float(), language.task()
    prompts = torch.randint(4, models.TARGET_SYMBOLS, (4, 3))
    batch = {"net_input": {"src_tokens": prompts, "src_lengths": torch.full((4,), 3)}}
    found = []
    for at_start in (False, True):
        task.args.add_bos_token = at_start
        search, folder = searching.search(model, beam_size=4), tmp_path / str(at_start)
        expected = task.inference_step(search, [], batch, prefix_tokens=prompts)
        folder.mkdir()
        served = written(model, "ilr_small", (), folder, add_bos_token=at_start)
        found.append([served.search([prompt], 4, most=9)[0] for prompt in prompts.tolist()])
        assert found[-1] == [each[0]["tokens"][3:-1].tolist() for each in expected]
    assert found[0] != found[1]


def chances(texts: np.ndarray, seed: int) -> np.ndarray:
    """Log-probabilities of the next symbol, (B, V), drawn for each text; the padding and the end are likely."""
    drawn = np.stack([np.random.default_rng([seed, *text]).normal(size=models.TARGET_SYMBOLS) for text in texts])
    drawn[:, 1:3] += 2
    return torch.tensor(drawn).float().log_softmax(-1).numpy()


class Drawn(FairseqDecoder):
    """Has such scores in fairseq."""

    def __init__(self, words: Dictionary, seed: int):
        super().__init__(words)
        self.seed = seed

    def forward(self, prev_output_tokens, encoder_out=None):
        return torch.from_numpy(chances(prev_output_tokens.numpy(), self.seed))[:, None], None


class Served(serve.Model):
    """Has such scores; its state is the text."""

    def __init__(self, words: Dictionary, seed: int):
        self.about = dict(translates=False, longest=99, state={"text": ["batch", "past"]}, types={"text": "int64"})
        self.target, self.batch_dims, self.seed = words.symbols, {"text": 0}, seed
        self.pad, self.eos, self.unk, self.start = words.pad(), words.eos(), words.unk(), words.eos()

    def step(self, tokens, inputs):
        text = np.concatenate([inputs["text"], tokens], axis=1)
        return chances(text, self.seed), {"text": text}


@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_a_search_is_fairseqs_whatever_the_scores(length, beam):
    words, lengths = models.dictionary(models.TARGET_SYMBOLS), set()
    for seed in range(12):
        search = searching.search(
            FairseqLanguageModel(Drawn(words, seed)), incremental=False, beam_size=beam, max_len_b=8
        )
        prompt = torch.randint(4, len(words), (1, length), generator=torch.Generator().manual_seed(seed))
        ((best, *_),) = searching.continue_prompts(search, prompt)
        found = Served(words, seed).search(prompt.tolist(), beam, most=8 - length)
        assert found == [best["tokens"][length:-1].tolist()]
        lengths.add(len(found[0]))
    assert len(lengths) > 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The shipped model as a folder, with letters as pieces."""
    path = tmp_path_factory.mktemp("onnx")
    (path / "text").write_text("\n".join(["abcdefghijklm", "nopqrstuvwxyz"] * 5))
    letters = dict(model_type="char", vocab_size=29, add_dummy_prefix=False, minloglevel=2)
    sentencepiece.SentencePieceTrainer.train(input=str(path / "text"), model_prefix=str(path / "letters"), **letters)
    words = ["onnx", str(SHIPPED / "model.pt"), str(path / "model"), "--dictionary", str(SHIPPED)]
    convert.main([*words, "--sentencepiece-model", str(path / "letters.model")])
    return path / "model"


def test_files_are_at_most_a_tenth_larger_than_the_weights(folder):
    stored = 2 * stored_bytes(load_safely(SHIPPED / "model.pt")["model"].values())  # which are float16
    size = sum(file.stat().st_size for file in (*folder.glob("*.onnx"), folder / onnx.WEIGHTS))
    assert stored * 0.95 < size < stored * 1.1


def test_a_folder_is_served_without_torch_and_fairseq(folder):
    """By the copy of serve.py in it, in a process where neither can be imported."""
    words = [word for word in serve.Model(folder).source[4:] if word.isprintable()][:4]
    lines = [" ".join(words), "", " ".join(words[:2] + ["never-seen"])]
    program = f"{WITHOUT}; sys.argv[0] = 'serve.py'; exec(open({str(folder / 'serve.py')!r}).read())"
    command = [sys.executable, "-I", "-c", program, str(folder), "--beam", "2", "--tokenized"]
    made = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    answers = made.stdout.split("\n")
    assert [bool(answer) for answer in answers] == [True, False, True, False]  # an empty line has no translation
    for batch in (1, 2, 32):
        assert answers[:-1] == serve.Model(folder).translate(lines, beam=2, tokenized=True, batch=batch)


def test_a_terminal_of_another_encoding_and_a_beam_of_all_symbols(folder, tmp_path):
    """The output is UTF-8 whatever the locale is."""
    changed = shutil.copytree(folder, tmp_path / "changed")
    about = (changed / "model.json").read_text(encoding="utf-8")
    assert about.count('"K"') == 1
    (changed / "model.json").write_text(about.replace('"K"', '"Ќ"'), encoding="utf-8")

    def served(*flags: str) -> subprocess.CompletedProcess:
        command = [sys.executable, changed / "serve.py", changed, "--tokenized", *flags]
        environment = {"PYTHONIOENCODING": "latin-1"}
        return subprocess.run(command, input="c a t\n", capture_output=True, encoding="utf-8", env=environment)

    assert served("--beam", "46").stdout == "Ќ AE T\n"
    assert served("--beam", "47").stderr.endswith("error: --beam=47: must be <= 46, because there are 48 symbols\n")


def test_raw_text_is_cut_into_pieces_and_joined_from_them(folder):
    served = serve.Model(folder)
    assert served.translate(["cat"]) == ["KAET"]
    assert served.translate(["c a t"], tokenized=True) == ["K AE T"]
    assert [served.source[number] for number in served.encode("c never-seen", tokenized=True)] == ["c", "<unk>"]


def test_the_pages_example_translates(folder, tmp_path):
    (tmp_path / "served").symlink_to(folder)
    program = f"{WITHOUT}\n{guide.example('export.md', 'import serve')}"
    command = [sys.executable, "-I", "-c", program]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [bool(line) for line in made.stdout.splitlines()] == [True, True]


def test_cosines_in_float64_are_sines(folder):
    """onnxruntime 1.23 has no others."""
    nodes = [node for path in folder.glob("*.onnx") for node in load(path, load_external_data=False).graph.node]
    assert [node.op_type for node in nodes if node.op_type in ("Sin", "Cos")] == ["Sin"] * 4


@slow
def test_eight_bits_take_a_quarter(folder, tmp_path):
    small = tmp_path / "int8"
    convert.main(["onnx", str(SHIPPED / "model.pt"), str(small), "--dictionary", str(SHIPPED), "--int8"])
    sizes = [(path / "weights.bin").stat().st_size for path in (small, folder)]
    assert sizes[0] <= 0.25 * sizes[1]
    graphs = [load(small / f"{name}.onnx", load_external_data=False).graph for name in ("encoder", "decoder")]
    stored = [tensor for graph in graphs for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT]
    assert {len(tensor.dims) for tensor in stored} == {0, 1}  # scales, norms and biases
    words = serve.Model(small).source[4:9]
    line = " ".join(words)
    assert serve.Model(small).translate([line], tokenized=True)[0]
    assert serve.Model(small).translate([line]) == serve.Model(small).translate([line], tokenized=True)


@pytest.mark.parametrize(
    ("arch", "flags", "message"),
    [
        ("s2t_cycle", (), "^--arch s2t_cycle: reads speech"),
        ("cycle_lm", ("--adaptive-input-cutoff", "8"), "^--adaptive-input-cutoff=8: bands are not exported"),
        ("recurrent_lm", ("--position", "learned"), "^--position=learned: a recurrence with positions"),
        ("recurrent_lm", ("--position", "sinusoidal"), "^--position=sinusoidal: a recurrence with positions"),
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


def test_wrong_arguments_are_named(tmp_path, rejected):
    assert f"FOLDER={tmp_path}: has no model.json" in rejected(serve.main, tmp_path)
    assert "--beam=0: must be >= 1" in rejected(serve.main, tmp_path, "--beam", "0")


def test_a_line_that_is_mostly_unknown_is_told(folder, caplog):
    served = serve.Model(folder)
    word = served.source[4]
    served.translate(["raw text", f"{word} {word} text", ""], beam=1, tokenized=True)
    (said,) = caplog.messages
    assert said.startswith("line 1: 2 of 2 symbols are unknown: is it raw text")


def test_a_line_beyond_the_encoders_positions_is_left_empty_with_a_warning(folder, caplog):
    served = serve.Model(folder)
    most = load_safely(SHIPPED / "model.pt")["cfg"]["model"].max_source_positions
    assert served.about["longest_source"] == most
    word = served.source[4]
    fits, long = " ".join([word] * 2), " ".join([word] * 3)
    before = served.translate([long, fits], beam=1, tokenized=True)
    assert not caplog.messages
    served.about["longest_source"] = 3  # two symbols and the end
    assert served.translate([long, fits], beam=1, tokenized=True) == ["", before[1]]
    assert caplog.messages == ["line 1: has 3 symbols: must have < 3: left empty"]
    del served.about["longest_source"]  # as in a folder of an earlier version
    assert served.translate([long, fits], beam=1, tokenized=True) == before


def test_a_carriage_return_shifts_no_answer(folder):
    first, second = serve.Model(folder).source[4:6]
    lines = [f"{first} {second}", second, f"{second} {first}"]
    command = [sys.executable, serve.__file__, str(folder), "--beam", "1", "--tokenized"]
    given = f"{first}\r{second}\n{second}\r\n{second} {first}\n".encode()
    made = subprocess.run(command, input=given, capture_output=True, check=True)
    assert made.stdout.decode().splitlines() == serve.Model(folder).translate(lines, beam=1, tokenized=True)


def test_text_that_is_not_utf8_is_named(folder):
    command = [sys.executable, serve.__file__, str(folder)]
    made = subprocess.run(command, input=b"Ein \xff Hund\n", capture_output=True, check=False)
    assert made.returncode == 2
    assert b"standard input: must be UTF-8" in made.stderr


def test_pieces_of_other_data_are_told(tmp_path, caplog):
    dictionary, text, model = Dictionary(), tmp_path / "text.txt", tmp_path / "other"
    for word in ("Hund", "Schnee", "Kinder"):
        dictionary.add_symbol(word)
    text.write_text("abcde\n" * 10)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(model), hard_vocab_limit=False, minloglevel=2
    )
    convert._warn_of_other_pieces([dictionary], model.with_suffix(".model"))
    assert "other.model: has only 0 of the dictionary's 3 symbols" in caplog.text
    with pytest.raises(ValueError, match="text.txt: not a sentencepiece model"):
        convert._warn_of_other_pieces([dictionary], text)


def test_data_that_the_checkpoint_names_and_are_gone_are_told(tmp_path):
    state = {"args": Namespace(arch="ringformer_small", data=str(tmp_path / "gone"))}
    model = models.on_meta("ringformer_small")
    with pytest.raises(ValueError, match="gone: no such file or folder: the checkpoint names it"):
        convert._load_dictionaries(state, tmp_path / "gone", model)
    with pytest.raises(ValueError, match="other: no such file or folder$"):
        convert._load_dictionaries(state, tmp_path / "other", model)


def test_a_dictionary_of_other_data_is_rejected(tmp_path, rejected):
    """Of the right length but in another order, which only the digests in the checkpoint show; or of another length."""
    state, out = load_safely(SHIPPED / "model.pt"), tmp_path / "out"
    source, target = (Dictionary.load(str(SHIPPED / f"dict.{side}.txt")) for side in ("letters", "phonemes"))
    state["dictionaries"] = dict(source=digest(source), target=digest(target))
    torch.save(state, tmp_path / "model.pt")
    for side in ("letters", "phonemes"):
        shutil.copy(SHIPPED / f"dict.{side}.txt", tmp_path)
    model = upstream.build(convert._model_options(state), state["model"])
    assert convert._load_dictionaries(state, tmp_path, model) == [source, target]
    both = tmp_path / "dict.letters.txt"  # a file is the dictionary of both sides
    message = f"--dictionary={both}: has {len(source)} symbols: must have the model's {len(target)}"
    assert message in rejected(convert.main, "onnx", tmp_path / "model.pt", out, "--dictionary", both)
    path = tmp_path / "dict.phonemes.txt"
    first, *lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, first]))
    message = f"--dictionary={path}: must be the one of the model's training"
    assert message in rejected(convert.main, "onnx", tmp_path / "model.pt", out)
    path.write_text("".join(lines))
    message = f"--dictionary={path}: has {len(target) - 1} symbols: must have the model's {len(target)}"
    assert message in rejected(convert.main, "hf", tmp_path / "model.pt", out, "--dictionary", tmp_path)
    assert not out.exists()
