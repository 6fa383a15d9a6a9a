"""fairseq's own models, tiny, trained and used in this process by fairseq's own commands."""

import random
import sys
from argparse import Namespace
from collections.abc import Iterable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from fairseq import checkpoint_utils, options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from fairseq_cli import eval_lm, generate, interactive, preprocess, train, validate
from omegaconf import DictConfig
from torch import nn

import fairseq_repairs  # noqa: F401
from tests.support import cli
from tests.support.audio import tone, write_manifest

SENTENCES = {"train": 25, "valid": 9, "test": 11}  # none a multiple of 8
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
RATE = 16000

SIDES = ("encoder", "decoder")
SIZES = ("layers=1", "embed-dim=8", "ffn-embed-dim=8", "attention-heads=2")
ENCODER, DECODER = ([f"--{side}-{size}" for size in SIZES] for side in SIDES)
TRANSFORMER = [*ENCODER, *DECODER]
LSTM = ["--decoder-out-embed-dim=8"]
LSTM += [f"--{side}-{size}" for side in SIDES for size in ("layers=1", "embed-dim=8", "hidden-size=8")]
FCONV = [f"--{side}-{option}" for side in SIDES for option in ("embed-dim=8", "layers=[(8, 3)] * 2")]
WAV2VEC = {
    "conv-feature-layers": "[(8, 10, 5)] + [(8, 3, 4)] * 2",
    **{"encoder-layers": 1, "encoder-embed-dim": 8, "encoder-ffn-embed-dim": 8, "encoder-attention-heads": 2},
    **{"final-dim": 8, "latent-dim": 8, "latent-vars": 4, "latent-groups": 2, "conv-pos": 8, "conv-pos-groups": 2},
    **{"num-negatives": 2, "mask-length": 2},
}
TRANSLATION = ("--task", "translation", "--source-lang", "en", "--target-lang", "de")
SMOOTHED = ("--criterion", "label_smoothed_cross_entropy")
# For each of fairseq's models the flags of its task, criterion and size.
MODELS = {
    "transformer": [*TRANSLATION, *SMOOTHED, *TRANSFORMER],
    "lstm": [*TRANSLATION, *LSTM],
    "fconv": [*TRANSLATION, *FCONV, "--decoder-out-embed-dim=8", "--decoder-attention=True"],
    "multilingual_transformer": ["--task=multilingual_translation", "--lang-pairs=en-de,de-en", *TRANSFORMER],
    "transformer_lm": ["--task=language_modeling", "--tokens-per-sample=12", *DECODER],
    "roberta": ["--task=masked_lm", "--criterion=masked_lm", "--tokens-per-sample=12", "--batch-size=4", *ENCODER],
    "s2t_transformer": [
        *("--task=speech_to_text", "--config-yaml=config.yaml", "--conv-channels=8", *SMOOTHED, *TRANSFORMER),
    ],
    "wav2vec2": [
        *("--task=audio_pretraining", "--criterion=wav2vec", "--infonce", "--sample-rate", str(RATE)),
        *("--max-sample-size=8000", "--min-sample-size=1000", "--max-tokens=50000"),
        *[f"--{name}={value}" for name, value in WAV2VEC.items()],
    ],
}
KINDS = {"s2t_transformer": "speech", "wav2vec2": "audio"}  # of data; the other models read text
TRANSLATING = ("transformer", "lstm", "fconv")


def write_raw_text(folder: Path) -> None:
    """Writes a small parallel corpus."""
    chance = random.Random(0)
    for split, count in SENTENCES.items():
        source = [chance.choices(list(WORDS), k=chance.randint(1, 9)) for _ in range(count)]
        for language, lines in {"en": source, "de": [[WORDS[word] for word in line] for line in source]}.items():
            write_lines(folder / f"{split}.{language}", map(" ".join, lines))


def write_text(folder: Path) -> Path:
    """Writes and binarises a small parallel corpus, and its English side alone (dict.txt)."""
    write_raw_text(folder)
    data = folder / "data"
    for flags, ending in ((("--source-lang=en", "--target-lang=de"), ""), (("--only-source",), ".en")):
        prefixes = [f"--{split}pref={folder / split}{ending}" for split in SENTENCES]
        words = [*flags, *prefixes, f"--destdir={data}"]
        preprocess.main(options.get_preprocessing_parser().parse_args(words))
    return data


