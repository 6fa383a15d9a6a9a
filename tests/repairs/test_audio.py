"""Audio files without torchaudio: Kaldi's filterbank, conversion, and bad files rejected by name."""

import itertools
import os
import sys
from argparse import Namespace

import numpy as np
import pytest
import torch

pytest.importorskip("kaldi_native_fbank", reason="the extra speech is not installed")
import soundfile
from fairseq.data import Dictionary
from fairseq.data.audio import audio_utils
from fairseq.data.audio.data_cfg import S2TDataConfig
from fairseq.data.audio.speech_to_text_dataset import SpeechToTextDataset, SpeechToTextDatasetCreator
from fairseq.tasks.speech_to_text import SpeechToTextTask
from torch.utils.data import DataLoader

from fairseq_repairs import audio, interactive
from fairseq_repairs.messages import one_line
from tests.support.audio import stored_zip, tone


@pytest.fixture(autouse=True)
def no_torchaudio(monkeypatch):
    """As on a machine without a torchaudio that fits."""
    monkeypatch.setattr(audio, "torchaudio_works", lambda: False)


def mel(frequency: np.ndarray) -> np.ndarray:
    return 1127 * np.log1p(frequency / 700)


def reference_filterbank(waveform: np.ndarray, rate: int, bins: int) -> np.ndarray:
    """Kaldi's log mel filterbank from its documentation, in float64."""
    length, shift = rate * 25 // 1000, rate * 10 // 1000
    starts = range(0, len(waveform) - length + 1, shift)
    frames = np.stack([waveform[start : start + length] for start in starts]).astype(np.float64)
    frames -= frames.mean(axis=1, keepdims=True)
    frames -= 0.97 * np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    frames *= (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / (length - 1))) ** 0.85
    size = 1 << (length - 1).bit_length()
    power = np.abs(np.fft.rfft(frames, size)) ** 2
    points = np.linspace(mel(np.array(20.0)), mel(np.array(rate / 2)), bins + 2)
    at = mel(np.arange(size // 2) * rate / size)
    rise = (at - points[:-2, None]) / (points[1:-1] - points[:-2])[:, None]
    fall = (points[2:, None] - at) / (points[2:] - points[1:-1])[:, None]
    weights = np.clip(np.minimum(rise, fall), 0, None)
    return np.log(np.maximum(power[:, : size // 2] @ weights.T, np.finfo(np.float32).eps))


@pytest.mark.parametrize(("rate", "bins"), [(16000, 80), (8000, 40), (16000, 23)])
def test_filterbank_is_kaldi_s(rate, bins):
    chance = np.random.default_rng(0)
    waveform = 8000 * tone(440, 0.5, rate) + 500 * chance.standard_normal(rate // 2)
    found = audio.filterbank(waveform[None].astype(np.float32), rate, bins)
    expected = reference_filterbank(waveform, rate, bins)
    assert found.dtype == np.float32
    assert found.shape == expected.shape == (48, bins)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)


class TestConversion:
    @pytest.mark.parametrize("as_tensor", [False, True])
    def test_rate(self, as_tensor):
        waveform = tone(440, 0.5, 8000)[None]
        given = torch.from_numpy(waveform) if as_tensor else waveform
        found, rate = audio_utils.convert_waveform(given, 8000, to_sample_rate=16000)
        assert rate == 16000
        assert isinstance(found, torch.Tensor if as_tensor else np.ndarray)
        inner = slice(500, -500)  # the filter has no past at the start and no future at the end
        np.testing.assert_allclose(np.asarray(found)[0, inner], tone(440, 0.5, 16000)[inner], atol=2e-3)

    def test_channels_and_volume(self):
        waveform = np.stack([tone(440, 0.1, 16000), np.zeros(1600)]).astype(np.float32)
        mono, _ = audio_utils.convert_waveform(waveform, 16000, to_mono=True)
        np.testing.assert_allclose(mono, waveform.mean(0, keepdims=True))
        loud, _ = audio_utils.convert_waveform(0.1 * waveform, 16000, normalize_volume=True)
        assert loud.shape == (2, 1600)
        assert np.abs(loud).max() == pytest.approx(1)
        silence, _ = audio_utils.convert_waveform(np.zeros((1, 9), np.float32), 16000, normalize_volume=True)
        assert not silence.any()


def test_features_of_a_file_are_the_same_wherever_they_are(tmp_path):
    wave, stored = tmp_path / "good.wav", tmp_path / "good.npy"
    soundfile.write(wave, tone(440, 0.5, 16000), 16000)
    expected = audio_utils.get_features_or_waveform(str(wave), use_sample_rate=16000)
    assert expected.shape == (48, 80)
    np.save(stored, expected)
    places = stored_zip(tmp_path / "good.zip", [wave, stored])
    for path in (stored, *places):
        found = audio_utils.get_features_or_waveform(str(path), use_sample_rate=16000)
        np.testing.assert_array_equal(found, expected)
    waveform = audio_utils.get_features_or_waveform(str(places[0]), need_waveform=True, use_sample_rate=8000)
    assert waveform.shape == (4000,)


def test_a_length_that_sox_did_not_know_is_no_truncation(tmp_path):
    path = tmp_path / "speech.wav"
    soundfile.write(path, tone(440, 1.0, 16000), 16000)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"data" + (32_000).to_bytes(4, "little"), b"data" + 0x7FFFF000.to_bytes(4, "little")))
    assert path.read_bytes() != data
    assert audio_utils.get_features_or_waveform(str(path), use_sample_rate=16000).shape == (98, 80)


def test_stored_features_need_no_soundfile(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    np.save(tmp_path / "features.npy", np.ones((5, 80), dtype=np.float32))
    (place,) = stored_zip(tmp_path / "features.zip", [tmp_path / "features.npy"])
    for path in (tmp_path / "features.npy", place):
        assert audio_utils.get_features_or_waveform(str(path), use_sample_rate=16000).shape == (5, 80)


@pytest.mark.parametrize(("file", "data"), [("text.wav", b"RIFF is how a WAV begins"), ("cut.npy", b"\x93NUMPY\x01")])
def test_bad_files_are_rejected_by_name(file, data, tmp_path):
    (tmp_path / file).write_bytes(data)
    with pytest.raises(ValueError, match=rf"^{tmp_path / file}: .*cannot be read as speech"):
        audio_utils.get_features_or_waveform(str(tmp_path / file), use_sample_rate=16000)


@pytest.mark.parametrize("file", ["none.wav", "none.npy", "none.zip:1:2"])
def test_a_missing_file_is_called_missing(file, tmp_path):
    with pytest.raises(OSError, match=rf"^{tmp_path / file}: cannot be read as speech: (no such file|File not found)"):
        audio_utils.get_features_or_waveform(str(tmp_path / file), use_sample_rate=16000)


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")
    with pytest.raises(OSError, match=f"^{tmp_path}/pipe.wav: cannot be read as speech: not a file"):
        audio_utils.get_features_or_waveform(str(tmp_path / "pipe.wav"), use_sample_rate=16000)


def test_a_list_of_utterances_with_an_endless_line_is_rejected(tmp_path):
    table = tmp_path / "train.tsv"
    table.write_text("id\taudio\tn_frames\ttgt_text\n")
    with table.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"train\.tsv, line 2: must have <= 10,000,000 characters"):
        SpeechToTextDatasetCreator._load_samples_from_tsv(str(tmp_path), "train")


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("id audio tgt_text", "a a.wav one", "^train.tsv: has no column n_frames; tabs separate id, audio"),
        ("id audio n_frames tgt_text", "a a.wav 50", "^train.tsv, a: has no tgt_text"),
        ("id audio n_frames tgt_text", "a a.wav 0.5 one", "^train.tsv, a: n_frames=0.5: must be a whole number"),
    ],
)
def test_what_a_list_of_utterances_lacks_is_named(header, row, message):
    samples = [dict(itertools.zip_longest(header.split(), row.split()))]
    with pytest.raises(ValueError, match=message):
        SpeechToTextDatasetCreator._from_list("train", True, samples, None, None, None, None, 1, None)


def test_transcripts_of_unknown_words_are_warned_of(tmp_path, caplog):
    """Of 50 words one is 2 %, which is not many."""
    (tmp_path / "config.yaml").write_text("{}")
    cfg, known = S2TDataConfig(tmp_path / "config.yaml"), " ".join(["one"] * 49)
    words = Dictionary()
    words.add_symbol("one")
    for name, text in {"valid": f"{known} two", "test": "one two three"}.items():
        found = SpeechToTextDataset(name, False, cfg, ["x.wav"], [50], tgt_texts=[text], tgt_dict=words)
        assert found.tgt_lens == [len(text.split())]
    assert [message.partition(": is it")[0] for message in caplog.messages] == [
        "test.tsv: 66.7 % of its words are not in the dictionary, such as two"
    ]


def test_a_bad_file_is_named_by_a_data_worker(tmp_path):
    path = tmp_path / "none.wav"
    features = DataLoader(
        [str(path)], num_workers=1, collate_fn=lambda paths: audio_utils.get_features_or_waveform(*paths)
    )
    with pytest.raises(ValueError, match="in DataLoader worker process 0") as raised:
        next(iter(features))
    assert one_line(raised.value) == f"{path}: cannot be read as speech: no such file"


def test_a_bad_file_is_named_once(tmp_path, caplog):
    """soundfile's error names it, too, and so did the warning of fairseq-interactive."""
    path, task = tmp_path / "text.wav", SpeechToTextTask.__new__(SpeechToTextTask)
    path.write_bytes(b"RIFF is how a WAV begins")
    with pytest.raises(ValueError, match=rf"^{path}: cannot be read as speech: [\w ]+\.$"):
        audio_utils.get_features_or_waveform(str(path))
    with pytest.raises(ValueError, match=rf"^{path}:5:3: cannot be read as speech: AssertionError$"):  # without words
        audio_utils.get_features_or_waveform(f"{path}:5:3")
    assert not interactive._is_readable(str(path), task, None, "", None)
    assert caplog.messages == [f"{path}: cannot be read as speech: Format not recognised.: left empty"]


def test_a_long_file_is_told_in_frames(tmp_path, caplog):
    """With the option that allows more, unless the model does not."""
    path, task = tmp_path / "speech.npy", SpeechToTextTask.__new__(SpeechToTextTask)
    task.args = Namespace(max_source_positions=8, max_target_positions=8)
    np.save(path, np.zeros((9, 80), dtype=np.float32))
    options = Namespace(dataset=Namespace(max_tokens=None))
    for most in (8, 7):
        assert not interactive._is_readable(str(path), task, *interactive._limit(options, task, (most, most)), None)
    assert caplog.messages == [
        f"{path}: is 9 frames long: must be <= 8 (--max-source-positions): left empty",
        f"{path}: is 9 frames long: must be <= 7: left empty",
    ]


def test_a_truncated_file_is_named_and_another_rate_is_told_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(audio, "WARNED", set())
    path = tmp_path / "speech.wav"
    soundfile.write(path, tone(440, 1.0, 8000), 8000)
    complete = path.read_bytes()
    for _ in range(2):
        assert audio_utils.get_features_or_waveform(str(path), use_sample_rate=16000).shape[1] == 80
    assert caplog.text.count("8000 samples per second, not use_sample_rate=16000") == 1
    path.write_bytes(complete[: len(complete) // 2])
    with pytest.raises(ValueError, match=rf"^{path}: cannot be read as speech: truncated: has 7,978 of"):
        audio_utils.get_features_or_waveform(str(path), need_waveform=True)


def test_a_chunk_of_odd_length_before_the_samples_is_padded(tmp_path):
    """As RIFF says; notes of recorders are such chunks."""
    path = tmp_path / "speech.wav"
    soundfile.write(path, tone(440, 1.0, 8000), 8000)
    complete = path.read_bytes()
    at = complete.index(b"data")
    path.write_bytes(complete[:at] + b"note" + (3).to_bytes(4, "little") + b"abc\0" + complete[at:-100])
    with pytest.raises(ValueError, match="cannot be read as speech: truncated: has 15,900 of 16,000 bytes"):
        audio_utils.get_features_or_waveform(str(path), need_waveform=True)


def test_a_part_beyond_the_end_of_its_zip_is_named(tmp_path):
    soundfile.write(tmp_path / "speech.wav", tone(440, 1.0, 8000), 8000)
    place = str(stored_zip(tmp_path / "all.zip", [tmp_path / "speech.wav"])[0])
    name, start, length = place.rsplit(":", 2)
    shorter = f"{name}:{start}:{int(length) // 2}"
    with pytest.raises(
        ValueError, match=rf"^{shorter}: cannot be read as speech: truncated: has 7,978 of 16,000 bytes"
    ):
        audio_utils.get_features_or_waveform(shorter, use_sample_rate=8000)
    (tmp_path / "all.zip").write_bytes((tmp_path / "all.zip").read_bytes()[: int(start) + 5000])
    with pytest.raises(
        ValueError, match=rf"^{place}: cannot be read as speech: truncated: {name} has [\d,]+ of [\d,]+ bytes"
    ):
        audio_utils.get_features_or_waveform(place, use_sample_rate=8000)
