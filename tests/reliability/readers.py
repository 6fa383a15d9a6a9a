"""The commands that read files, and a folder with one honest file of each."""

import json
import re
import shlex
import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import sentencepiece
import soundfile
import timm

import timm_plugin  # noqa: F401
from tests.conftest import Corpus
from tests.support import audio, cli, warm
from tests.support.image_training import SCRIPT

MODEL, SIZES = "ringformer_vit", "patch_size=4 embed_dim=24 depth=3 num_heads=2 signal_rank_divisor=4"
SHORT = {
    "host": f"--user-dir {cli.PLUGIN} --cpu --num-workers 0",
    "short": "--gen-subset valid --max-len-b 9 --beam 2",
    "small": shlex.join([*cli.MODEL, *cli.OPTIMISER, "--batch-size", "64"]),
    "images": f"images --model {MODEL} --model-kwargs {SIZES} --img-size 16 --epochs 2 --warmup-epochs 0 "
    "--batch-size 24 --workers 0 --device cpu",
    "script": SCRIPT,
    "model": MODEL,
    "sizes": SIZES,
    "plugin": cli.PLUGIN,
    "recipes": cli.REPOSITORY / "recipes",
    "records": f'import sys; sys.path.insert(0, "{cli.REPOSITORY / "recipes" / "records"}"); from pathlib import Path',
    "hub": "import os, fairseq_plugin; from fairseq_plugin.models.ringformer import RingFormer as it",
}
SHORT["train"] = f"fairseq-train data {{host}} --task translation --arch {cli.ARCH} {{small}} --seed 7 --max-epoch 3"
SHORT["compared"] = (
    f"--rows looped --arch {cli.ARCH} {{small}} --max-epoch 1 --num-workers 0 --score-sentences 8 --score=--max-len-b=5"
)
SHORT["update"] = "--optimizer adam --max-update 1 --batch-size 8 {host} --save-dir"
SHORT = {name: str(text).format(**SHORT) for name, text in SHORT.items()}
# A line names files and a command, which runs in their folder; `new` does not exist yet. "call" is a function of
# Python, whose errors are for its caller to catch.
READERS = """
model.pt: fairseq-generate data {host} --path model.pt {short}
model.pt lines.txt: fairseq-interactive data {host} --path model.pt --max-len-b 9 --beam 2 --input lines.txt
model.pt: fairseq-validate data {host} --path model.pt --batch-size 8
model.pt: {train} --save-dir new --finetune-from-model model.pt
model.pt: {train} --save-dir new --restore-file model.pt
model.pt: python -m fairseq_plugin.depth data --cpu --path model.pt {short}
model.pt: python -m fairseq_plugin.average --inputs model.pt other.pt --output new
model.pt: python -m fairseq_plugin.convert unshare model.pt new
model.pt data/dict.en.txt: python -m fairseq_plugin.convert hf model.pt new --dictionary data
model.pt: python -m fairseq_plugin.convert onnx model.pt new --dictionary data
model.pt: python {recipes}/figures/cka.py A=model.pt B=other.pt --data data --output new.svg
model.pt: python {recipes}/pronounce/ship.py model.pt --data data --folder new
model.pt: call {hub}; it.from_pretrained(".", "model.pt", "./data").translate(["one two"], 2, max_len_b=9)
model.tar.gz: call {hub}; it.from_pretrained("./model.tar.gz", "model.pt", os.path.abspath("data"))
save/checkpoint_last.pt data/dict.en.txt data/valid.en-de.en.bin data/valid.en-de.en.idx: {train} --save-dir save
data/dict.en.txt data/valid.en-de.en.bin data/valid.en-de.de.idx: fairseq-generate data {host} --path model.pt {short}
data/valid.en-de.en.idx: python -m fairseq_plugin.depth data --cpu --path model.pt {short}
vectors.txt: {train} --save-dir new --encoder-embed-path vectors.txt
pairs.txt: fairseq-interactive data {host} --path model.pt --max-len-b 9 --input lines.txt --replace-unk pairs.txt
pieces.model: fairseq-interactive data {host} --path model.pt --max-len-b 9 --input lines.txt --bpe sentencepiece \
--sentencepiece-model pieces.model
pieces.model: python -m fairseq_plugin.convert hf model.pt new --dictionary data --sentencepiece-model pieces.model
pieces.model: python {recipes}/data/segment.py encode pieces.model text.en new
text.en: fairseq-preprocess --user-dir {plugin} -s en -t de --trainpref text --destdir new
words.txt: fairseq-preprocess --user-dir {plugin} -s en --only-source --testpref text --srcdict words.txt --destdir new
raw.en: python -m fairseq_plugin.start new --train raw.en raw.de --minutes 60
language/checkpoint_last.pt language/dict.txt language/valid.bin language/valid.idx: \
fairseq-eval-lm language {host} --path language/checkpoint_last.pt --gen-subset valid
language/checkpoint_last.pt: fairseq-generate data {host} --path model.pt --lm-path language/checkpoint_last.pt {short}
language/checkpoint_last.pt lines.txt: fairseq-interactive language {host} --task language_modeling --max-len-b 9 \
--path language/checkpoint_last.pt --beam 2 --input lines.txt
language/checkpoint_last.pt: python -m fairseq_plugin.depth language --cpu --gen-subset valid \
--path language/checkpoint_last.pt
language/checkpoint_last.pt: python -m fairseq_plugin.convert hf language/checkpoint_last.pt new --dictionary language
speech/train.tsv speech/config.yaml speech/dict.txt speech/0.wav speech/1.npy speech/all.zip: \
fairseq-train speech --task speech_to_text --arch s2t_cycle --encoder-unique-layers 1 --decoder-unique-layers 1 \
--conv-channels 32 --config-yaml config.yaml {small} {update} new --train-subset train --valid-subset train
scored/looped/seed1/train.json scored/looped/seed1/score.json scored/looped/seed1/train.log \
scored/looped/seed1/checkpoints/checkpoint_best.pt: python -m fairseq_plugin.compare data {compared} --output scored
image/last.pth.tar images/val/red/0.png: python -m timm_plugin.accuracy image
image/last.pth.tar images/val/red/0.png: python -m timm_plugin.depth images --checkpoint image/last.pth.tar
image/last.pth.tar: python -m timm_plugin.depth images --checkpoint image
image/last.pth.tar: python -m timm_plugin.convert onnx image/last.pth.tar new
image/last.pth.tar image/summary.csv images/train/red/0.png: python {script} {images} --output image --resume
image/last.pth.tar: python {script} {images} --output new --teacher {model} --teacher-kwargs {sizes} \
--teacher-checkpoint image/last.pth.tar
image/last.pth.tar: python {script} {images} --output new --model-kwargs checkpoint_path=image/last.pth.tar
image/last.pth.tar image/summary.csv: python {recipes}/metrics/score_image.py image
image/last.pth.tar: python {recipes}/figures/responses.py image/last.pth.tar --output new.svg
image/last.pth.tar: python {recipes}/figures/attention_distance.py A=image/last.pth.tar --output new.svg
image/last.pth.tar: python {recipes}/cifar10/ship.py image/last.pth.tar new.safetensors
image/summary.csv: python {recipes}/figures/curves.py A=image/summary.csv --x epoch --y eval_top1 --output new.svg
train.log: python {recipes}/figures/curves.py A=train.log --x updates --y valid_loss --output new.svg
train.log: python {recipes}/metrics/loss.py train.log
saved/config.json saved/model.safetensors: python -m timm_plugin.depth images --checkpoint saved
saved/config.json saved/model.safetensors: python -m timm_plugin.convert unshare saved new
saved/config.json saved/model.safetensors: call import timm, timm_plugin; timm.create_model("local-dir:saved", \
pretrained=True)
served/model.json served/encoder.onnx served/decoder.onnx served/weights.bin lines.txt: python {plugin}/serve.py served
served/model.json lines.txt: python -m fairseq_plugin.serve served
compared/looped/seed1/train.json compared/looped/seed1/train.flags compared/looped/seed1/score.json \
compared/looped/seed1/train.log: python -m timm_plugin.compare {images} --output compared --rows looped
generate-test.log text.en: python {recipes}/metrics/score.py generate-test.log=text.en
generate-test.log: python {recipes}/metrics/pronunciation.py generate-test.log=text.en
list.json: python {recipes}/data/imagenet_small.py list.json images new
results/results.csv: call {records}; import results_csv; results_csv.read(Path("results/results.csv"))
results/tables.toml: call {records}; import rows; rows.read(Path("results"))
results/scores.json results/env.json: call {records}; import collect; \
collect.success(Path("results"), Path("new"), dict())
"""
PROGRAM = "{}\ntry:\n    {}\nexcept Exception as error:\n    print('rejected:', *str(error).splitlines()[:1])"