def write_tones(folder: Path) -> dict[str, list[Path]]:
    """Writes an audio file per sentence of each split."""
    paths = {
        split: [folder / f"tone-{split}-{number}.wav" for number in range(SENTENCES[split])] for split in SENTENCES
    }
    for number, path in enumerate(path for of_split in paths.values() for path in of_split):
        soundfile.write(path, tone(200 + 10 * number, 0.25 + 0.005 * number, RATE), RATE)
    return paths


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_speech(folder: Path) -> Path:
    """Tones and what they say, for speech_to_text."""
    write_lines(folder / "dict.txt", [f"{word} 1" for word in WORDS])
    write_lines(folder / "config.yaml", ["vocab_filename: dict.txt", "input_channels: 1", "input_feat_per_channel: 80"])
    for split, paths in write_tones(folder).items():
        rows = [(path, soundfile.info(path).frames // 160 - 2, "one two") for path in paths]
        write_manifest(folder / f"{split}.tsv", rows)
    return folder


def write_audio(folder: Path) -> Path:
    """Tones and their letters, for audio_pretraining and audio_finetuning."""
    write_lines(folder / "dict.ltr.txt", [f"{letter} 1" for letter in "abcd|"])
    for split, paths in write_tones(folder).items():
        sizes = [f"{path.name}\t{soundfile.info(path).frames}" for path in paths]
        write_lines(folder / f"{split}.tsv", [str(folder), *sizes])
        write_lines(folder / f"{split}.ltr", ["a b |" if number % 2 else "c d |" for number in range(len(paths))])
    return folder


WRITERS = {"text": write_text, "speech": write_speech, "audio": write_audio}


def arguments(*flags: str) -> Namespace:
    """The options of a training as fairseq-train parses them."""
    return options.parse_args_and_arch(options.get_training_parser(), ["data", "--arch", *flags])


def training_options(model: str, data: Path, save_dir: Path, *flags: Any) -> DictConfig:
    """The options of a training as fairseq-train parses them."""
    words = [data, "--arch", model, "--save-dir", save_dir, "--cpu", "--num-workers", "0", "--max-tokens", "3000"]
    words += ["--optimizer", "adam", "--lr", "0.001", "--clip-norm", "1", "--seed", "1", "--max-epoch", "1"]
    words += [*MODELS[model], *flags]
    args = options.parse_args_and_arch(options.get_training_parser(), list(map(str, words)))
    return convert_namespace_to_omegaconf(args)


def dictionary(symbols: int) -> Dictionary:
    """A dictionary of so many symbols, the special ones among them."""
    found = Dictionary()
    for number in range(found.nspecial, symbols):
        found.add_symbol(f"word{number}")
    return found


def built(model: str, words: Dictionary, *flags: str) -> BaseFairseqModel:
    """A tiny model of fairseq with large random matrices, so that what it predicts depends on the context."""
    cfg = convert_namespace_to_omegaconf(arguments(model, *MODELS[model], *flags))
    if model == "transformer_lm":
        task: FairseqTask = LanguageModelingTask(cfg.task, words)
    else:
        task = TranslationTask(cfg.task, words, words)
    torch.manual_seed(0)
    found = task.build_model(cfg.model).eval()
    for parameter in found.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter)
    return found


def run_training(model: str, data: Path, save_dir: Path, *flags: Any) -> Path:
    """Trains for an epoch, unless flags say otherwise, and returns the last checkpoint."""
    distributed_utils.call_main(training_options(model, data, save_dir, *flags), train.main)
    return save_dir / "checkpoint_last.pt"


COMMANDS = {
    "generate": (options.get_generation_parser, generate.main),
    "interactive": (options.get_interactive_generation_parser, interactive.main),
    "validate": (options.get_validation_parser, validate.main),
    "eval_lm": (options.get_eval_lm_parser, eval_lm.main),
}


def use(command: str, data: Path, path: Path, *flags: Any) -> tuple[Any, str]:
    """Runs one of ``COMMANDS`` with a flat Namespace, as fairseq's own tests do; returns its result and its output."""
    parser, main = COMMANDS[command]
    words = [data, "--path", path, "--cpu", "--num-workers", "0", *flags]
    args = options.parse_args_and_arch(parser(), list(map(str, words)))
    with redirect_stdout(StringIO()) as output:
        result = main(args)
    return result, output.getvalue()


def printed(data: Path, path: Path, lines: str, *flags: Any) -> str:
    """What fairseq-interactive prints for the lines of a program's own standard input."""
    before, sys.stdin = sys.stdin, StringIO(lines)
    try:
        return use("interactive", data, path, *flags)[1]
    finally:
        sys.stdin = before


def answer(data: Path, path: Path, lines: str, *flags: Any) -> dict[int, str]:
    """The translations that it answers."""
    return translations(printed(data, path, lines, *flags))


def translations(output: str) -> dict[int, str]:
    """The best translation of each sentence."""
    return {number: texts[0] for number, texts in cli.hypotheses(output).items()}


def parameters(path: Path) -> dict[str, np.ndarray]:
    """The parameters in a checkpoint, as arrays."""
    weights = checkpoint_utils.load_checkpoint_to_cpu(str(path))["model"]
    return {name: tensor.numpy() for name, tensor in weights.items()}
