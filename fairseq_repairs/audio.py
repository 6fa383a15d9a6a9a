"""Speech: reads audio files without torchaudio, and rejects files that would be misread silently."""

import functools
import io
import logging
import math
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fairseq.data.audio import audio_utils, speech_to_speech_dataset, speech_to_text_dataset, text_to_speech_dataset
from fairseq.models.speech_to_text import hub_interface
from fairseq.tasks import speech_to_text
from torch import Tensor

from fairseq_repairs.corpus import warn_if_unknown
from fairseq_repairs.files import require_lines
from fairseq_repairs.replace import before, instead

logger = logging.getLogger(__name__)

STREAMED = 0x7FFF0000  # a WAV header with at least this size was written before the length was known
DATASETS = speech_to_text_dataset, speech_to_speech_dataset, text_to_speech_dataset
WARNED: set[int] = set()  # rates
COLUMNS = ("id", "audio", "n_frames", "tgt_text")  # of a list of utterances; others may be missing
UNREADABLE = (AssertionError, EOFError, IndexError, OSError, RuntimeError, ValueError)


@before(speech_to_text_dataset.SpeechToTextDatasetCreator, "_load_samples_from_tsv")
def require_lines_of_manifests(creator: type, root: str, split: str) -> None:
    """Rejects a device, or one endless line, in place of a list of utterances, which fairseq reads at once."""
    require_lines(os.path.join(root, f"{split}.tsv"))


@before(speech_to_text_dataset.SpeechToTextDatasetCreator, "_from_list")
def require_columns_of_manifests(
    creator: type, split_name: str, is_train_split: bool, samples: list[dict], *args, **kwargs
) -> None:
    """Names the column or the value that a list of utterances lacks; fairseq says only "KeyError: 'n_frames'"."""
    for sample in samples:
        name = sample.get("id")
        for column in COLUMNS:
            if column not in sample:
                raise ValueError(f"{split_name}.tsv: has no column {column}; tabs separate {', '.join(COLUMNS)}")
            if sample[column] is None:
                raise ValueError(f"{split_name}.tsv, {name}: has no {column}; tabs separate {', '.join(COLUMNS)}")
        if not sample["n_frames"].strip().isdecimal():
            raise ValueError(f"{split_name}.tsv, {name}: n_frames={sample['n_frames']}: must be a whole number")


@instead(speech_to_text_dataset.SpeechToTextDataset, "get_tgt_lens_and_check_oov")
def warn_of_unknown_words_in_transcripts(
    check: Callable, dataset: speech_to_text_dataset.SpeechToTextDataset
) -> list[int]:
    """Warns of transcripts with many symbols that the dictionary does not have; fairseq only logs how many."""
    if dataset.tgt_texts is None:
        return check(dataset)
    lengths: list[int] = []
    unknown: Counter[str] = Counter()
    for number in range(dataset.n_samples):
        words = dataset.get_tokenized_tgt_text(number).split(" ")
        lengths.append(len(words))
        unknown.update(word for word in words if word and dataset.tgt_dict.index(word) == dataset.tgt_dict.unk())
    percent = 100 * unknown.total() / sum(lengths)
    speech_to_text_dataset.logger.info(f"'{dataset.split}' has {percent:.2f}% OOV")
    warn_if_unknown(f"{dataset.split}.tsv", percent, unknown)
    return lengths


@functools.lru_cache
def torchaudio_works() -> bool:
    """Whether the part of torchaudio by which fairseq changes waveforms can be imported."""
    try:
        from torchaudio.sox_effects import apply_effects_tensor  # noqa: F401
    except (ImportError, OSError, RuntimeError):  # RuntimeError: built for another CUDA than torch
        return False
    return True


