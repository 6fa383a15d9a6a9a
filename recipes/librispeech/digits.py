"""Join recordings of the Free Spoken Digit Dataset into sequences of digits for fairseq's speech_to_text.

    PYTHONPATH=../data python digits.py RECORDINGS FOLDER [--rounds 8] [--held-out theo,yweweler]

RECORDINGS has {digit}_{speaker}_{index}.wav at 8 kHz. Indices 0 to 4 are the test set, as the data set defines it;
index 5 is for validation, the others are for training. With --held-out, the test set is all recordings of these
speakers, who are in no other set, and indices 0 to 4 of the others are unused. In each round, the recordings of each
speaker are shuffled, split into sequences of 1 to 7 digits (evaluation: 3 to 7) and joined without pauses, so each
recording occurs once per round. The manifest train-short lists the training sequences of one or two digits. The audio
is resampled to 16 kHz.
"""

import argparse
import io
import math
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import resample_poly
from speech import Utterance, write_configuration, write_set

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
RATE = 16000
SPECAUGMENT = dict(freq_mask_F=20, freq_mask_N=1, time_mask_N=1, time_mask_T=10, time_mask_p=1.0, time_warp_W=0)
Recordings = dict[str, list[tuple[str, Path]]]


def by_speaker(folder: Path, indices: range) -> Recordings:
    """The recordings with these indices: a list of (word, file) for each speaker."""
    recordings: Recordings = {}
    for path in sorted(folder.glob("*.wav")):
        digit, speaker, index = path.stem.split("_")
        if int(index) in indices:
            recordings.setdefault(speaker, []).append((WORDS[int(digit)], path))
    return recordings


def split(folder: Path, held_out: list[str]) -> dict[str, Recordings]:
    """The recordings of each set.

    Raises:
        ValueError: if there are no recordings, a speaker to hold out does not exist, or none is left for training.
    """
    speakers = by_speaker(folder, range(50))
    if not speakers:
        raise ValueError(f"{folder}: holds no recordings, such as 0_george_0.wav")
    for speaker in held_out:
        if speaker not in speakers:
            raise ValueError(f"--held-out {speaker}: must be among {', '.join(speakers)}")
    if len(set(held_out)) == len(speakers):
        raise ValueError(f"--held-out {','.join(held_out)}: must leave a speaker for training")
    sets = {"train": by_speaker(folder, range(6, 50)), "dev": by_speaker(folder, range(5, 6))}
    sets = {name: {who: of for who, of in found.items() if who not in held_out} for name, found in sets.items()}
    sets["test"] = {who: speakers[who] for who in held_out} or by_speaker(folder, range(5))
    return sets


def sequences(recordings: Recordings, rounds: int, shortest: int) -> Iterator[tuple[str, list]]:
    """The speaker and the recordings of each sequence; the last one of a round may be shorter than `shortest`."""
    chance = random.Random(1)
    for _ in range(rounds):
        for speaker, spoken in recordings.items():
            rest = chance.sample(spoken, len(spoken))
            while rest:
                length = chance.randint(shortest, 7)
                yield speaker, rest[:length]
                rest = rest[length:]


def joined(spoken: list[tuple[str, Path]]) -> io.BytesIO:
    """The recordings one after the other, as the content of a WAV file at 16 kHz."""
    parts = []
    for _, path in spoken:
        waveform, rate = soundfile.read(path, dtype="float32")
        divisor = math.gcd(rate, RATE)
        parts.append(resample_poly(waveform, RATE // divisor, rate // divisor))
    content = io.BytesIO()
    soundfile.write(content, np.concatenate(parts), RATE, format="WAV", subtype="PCM_16")
    content.seek(0)
    return content


def utterances(name: str, chosen: Iterator[tuple[str, list]]) -> Iterator[Utterance]:
    """The chosen sequences with their audio."""
    for number, (speaker, spoken) in enumerate(chosen):
        yield Utterance(f"{name}-{number}", joined(spoken), " ".join(word for word, _ in spoken), speaker)


def write(recordings: Path, folder: Path, rounds: int, held_out: list[str]) -> None:
    """Writes all sets.

    Raises:
        ValueError: as :func:`split` does.
    """
    found, few = split(recordings, held_out), min(rounds, 5)
    folder.mkdir(parents=True, exist_ok=True)
    for name, number, shortest in (("train", rounds, 1), ("dev", few, 3), ("test", few, 3)):
        chosen = sequences(found[name], number, shortest)
        count, words, frames = write_set(folder, name, utterances(name, chosen))
        print(f"{name}: {count} sequences, {words} words, {frames / 100:.0f} s")
    head, *lines = (folder / "train.tsv").read_text().splitlines(keepends=True)
    short = [line for line in lines if len(line.split("\t")[3].split()) <= 2]
    (folder / "train-short.tsv").write_text("".join([head, *short]))
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in WORDS))
    write_configuration(folder, SPECAUGMENT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("recordings", type=Path)
    add("folder", type=Path)
    add("--rounds", type=int, default=8, help="rounds of the training set; the other sets have at most 5 (default 8)")
    add("--held-out", default="", help="speakers of the test set alone, separated by commas")
    args = parser.parse_args()
    try:
        write(args.recordings, args.folder, args.rounds, list(filter(None, args.held_out.split(","))))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
