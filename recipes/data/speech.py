"""Write speech for fairseq's speech_to_text: filterbanks in an uncompressed zip, manifests and config.yaml.

Imported by the programs that prepare a corpus. The features are computed by fairseq's own function, so they equal those
that fairseq would compute from the audio files.
"""

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from fairseq.data.audio.audio_utils import get_fbank

import fairseq_plugin  # noqa: F401  (fairseq's filterbank needs torchaudio without it)

COLUMNS = ("id", "audio", "n_frames", "tgt_text", "speaker")
LOCAL_HEADER = 30  # bytes before a zip entry's name, which its content follows


class Utterance(NamedTuple):
    """One recording: its name, the audio (a path or the content of a file), the transcript and the speaker."""

    name: str
    audio: str | io.BytesIO
    text: str
    speaker: str


def write_set(folder: Path, name: str, utterances: Iterable[Utterance]) -> tuple[int, int, int]:
    """Writes NAME.zip, the features, and NAME.tsv, the manifest.

    Returns:
        The number of utterances, words and frames (100 per second).

    Raises:
        ValueError: if an utterance is shorter than one window, or its text has a tab or a line feed.
    """
    rows, words = [], 0
    path = folder / f"{name}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for utterance in utterances:
            features = get_fbank(utterance.audio)
            if not len(features) or set("\t\n") & set(utterance.text):
                raise ValueError(f"{utterance.name}: {len(features)} frames, text {utterance.text!r}")
            content = io.BytesIO()
            np.save(content, features)
            entry = zipfile.ZipInfo(f"{utterance.name}.npy")
            archive.writestr(entry, content.getvalue())
            start = entry.header_offset + LOCAL_HEADER + len(entry.filename.encode())
            audio = f"{path.name}:{start}:{entry.file_size}"
            rows.append((utterance.name, audio, len(features), utterance.text, utterance.speaker))
            words += len(utterance.text.split())
    with (folder / f"{name}.tsv").open("w", encoding="utf-8") as manifest:
        for row in (COLUMNS, *rows):
            manifest.write("\t".join(map(str, row)) + "\n")
    return len(rows), words, sum(frames for _, _, frames, _, _ in rows)


def write_configuration(folder: Path, specaugment: dict, model: Path | None = None) -> None:
    """Writes config.yaml: the location of the features, their normalisation and, for training, their masking.

    Args:
        folder: folder of the sets.
        specaugment: fairseq's options for SpecAugment.
        model: sentencepiece model for the text; None if the symbols are words.
    """
    configuration = {
        "audio_root": str(folder.resolve()),
        "vocab_filename": "dict.txt",
        "input_channels": 1,
        "input_feat_per_channel": 80,
        "use_sample_rate": 16000,
        "transforms": {"*": ["utterance_cmvn"], "_train": ["utterance_cmvn", "specaugment"]},
        "specaugment": specaugment,
    }
    if model is not None:
        configuration["bpe_tokenizer"] = {"bpe": "sentencepiece", "sentencepiece_model": str(model.resolve())}
    (folder / "config.yaml").write_text(yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
