"""Prepare LibriSpeech for fairseq's speech_to_text.

    export PYTHONPATH=../data
    python corpus.py features LIBRISPEECH FOLDER train-clean-100    # one set: FOLDER/train-clean-100.{zip,tsv}
    python corpus.py text FOLDER TEXT                               # transcripts of the training sets, one per line
    python corpus.py configure FOLDER MODEL                         # dictionary and configuration

LIBRISPEECH is the folder that the archives unpack to, with SET/SPEAKER/CHAPTER/*.flac and *.trans.txt. The text is
lowercased and SpecAugment has the settings LibriSpeech double (arXiv:1904.08779), both as in fairseq's recipe.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import sentencepiece
from speech import Utterance, write_configuration, write_set

SPECAUGMENT = dict(freq_mask_F=27, freq_mask_N=2, time_mask_N=2, time_mask_T=100, time_mask_p=1.0, time_warp_W=0)


def utterances(folder: Path) -> Iterator[Utterance]:
    """The utterances of a set, ordered by speaker and chapter."""
    for transcript in sorted(folder.glob("*/*/*.trans.txt")):
        for line in transcript.read_text(encoding="utf-8").splitlines():
            name, text = line.split(" ", 1)
            audio = transcript.with_name(f"{name}.flac")
            yield Utterance(name, str(audio), text.strip().lower(), name.split("-")[0])


def features(librispeech: Path, folder: Path, name: str) -> None:
    """Writes the features and the manifest of one set.

    Raises:
        ValueError: if the set has no transcripts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count, words, frames = write_set(folder, name, utterances(librispeech / name))
    if not count:
        raise ValueError(f"{librispeech / name}: holds no transcripts")
    print(f"{name}: {count} utterances, {words} words, {frames / 360000:.1f} h")


def write_text(folder: Path, path: Path) -> None:
    """Writes the transcripts of all training sets, to train the vocabulary on."""
    with path.open("w", encoding="utf-8") as text:
        for manifest in sorted(folder.glob("train-*.tsv")):
            with manifest.open(encoding="utf-8", newline="") as rows:
                reader = csv.DictReader(rows, delimiter="\t", quoting=csv.QUOTE_NONE)
                text.writelines(row["tgt_text"] + "\n" for row in reader)


def configure(folder: Path, model: Path) -> None:
    """Writes config.yaml and the dictionary, which has all pieces except control symbols and the unknown piece."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    text = (piece for piece in range(len(pieces)) if not (pieces.is_control(piece) or pieces.is_unknown(piece)))
    lines = (f"{pieces.id_to_piece(piece)} 1\n" for piece in text)
    (folder / "dict.txt").write_text("".join(lines), encoding="utf-8")
    write_configuration(folder, SPECAUGMENT, model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for function, arguments in (
        (features, ("librispeech", "folder", "name")),
        (write_text, ("folder", "path")),
        (configure, ("folder", "model")),
    ):
        command = commands.add_parser({write_text: "text"}.get(function, function.__name__))
        command.set_defaults(function=function)
        for name in arguments:
            command.add_argument(name, type=str if name == "name" else Path)
    arguments = vars(parser.parse_args())
    try:
        arguments.pop("function")(**arguments)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: of sentencepiece
        parser.error(str(error))


if __name__ == "__main__":
    main()
