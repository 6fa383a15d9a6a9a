"""Speech: reads audio files without torchaudio."""

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from fairseq.data.audio import audio_utils
from torch import Tensor

from fairseq_plugin.repairs.replace import replace


def read_audio_without_torchaudio() -> None:
    """Reads audio files without torchaudio; fairseq imports a part of it that later versions lack.

    scipy changes the rate; kaldi-native-fbank computes Kaldi's filterbank: Povey windows of 25 ms every 10 ms,
    pre-emphasis 0.97, mel bands from 20 Hz to half the rate, natural logarithm.
    """

    def convert_without_torchaudio(convert: Callable) -> Callable:
        def convert_waveform(waveform, sample_rate, normalize_volume=False, to_mono=False, to_sample_rate=None):
            if torchaudio_works():
                return convert(waveform, sample_rate, normalize_volume, to_mono, to_sample_rate)
            return _convert(waveform, sample_rate, normalize_volume, to_mono, to_sample_rate or sample_rate)

        return convert_waveform

    def filterbank_without_torchaudio(fbank: Callable) -> Callable:
        def _get_torchaudio_fbank(waveform, sample_rate, n_bins=80):
            return (fbank if torchaudio_works() else filterbank)(waveform, sample_rate, n_bins)

        return _get_torchaudio_fbank

    replace(audio_utils, "convert_waveform", convert_without_torchaudio)
    replace(audio_utils, "_get_torchaudio_fbank", filterbank_without_torchaudio)


@functools.lru_cache
def torchaudio_works() -> bool:
    """Whether the part of torchaudio that fairseq calls can be imported."""
    try:
        from torchaudio.sox_effects import apply_effects_tensor  # noqa: F401
    except (ImportError, OSError, RuntimeError):  # RuntimeError: built for another CUDA than torch
        return False
    return True


def _convert(waveform: np.ndarray | Tensor, rate: int, normalize: bool, mono: bool, to_rate: int):
    """fairseq's `convert_waveform`: (channels, samples) -> (channels, samples) of the same type, and the new rate."""
    from scipy.signal import resample_poly

    x = np.asarray(waveform, dtype=np.float32)
    if normalize and x.size:
        x = x / max(np.abs(x).max(), np.finfo(np.float32).tiny)
    if rate != to_rate:
        divisor = math.gcd(rate, to_rate)
        x = resample_poly(x, to_rate // divisor, rate // divisor, axis=1).astype(np.float32)
    if mono and len(x) > 1:
        x = x.mean(axis=0, keepdims=True)
    return (x if isinstance(waveform, np.ndarray) else torch.from_numpy(x)), to_rate


def filterbank(waveform: np.ndarray, sample_rate: int, n_bins: int = 80) -> np.ndarray:
    """Kaldi's log mel filterbank.

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
