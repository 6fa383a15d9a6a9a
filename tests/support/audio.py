"""Audio files, and data of speech_to_text that name them."""

import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def tone(frequency: float, seconds: float, rate: int) -> np.ndarray:
    """A sine wave of amplitude 0.5: (samples,)."""
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate).astype(np.float32)


def write_manifest(path: Path, rows: Iterable[tuple[object, int, str]]) -> None:
    """Writes a set for speech_to_text: the place of each utterance, its number of frames and its text."""
    lines = ["id\taudio\tn_frames\ttgt_text\tspeaker"]
    lines += [f"{number}\t{place}\t{frames}\t{text}\tsomeone" for number, (place, frames, text) in enumerate(rows)]
    path.write_text("".join(f"{line}\n" for line in lines))


def stored_zip(path: Path, files: list[Path]) -> list[str]:
    """Stores files in an uncompressed zip and returns their places, ZIP:OFFSET:LENGTH, as fairseq reads them."""
    places = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in files:
            archive.write(file, file.name)
            entry = archive.getinfo(file.name)
            start = entry.header_offset + 30 + len(file.name) + len(entry.extra)
            places.append(f"{path}:{start}:{entry.file_size}")
    return places