def readers() -> dict[str, list[list[str]]]:
    """The commands that read each file."""
    found: dict[str, list[list[str]]] = {}
    for line in READERS.strip().splitlines():
        files, _, command = line.partition(": ")
        kind, _, program = (command := command.format(**SHORT)).partition(" ")
        words = ["python", "-c", PROGRAM.format(*program.rsplit("; ", 1))] if kind == "call" else shlex.split(command)
        for file in files.split():
            found.setdefault(file, []).append(words)
    return found


# Commands that write folders which others read.
MADE = {
    "language": "fairseq-preprocess --only-source --trainpref text.en --validpref text.en --srcdict words.txt "
    "--destdir language; "
    "fairseq-train language --task language_modeling --arch ilr_small --decoder-embed-dim 16 "
    "--decoder-ffn-embed-dim 24 --decoder-layers 1 --reuse-map 2 --tokens-per-sample 32 {update} language",
    "scored": "python -m fairseq_plugin.compare data {compared} --output scored",
    "image": "python {script} {images} --output image; "
    "python -c \"import torch, timm_plugin\npath = 'image/last.pth.tar'\nstate = torch.load(path, weights_only=False)\n"
    'torch.save(dict(state, epoch=0), path)"',  # so that resuming trains
    "compared": "python -m timm_plugin.compare {images} --output compared --rows looped",
    "served": "python -m fairseq_plugin.convert onnx model.pt served --dictionary data",
}


