"""Speech as fairseq's speech_to_text reads it: filterbanks in a stored zip, a manifest for each set, a configuration.

Imported by the programs that prepare a corpus. The filterbank is fairseq's own, so that features computed beforehand
are those that it would compute of the audio files.
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
# fairseq reads 4-byte magic, fields and the lengths of name and extra field before the data of a stored file.
LOCAL_HEADER = 30


class Utterance(NamedTuple):
    """One recording: a name, an audio file (a path or its content), what is said, and by whom."""

    name: str
    audio: str | io.BytesIO
    text: str
    speaker: str


def write_set(folder: Path, name: str, utterances: Iterable[Utterance]) -> tuple[int, int, int]:
    """Write NAME.zip and NAME.tsv.

    Returns:
        Numbers of utterances, words and frames (100 a second).

    Raises:
        ValueError: an utterance is shorter than one window, or its text holds a tab or a line feed.
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
            archive.writestr(f"{utterance.name}.npy", content.getvalue())
            rows.append((utterance.name, len(features), utterance.text, utterance.speaker))
            words += len(utterance.text.split())
    places = stored_places(path)
    with (folder / f"{name}.tsv").open("w", encoding="utf-8") as manifest:
        manifest.write("\t".join(COLUMNS) + "\n")
        for key, frames, text, speaker in rows:
            audio = f"{path.name}:{places[key][0]}:{places[key][1]}"
            manifest.write("\t".join((key, audio, str(frames), text, speaker)) + "\n")
    return len(rows), words, sum(frames for _, frames, _, _ in rows)


def stored_places(path: Path) -> dict[str, tuple[int, int]]:
    """Where the content of each file of an uncompressed zip begins, and its length in bytes, by the file's stem."""
    places = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for entry in archive.infolist():
            file.seek(entry.header_offset + LOCAL_HEADER - 4)
            names = int.from_bytes(file.read(2), "little") + int.from_bytes(file.read(2), "little")
            places[Path(entry.filename).stem] = (entry.header_offset + LOCAL_HEADER + names, entry.file_size)
    return places


def write_configuration(folder: Path, specaugment: dict, model: Path | None = None) -> None:
    """Write config.yaml: where the features are, how they are normalised and, in training, masked.

    Args:
        folder: of the sets.
        specaugment: fairseq's options of it.
        model: sentencepiece model that cuts the text; None where words are the symbols.
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