@instead(hub_interface, "convert_wav")
@instead(audio_utils, "convert_waveform")
def convert_without_torchaudio(
    convert: Callable,
    waveform: np.ndarray | Tensor,
    sample_rate: int,
    normalize_volume: bool = False,
    to_mono: bool = False,
    to_sample_rate: int | None = None,
) -> tuple[np.ndarray | Tensor, int]:
    """Changes rate, channels and volume without torchaudio; fairseq imports a part of it that later versions lack.

    (channels, samples) -> (channels, samples) of the same type, and the new rate, which scipy makes.
    """
    if torchaudio_works():
        return convert(waveform, sample_rate, normalize_volume, to_mono, to_sample_rate)
    from scipy.signal import resample_poly

    rate = to_sample_rate or sample_rate
    x = np.asarray(waveform, dtype=np.float32)
    if normalize_volume and x.size:
        x = x / max(np.abs(x).max(), np.finfo(np.float32).tiny)
    if sample_rate != rate:
        divisor = math.gcd(sample_rate, rate)
        x = resample_poly(x, rate // divisor, sample_rate // divisor, axis=1).astype(np.float32)
    if to_mono and len(x) > 1:
        x = x.mean(axis=0, keepdims=True)
    return (x if isinstance(waveform, np.ndarray) else torch.from_numpy(x)), rate


@instead(audio_utils, "_get_torchaudio_fbank")
def compute_filterbank_without_torchaudio(fbank: Callable, *args, **kwargs) -> np.ndarray:
    """Computes Kaldi's filterbank by kaldi-native-fbank, where :func:`torchaudio_works` does not hold."""
    return (fbank if torchaudio_works() else filterbank)(*args, **kwargs)


def filterbank(waveform: np.ndarray, sample_rate: int, n_bins: int = 80) -> np.ndarray:
    """Kaldi's log mel filterbank, by kaldi-native-fbank.

    Povey windows of 25 ms every 10 ms, pre-emphasis 0.97, mel bands from 20 Hz to half the rate, natural logarithm.

    Args:
        waveform: (1, samples), 16-bit numbers as floats.
        sample_rate: samples per second.
        n_bins: mel bands.

    Returns:
        (frames, n_bins) float32; the last, incomplete window is dropped.
    """
    from kaldi_native_fbank import FbankOptions, OnlineFbank

    options = FbankOptions()
    options.frame_opts.samp_freq, options.frame_opts.dither = sample_rate, 0.0
    options.mel_opts.num_bins = n_bins
    kaldi = OnlineFbank(options)
    kaldi.accept_waveform(sample_rate, waveform[0].astype(np.float32))
    kaldi.input_finished()
    frames = [kaldi.get_frame(number) for number in range(kaldi.num_frames_ready)]
    return np.stack(frames) if frames else np.zeros((0, n_bins), dtype=np.float32)


@instead(hub_interface.S2THubInterface, "get_model_input")
def read_files_in_hub_interface(
    read: Callable, kind: type, task: speech_to_text.SpeechToTextTask, audio: str | os.PathLike | Tensor
) -> dict[str, Any]:
    """Lets the hub interface of speech transcribe a file (`predict`) that is read as filterbanks.

    fairseq does not know `fbank80`, its default for `input_type`, and calls a method of tensors on the array that
    `fbank80_w_utt_cmvn` gives. The file is read as fairseq-interactive reads it, with the transforms of the data's
    configuration. A warning tells of a file that is so long that fairseq-interactive leaves it empty.
    """
    audio = os.fspath(audio) if isinstance(audio, os.PathLike) else audio
    if not task.data_cfg.hub.get("input_type", "fbank80").startswith("fbank80"):
        return read(kind, task, audio)
    if not isinstance(audio, str):
        raise TypeError(f"predict takes the path of an audio file; {type(audio).__name__} is for models of waveforms")
    file, most = task.build_dataset_for_inference([audio], [1]), task.max_positions()[0]
    _, (length,) = task.get_interactive_tokens_and_lengths([audio], None)  # in frames, also of a waveform
    if length > most:
        logger.warning(
            f"{audio}: is {length} frames long, more than max_source_positions={most}: the text "
            "may be wrong or incomplete; cut the file into parts"
        )
    return file.collater([file[0]])


class AudioError(ValueError, OSError):
    """A file that cannot be read as speech; fairseq raises either error."""


@instead((audio_utils, *DATASETS, speech_to_text), "get_features_or_waveform")
def reject_bad_audio(
    read: Callable, path: str, need_waveform: bool = False, use_sample_rate: int | None = None, *args, **kwargs
) -> np.ndarray:
    """Rejects by name a file that is unreadable, truncated or empty, and warns of another rate than the configured one.

    fairseq computes filterbanks at any rate, so features of files with different rates differ, and reads a truncated
    file as a shorter one.
    """
    try:
        if not os.path.isfile(file := audio_utils.parse_path(path)[0]):
            raise FileNotFoundError("not a file" if os.path.exists(file) else "no such file")  # a pipe may never end
        if use_sample_rate is not None and not need_waveform:
            _check_rate(path, use_sample_rate)
        _reject_truncated(path)
        found = read(path, need_waveform, use_sample_rate, *args, **kwargs)
    except UNREADABLE as error:
        reason = getattr(error, "error_string", str(error))  # of soundfile's errors, which name the file, too
        raise AudioError(f"{path}: cannot be read as speech: {reason or type(error).__name__}") from error
    if not found.size:
        raise AudioError(
            f"{path}: an array of shape {found.shape}: must not be empty (audio of less than 25 ms has no features)"
        )
    return found


def _reject_truncated(path: str) -> None:
    """Raises ValueError for a part beyond the end of its zip, and a WAV with fewer samples than its header says."""
    name, place = audio_utils.parse_path(path)
    stored = os.path.getsize(name)
    start, end = (place[0], sum(place)) if place else (0, stored)
    if end > stored:
        raise ValueError(f"truncated: {name} has {stored:,} of {end:,} bytes")
    with open(name, "rb") as file:
        file.seek(start)
        if file.read(4) != b"RIFF":
            return
        file.seek(start + 12)
        while len(header := file.read(8)) == 8:
            size = int.from_bytes(header[4:], "little")
            left = end - file.tell()
            if header[:4] == b"data":
                if left < size < STREAMED:
                    raise ValueError(f"truncated: has {left:,} of {size:,} bytes of samples")
                return
            file.seek(size + size % 2, os.SEEK_CUR)


def _check_rate(path: str, expected: int) -> None:
    """Warns of the first file of each rate that is not the expected one."""
    rate = _rate(path)
    if rate not in (None, expected, *WARNED):
        WARNED.add(rate)
        logger.warning(
            f"{path}: {rate} samples per second, not use_sample_rate={expected} as in the data's configuration (or by "
            "default): features of different rates do not fit together"
        )


def _rate(path: str) -> int | None:
    """Samples per second of an audio file or a part of a stored zip; None for features."""
    name, place = audio_utils.parse_path(path)
    file: Any = name
    if place:
        data = audio_utils.read_from_stored_zip(name, *place)
        file = io.BytesIO(data) if audio_utils.is_sf_audio_data(data) else None
    if file is None or name.endswith(".npy"):
        return None
    import soundfile

    return soundfile.info(file).samplerate