def write_honest_files(f: Path, corpus: Corpus, straight: Path, images: Path) -> None:
    """Fills a folder with files that are spoiled and read, but for the folders that commands make."""
    for source, name in ((corpus.data, "data"), (images, "images"), (straight, "save")):
        shutil.copytree(source, f / name)
    shutil.copy(f / "data" / "dict.en.txt", f / "data" / "dict.txt")  # of a language model
    for name in ("model.pt", "other.pt"):
        shutil.copy(straight / "checkpoint_last.pt", f / name)
    write_text_files(f, corpus)
    write_speech(f / "speech")
    shutil.copytree(cli.REPOSITORY / "recipes" / "pronounce", f / "results")
    (f / "results" / "scores.json").write_text('{"word_error_rate": 3.5, "params": 8}')
    (f / "results" / "env.json").write_text('{"device": "x", "commit": "x", "packages": {"torch": "2"}}')
    with tarfile.open(f / "model.tar.gz", "w:gz") as archive:
        archive.add(f / "model.pt", "model/model.pt")
    sizes = dict(patch_size=4, embed_dim=24, depth=4, num_heads=2)
    model = timm.create_model("recursive_deit_tiny", img_size=16, num_classes=3, **sizes)
    timm.models.save_for_hf(model, f / "saved", safe_serialization=True)


def make_folders(f: Path, commands: Iterable[Iterable[str]]) -> None:
    """Lets commands make the folders of honest files that other commands read."""
    read = {part for words in commands for word in words for part in re.split("[/=]", word)}
    for name, makers in MADE.items():
        if name in read and not (f / name).exists():
            for command in makers.split("; "):
                warm.succeed({"argv": shlex.split(command.format(**SHORT)), "cwd": f, "kill_after": 600})


def write_text_files(f: Path, corpus: Corpus) -> None:
    """The files of text, of words and of logs."""
    for language in ("en", "de"):
        shutil.copy(f"{corpus.text}.valid.{language}", f / f"text.{language}")
        shutil.copy(f"{corpus.text}.train.{language}", f / f"raw.{language}")
    shutil.copy(corpus.data / "dict.en.txt", f / "words.txt")
    (f / "lines.txt").write_text("one two\nthree\n")
    (f / "pairs.txt").write_text("one eins\ntwo zwei\n")
    (f / "vectors.txt").write_text(f"1 32\none{' 0.5' * 32}\n")
    (f / "generate-test.log").write_text("".join(f"D-{n}\t-0.1\tx\n" for n in range(corpus.sentences["valid"])))
    (f / "list.json").write_text(json.dumps({split: {"red": ["0.png"]} for split in ("train", "val")}))
    said = {"epoch": 1, "valid_loss": "2.5", "valid_nll_loss": "2.1", "valid_num_updates": "5"}
    (f / "train.log").write_text(f"2024-01-01 00:00:00 | INFO | valid | {json.dumps(said)}\n")
    names = dict(input=str(f / "raw.en"), model_prefix=str(f / "pieces"), minloglevel=2)
    sentencepiece.SentencePieceTrainer.train(**names, vocab_size=30, hard_vocab_limit=False)


def write_speech(folder: Path) -> None:
    """Utterances as audio, as an array and in a zip."""
    folder.mkdir()
    chance = np.random.default_rng(0)
    soundfile.write(folder / "0.wav", audio.tone(440, 0.3, 16000), 16000)
    for number in (1, 2):
        np.save(folder / f"{number}.npy", chance.normal(0, 1, (28, 80)).astype(np.float32))
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.write(folder / "2.npy", "2.npy")
        start = archive.getinfo("2.npy").header_offset + 35
    stored = f"speech/all.zip:{start}:{(folder / '2.npy').stat().st_size}"
    rows = [(place, 28, "one") for place in ("speech/0.wav", "speech/1.npy", stored)]
    audio.write_manifest(folder / "train.tsv", rows)
    (folder / "dict.txt").write_text("one 1\ntwo 1\n")
    (folder / "config.yaml").write_text("transforms: {'*': [utterance_cmvn]}\nspecaugment: {freq_mask_N: 1}\n")
