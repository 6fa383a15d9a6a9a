"""fairseq's commands on speech: train, resume, generate, interactive; audio files, stored features, waveforms."""

import random
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("kaldi_native_fbank", reason="the extra speech is not installed")
import soundfile
import torch
from fairseq.data.audio.audio_utils import get_fbank

from fairseq_plugin.models.speech import SpeechToText
from fairseq_repairs.checkpoints import load_safely
from tests.support import cli, guide
from tests.support.audio import stored_zip, tone, write_manifest

pytestmark = pytest.mark.slow

RATE = 16000
WORDS = {"low": 300, "middle": 900, "high": 2700}  # tones, in Hz
SETS = {"train": 160, "dev": 5, "test": 19}
SIZES = ("embed-dim=32", "ffn-embed-dim=64", "attention-heads=2")
STACKS = [f"--{side}-{size}" for side in ("encoder", "decoder") for size in SIZES]
MODEL = [*STACKS, "--encoder-layers=3", "--encoder-unique-layers=2", "--decoder-layers=2", "--decoder-unique-layers=1"]
MODEL += ["--conv-channels=32"]
SEARCH = ["--beam", "2", "--max-len-b", "8", "--max-tokens", "2000"]


def say(words: list[str], path: Path, chance: np.random.Generator) -> int:
    """Writes a tone of 0.15 s and a pause of 0.05 s for each word, with noise; returns the number of frames."""
    pause = np.zeros(RATE // 20)
    clean = np.concatenate([part for word in words for part in (tone(WORDS[word], 0.15, RATE), pause)])
    soundfile.write(path, clean + 0.01 * chance.standard_normal(len(clean)), RATE)
    return 1 + (len(clean) - 400) // 160


@pytest.fixture(scope="module")
def tones(tmp_path_factory) -> Path:
    """A manifest for each set, and its audio files, beside which their features are stored."""
    folder = tmp_path_factory.mktemp("tones")
    chance, noise = random.Random(0), np.random.default_rng(0)
    for name, count in SETS.items():
        rows = []
        for number in range(count):
            words, path = chance.choices(list(WORDS), k=chance.randint(1, 3)), folder / f"{name}-{number}.wav"
            rows.append((path, say(words, path, noise), " ".join(words)))
            np.save(path.with_suffix(".npy"), get_fbank(str(path)))
        write_manifest(folder / f"{name}.tsv", rows)
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in WORDS))
    (folder / "config.yaml").write_text("transforms: {'*': [utterance_cmvn]}\n")
    (folder / "raw.yaml").write_text("{use_audio_input: true, input_feat_per_channel: 1}\n")
    return folder


def test_the_guide_writes_tables_of_recordings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noise, said = np.random.default_rng(0), {"a": ["low", "high"], "b": ["middle"]}
    frames = {}
    for name, words in said.items():
        for part in ("train", "dev", "test"):
            (folder := tmp_path / "recordings" / part).mkdir(parents=True, exist_ok=True)
            frames[name] = say(words, folder / f"{name}.wav", noise)
            (folder / f"{name}.txt").write_text(" ".join(words).upper() + "\n")
    exec(guide.example("speech.md", "def write_table"), {})
    table = pd.read_csv("data-speech/dev.tsv", sep="\t", index_col="id")
    assert table.tgt_text.to_dict() == {name: " ".join(words) for name, words in said.items()}
    assert ((table.n_frames - pd.Series(frames)).abs() <= 2).all()
    assert all(Path(audio).is_file() for audio in table.audio)


def train(tones: Path, folder: Path, *flags, **options) -> str:
    return cli.run(
        *("fairseq-train", tones, *cli.HOST, "--task", "speech_to_text", "--arch", "s2t_cycle"),
        *(*MODEL, *cli.OPTIMISER, "--train-subset", "train", "--valid-subset", "dev", "--dropout", "0"),
        *("--lr", "0.002", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "20", "--clip-norm", "1.0"),
        *("--batch-size", "16", "--save-dir", folder, "--log-format", "json", "--log-interval", "10", "--seed", "7"),
        *("--update-epoch-batch-itr", "True", *flags),
        **options,
    )


@pytest.fixture(scope="module")
def trained(tones, tmp_path_factory) -> Path:
    """The checkpoints of a training on audio files, of every epoch."""
    folder = tmp_path_factory.mktemp("speech")
    log = train(tones, folder, "--max-epoch", "20", "--validate-interval", "20", "--keep-last-epochs", "2")
    losses = [line["train_loss"] for line in cli.logged(log, "train")]
    assert losses[-1] < losses[0] / 3
    return folder


