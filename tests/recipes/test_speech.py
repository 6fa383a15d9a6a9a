"""The recipe for speech: its tools on a small corpus of our own, and from the recordings to a word error rate."""

import itertools
import re
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("kaldi_native_fbank", reason="the extra speech is not installed")
import corpus
import digits
import score_speech
import soundfile
import speech
from fairseq.data import encoders
from fairseq.data.audio.audio_utils import get_features_or_waveform
from fairseq.data.audio.data_cfg import S2TDataConfig
from fairseq.data.audio.speech_to_text_dataset import SpeechToTextDatasetCreator
from fairseq.data.dictionary import Dictionary

from tests.support import cli
from tests.support.audio import tone
from tests.support.recipes import RECIPES, recipe

SAID = {"19-198-0000": "NORTHANGER ABBEY", "19-198-0001": "THIS LITTLE WORK", "26-495-0000": "HE'S AT WORK"}


@pytest.fixture
def librispeech(tmp_path) -> Path:
    """One set laid out as LibriSpeech is, of tones instead of speech."""
    for number, (name, text) in enumerate(SAID.items()):
        folder = tmp_path.joinpath("LibriSpeech", "train-clean-100", *name.split("-")[:2])
        folder.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / f"{name}.flac", tone(300, 0.3 + 0.1 * number, 16000), 16000)
        transcript = folder / ("-".join(name.split("-")[:2]) + ".trans.txt")
        with transcript.open("a") as file:
            file.write(f"{name} {text}\n")
    return tmp_path / "LibriSpeech"


def test_librispeech_is_what_fairseq_reads(librispeech, tmp_path):
    folder, text, model = tmp_path / "data", tmp_path / "train.txt", tmp_path / "unigram.model"
    corpus.features(librispeech, folder, "train-clean-100")
    corpus.write_text(folder, text)
    assert sorted(text.read_text().splitlines()) == sorted(line.lower() for line in SAID.values())
    segment = RECIPES / "data" / "segment.py"
    cli.python(segment, "train", model, "--kind", "unigram", "--pieces", "29", text)
    corpus.configure(folder, model)
    configuration = S2TDataConfig(folder / "config.yaml")
    symbols = Dictionary.load(str(folder / configuration.vocab_filename))
    pieces = encoders.build_bpe(Namespace(**configuration.bpe_tokenizer))
    assert len(symbols) == len(pieces.sp) + 1  # fairseq's padding
    data = SpeechToTextDatasetCreator.from_tsv(
        str(folder), configuration, "train-clean-100", symbols, None, pieces, True, 1, 1
    )
    for number, (name, said) in enumerate(SAID.items()):
        assert data.ids[number] == name
        assert data.speakers[number] == name.split("-")[0]
        assert data[number].source.shape == (data.n_frames[number], 80)
        assert pieces.decode(symbols.string(data[number].target)) == said.lower()
        audio = librispeech.joinpath("train-clean-100", *name.split("-")[:2], f"{name}.flac")
        stored = get_features_or_waveform(data.audio_paths[number], use_sample_rate=16000)
        np.testing.assert_array_equal(stored, get_features_or_waveform(str(audio), use_sample_rate=16000))


def test_a_missing_set_is_named(tmp_path, rejected):
    said = rejected(corpus.main, "features", tmp_path, tmp_path / "data", "dev-clean")
    assert "dev-clean: holds no transcripts" in said


def test_missing_pieces_are_named(tmp_path, rejected):
    assert "none.model" in rejected(corpus.main, "configure", tmp_path, tmp_path / "none.model")


def test_short_recordings_and_broken_texts_are_named(tmp_path):
    soundfile.write(tmp_path / "short.wav", tone(300, 0.01, 16000), 16000)
    soundfile.write(tmp_path / "long.wav", tone(300, 0.1, 16000), 16000)
    for audio, text, message in (
        ("short.wav", "a", "^x: 0 frames"),
        ("long.wav", "a\tb", r"^x: 8 frames, text 'a\\tb'"),
    ):
        with pytest.raises(ValueError, match=message):
            speech.write_set(tmp_path, "set", [speech.Utterance("x", str(tmp_path / audio), text, "s")])


