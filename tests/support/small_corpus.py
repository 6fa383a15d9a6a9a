"""A corpus of a few symbols that needs no preprocessing: dictionaries and raw texts, the same in every version."""

from pathlib import Path

import numpy as np

WORDS = ("a", "b", "c", "d", "e", "f", "g", "h")
SENTENCES = {"train": 32, "valid": 8}
FRAMES, FEATURES = 12, 6


def write(folder: Path) -> None:
    """Writes pairs of sentences for `translation`, texts for `language_modeling`, features for `speech_to_text`.

    All have one dictionary, of 12 symbols. fairseq reads them with ``--dataset-impl raw``. A sentence is translated by
    the next letters.
    """
    chance = np.random.default_rng(0)
    for name in ("dict.txt", "dict.en.txt", "dict.de.txt"):
        (folder / name).write_text("".join(f"{word} 1\n" for word in WORDS))
    about = {"input_feat_per_channel": FEATURES, "vocab_filename": "dict.txt", "audio_root": folder.resolve()}
    (folder / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in about.items()))
    for split, count in SENTENCES.items():
        texts = [chance.integers(0, len(WORDS), chance.integers(2, 8)) for _ in range(count)]
        source = [" ".join(WORDS[word] for word in text) for text in texts]
        target = [" ".join(WORDS[(word + 1) % len(WORDS)] for word in text) for text in texts]
        for name, lines in ((split, target), (f"{split}.en-de.en", source), (f"{split}.en-de.de", target)):
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
        rows = ["id\taudio\tn_frames\ttgt_text\tspeaker"]
        for number, line in enumerate(target):
            features = f"{split}{number}.npy"
            np.save(folder / features, chance.normal(size=(FRAMES, FEATURES)).astype(np.float32))
            rows.append(f"{number}\t{features}\t{FRAMES}\t{line}\tsomeone")
        (folder / f"{split}.tsv").write_text("".join(f"{row}\n" for row in rows))