def generate(tones: Path, checkpoint: Path, subset: str, *flags, **options) -> str:
    speech = ("--task", "speech_to_text", "--gen-subset", subset, "--scoring", "wer")
    return cli.generate(tones, checkpoint, *speech, *SEARCH, *flags, **options)


@pytest.fixture(scope="module")
def recognised(tones, trained) -> str:
    """What fairseq-generate prints of the test set."""
    return generate(tones, trained / "checkpoint_last.pt", "test")


def test_tones_are_recognised(recognised):
    assert float(re.search(r"WER: ([\d.]+)", recognised)[1]) < 20
    assert sorted(cli.hypotheses(recognised)) == list(range(SETS["test"]))


def test_interactive_agrees_with_generate_on_any_kind_of_file(tones, trained, recognised):
    files = [tones / f"test-{number}.wav" for number in range(3)]
    places = [*files, *(file.with_suffix(".npy") for file in files), *stored_zip(tones / "some.zip", files)]
    flags = ("--task", "speech_to_text", *SEARCH[:4], "--buffer-size", "4", "--batch-size", "4")
    output = cli.interactive(tones, trained / "checkpoint_last.pt", places, *flags)
    expected = cli.hypotheses(recognised)
    assert cli.hypotheses(output) == {number: expected[number % 3] for number in range(9)}


def test_the_hub_transcribes_a_file(tones, trained, recognised):
    where, search = (str(trained), "checkpoint_last.pt", str(tones)), dict(beam=2, max_len_b=8)
    hub = SpeechToText.from_pretrained(*where, **search)
    for number in range(3):
        assert hub.predict(str(tones / f"test-{number}.wav")) == cli.hypotheses(recognised)[number][0]


def test_a_converted_model_recognises_the_same(tones, trained, tmp_path):
    """As fairseq's s2t_transformer."""
    looped, upstream = trained / "checkpoint_last.pt", tmp_path / "upstream.pt"
    assert "(--arch s2t_transformer)" in cli.python("-m", "fairseq_plugin.convert", "unshare", looped, upstream)
    # One file at a time: fairseq's convolutions see padding.
    found = [cli.hypotheses(generate(tones, path, "test", "--batch-size", "1")) for path in (looped, upstream)]
    assert found[0] == found[1]


def test_raw_waveforms_and_bf16(tones, tmp_path):
    """The convolutions read samples; batches count files, because the manifest's sizes are those of filterbanks."""
    flags = ("--config-yaml", "raw.yaml", "--conv-kernel-sizes", "9,5,5,5,5,5,5", "--max-epoch", "2", "--bf16")
    log = train(tones, tmp_path, *flags, "--no-epoch-checkpoints")
    first, last = (line["train_loss"] for line in cli.logged(log, "train"))
    assert last < first
    output = generate(tones, tmp_path / "checkpoint_last.pt", "test", "--config-yaml", "raw.yaml")
    assert len(cli.hypotheses(output)) == SETS["test"]


def test_a_training_begins_with_the_encoder_of_another(tones, trained, tmp_path):
    """As speech translation does with that of a recogniser, whose decoder has another dictionary."""
    recogniser, other = trained / "checkpoint_last.pt", tmp_path / "other"
    other.mkdir()
    for name in ("train", "dev"):
        rows = (tones / f"{name}.tsv").read_text()
        (other / f"{name}.tsv").write_text(rows.replace("low", "bas").replace("middle", "bas"))
    (other / "dict.txt").write_text("bas 1\nhigh 1\n")
    (other / "config.yaml").write_text((tones / "config.yaml").read_text())
    begin = ("--load-pretrained-encoder-from", recogniser)
    train(other, tmp_path / "run", *begin, "--lr", "0", "--warmup-init-lr", "0", "--max-update", "1")
    found, given = (load_safely(path)["model"] for path in (tmp_path / "run" / "checkpoint_last.pt", recogniser))
    encoder = [key for key in given if key.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(found[key], given[key]) for key in encoder)
    said = train(other, tmp_path / "deeper", *begin, "--encoder-layers", "4", "--max-update", "1")
    assert "loop: runs at depth 4 (0 1 0 1), trained at 3 (0 1 0)" in said
    for more, message in {
        begin + ("--encoder-embed-dim", "16"): f"--load-pretrained-encoder-from={recogniser}: Error(s) in loading",
        (begin[0], tmp_path / "none.pt"): "none.pt: must be a checkpoint; there is no such file",
    }.items():
        assert message in train(other, tmp_path / "failing", *more, fails=True)