def test_every_recording_occurs_once_a_round(tmp_path):
    for digit in range(3):
        for index in range(10):
            (tmp_path / f"{digit}_anna_{index}.wav").touch()
            (tmp_path / f"{digit}_ben_{index}.wav").touch()
    found = digits.by_speaker(tmp_path, range(6, 10))
    assert {speaker: len(spoken) for speaker, spoken in found.items()} == {"anna": 12, "ben": 12}
    made = list(digits.sequences(found, rounds=2, shortest=3))
    assert made == list(digits.sequences(found, rounds=2, shortest=3))
    said = [path for _, spoken in made for _, path in spoken]
    assert len(said) == 48
    assert {said.count(path) for path in said} == {2}
    assert max(len(spoken) for _, spoken in made) <= 7
    assert all(path.stem.split("_")[1] == speaker for speaker, spoken in made for _, path in spoken)
    assert all(word == digits.WORDS[int(path.name[0])] for _, spoken in made for word, path in spoken)


@pytest.mark.parametrize("rate", [8000, 11_025, 44_100])
def test_recordings_of_any_rate_keep_their_length_and_pitch(rate, tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(1000, 0.5, rate), rate)
    joined, found = soundfile.read(digits.joined([("one", tmp_path / "a.wav")]))
    assert (found, len(joined)) == (16_000, 8000)
    assert np.abs(np.fft.rfft(joined)).argmax() == 500  # half a second of 1,000 Hz


@pytest.mark.slow
def test_a_part_of_the_recordings_is_accepted_on_request(tmp_path):
    (tmp_path / "recordings").mkdir()
    for digit, index in itertools.product(range(2), range(8)):
        soundfile.write(tmp_path / "recordings" / f"{digit}_george_{index}.wav", tone(300, 0.3, 8000), 8000)
    cli.run("tar", "-cf", tmp_path / "fsdd.tar", "-C", tmp_path, "recordings")
    settings = dict(OUT=str(tmp_path / "out"), DATA_ROOT=str(tmp_path))
    assert "16 recordings, but the set has 3000" in recipe("librispeech/prepare.sh", fails=True, **settings)
    assert "digit_sequences" in recipe("librispeech/prepare.sh", VERIFY="0", **settings)
    short = (tmp_path / "out" / "librispeech" / "digits-8" / "train-short.tsv").read_text().splitlines()[1:]
    assert {len(line.split("\t")[3].split()) for line in short} == {1, 2}


def test_the_length_of_a_training_is_not_that_of_its_first_part(tmp_path):
    settings = dict(SCALE="small", DRY_RUN="1", OUT=str(tmp_path), DATA_ROOT=str(tmp_path))
    said = recipe("takase/table4.sh", "vanilla", "--max-update", "2000", **settings).splitlines()
    trainings = [line for line in said if "--train-subset" in line]
    assert ["train-short" in line for line in trainings] == [True, False]
    assert [re.findall(r"--max-update (\d+)", line)[-1] for line in trainings] == ["300", "2000"]


def test_held_out_speakers_are_in_the_test_set_alone(tmp_path):
    for speaker in ("anna", "ben", "cleo"):
        for index in range(8):
            (tmp_path / f"0_{speaker}_{index}.wav").touch()
    found = digits.split(tmp_path, ["ben"])
    count = {name: {speaker: len(spoken) for speaker, spoken in who.items()} for name, who in found.items()}
    assert count == {"train": {"anna": 2, "cleo": 2}, "dev": {"anna": 1, "cleo": 1}, "test": {"ben": 8}}
    found = digits.split(tmp_path, [])
    assert {name: sum(map(len, who.values())) for name, who in found.items()} == {"train": 6, "dev": 3, "test": 15}
    with pytest.raises(ValueError, match="^--held-out dora: must be among anna, ben, cleo$"):
        digits.split(tmp_path, ["anna", "dora"])
    with pytest.raises(ValueError, match="^--held-out anna,ben,cleo: must leave a speaker for training$"):
        digits.split(tmp_path, ["anna", "ben", "cleo"])


def test_an_error_rate_is_over_all_utterances(tmp_path):
    log, manifest = tmp_path / "test.log", tmp_path / "test.tsv"
    manifest.write_text("id\taudio\n0\ta\n1\tb\n")
    log.write_text("D-1\t-0.5\tone\nD-0\t-0.5\ttwo\nGenerate test with beam=5: WER: 12.34\n")
    assert score_speech.error_rate(log, manifest) == 12.34
    log.write_text("D-1\t-0.5\tone\nGenerate test with beam=5: WER: 12.34\n")
    with pytest.raises(ValueError, match="1 hypotheses for 2 references"):
        score_speech.error_rate(log, manifest)
    log.write_text("D-1\t-0.5\tone\nD-0\t-0.5\ttwo\n")
    with pytest.raises(ValueError, match="0 word error rates: must be one"):
        score_speech.error_rate(log, manifest)
