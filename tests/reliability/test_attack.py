"""Hostile files of many kinds against every command that reads a file.

Each attack copies a folder of honest files, spoils one of them, and runs a command that reads it. The command may work,
or reject the file in one line. It may not change or run anything outside the folder, take long, or fill the memory.

`make fuzz` tries more than the other tests, with other files each time. ATTACKS names a file for a line about each.
"""

import argparse
import copy
import io
import itertools
import json
import os
import random
import re
import shlex
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
from PIL import Image

import timm_plugin  # noqa: F401
from fairseq_repairs.checkpoints import allow_checkpoint_types
from tests.repairs.test_foreign import Pickled
from tests.support import cli, warm
from tests.support.image_training import SCRIPT
from timm_plugin.training.options import key_value

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("ROUNDS", 0))
TRIED, TOGETHER = (30 * ROUNDS, 4) if ROUNDS else (12, 2)  # the second: at once
SEED = int(os.environ.get("SEED", random.randrange(10**6) if ROUNDS else 0))
SECONDS, MEMORY = 300, 2 << 30  # the most that a command may take

MODEL, SIZES = "ringformer_vit", "patch_size=4 embed_dim=24 depth=3 num_heads=2 signal_rank_divisor=4"
SHORT = {
    "host": f"--user-dir {cli.PLUGIN} --cpu --num-workers 0",
    "short": "--gen-subset valid --max-len-b 9 --beam 2",
    "images": f"images --model {MODEL} --model-kwargs {SIZES} --img-size 16 --epochs 2 --warmup-epochs 0 "
    "--batch-size 24 --workers 0 --device cpu",
    "script": SCRIPT,
    "model": MODEL,
    "sizes": SIZES,
    "plugin": cli.PLUGIN,
    "recipes": cli.REPOSITORY / "recipes",
    "records": f'import sys; sys.path.insert(0, "{cli.REPOSITORY / "recipes" / "records"}"); from pathlib import Path',
    "hub": "import fairseq_plugin; from fairseq_plugin.models.ringformer import RingFormer as it",
}
# Commands by the files that they read: a line names files and a command, which runs in their folder; `new` does not
# exist yet. "call" is a function of Python, whose errors are for its caller to catch.
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
model.pt: call {hub}; it.from_pretrained(".", "model.pt", "./data").translate(["one two"], 2, max_len_b=9)
model.tar.gz: call {hub}; it.from_pretrained("./model.tar.gz", "model.pt", "../data")
save/checkpoint_last.pt data/dict.en.txt data/valid.en-de.en.bin data/valid.en-de.en.idx: {train} --save-dir save
data/dict.en.txt data/valid.en-de.en.bin data/valid.en-de.de.idx: fairseq-generate data {host} --path model.pt {short}
data/valid.en-de.en.idx: python -m fairseq_plugin.depth data --cpu --path model.pt {short}
pairs.txt: fairseq-interactive data {host} --path model.pt --max-len-b 9 --input lines.txt --replace-unk pairs.txt
text.en: fairseq-preprocess --user-dir {plugin} -s en -t de --trainpref text --destdir new
words.txt: fairseq-preprocess --user-dir {plugin} -s en --only-source --testpref text --srcdict words.txt --destdir new
image/last.pth.tar images/val/red/0.png: python -m timm_plugin.accuracy image
image/last.pth.tar images/val/red/0.png: python -m timm_plugin.depth images --checkpoint image/last.pth.tar
image/last.pth.tar: python -m timm_plugin.convert unshare image/last.pth.tar new
image/last.pth.tar image/summary.csv images/train/red/0.png: python {script} {images} --output image --resume
image/last.pth.tar: python {script} {images} --output new --teacher {model} --teacher-kwargs {sizes} \
--teacher-checkpoint image/last.pth.tar
image/last.pth.tar: python {script} {images} --output new --model-kwargs checkpoint_path=image/last.pth.tar
image/last.pth.tar image/summary.csv: python {recipes}/metrics/score_image.py image
image/summary.csv: python {recipes}/figures/curves.py A=image/summary.csv --x epoch --y eval_top1 --output new.svg
saved/config.json saved/model.safetensors: python -m timm_plugin.depth images --checkpoint saved
saved/config.json saved/model.safetensors: python -m timm_plugin.convert unshare saved new
saved/config.json saved/model.safetensors: call import timm, timm_plugin; timm.create_model("local-dir:saved", \
pretrained=True)
served/model.json served/encoder.onnx served/decoder.onnx served/weights.bin lines.txt: python {plugin}/serve.py served
compared/looped/seed1/train.json compared/looped/seed1/train.flags compared/looped/seed1/score.json \
compared/looped/seed1/train.log: python -m timm_plugin.compare {images} --output compared --rows looped
generate-test.log: python {recipes}/metrics/score.py generate-test.log=text.en
list.json: python {recipes}/data/imagenet_small.py list.json images new
results/results.csv: call {records}; import results_csv; results_csv.read(Path("results/results.csv"))
results/tables.toml: call {records}; import rows; rows.read(Path("results"))
results/scores.json results/env.json: call {records}; import collect; \
collect.success(Path("results"), Path("new"), dict())
"""
TRAIN = ["fairseq-train", *cli.train_command("data", "new", "--batch-size", "64", "--max-epoch", "3")]
SHORT["train"] = shlex.join(map(str, TRAIN))
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


# How files are spoiled: functions of a file and chance. Files of an attack are in a folder `f`, beside `outside`.

HOSTILE = [
    *(None, True, -1, 0, 10**6, 10**9, 10**18, -(10**18), 2**70, float("nan"), float("inf"), 1e308, 0.5, b"bytes"),
    *(
        "",
        "x",
        "../../outside/thesis.txt",
        "{f}/../outside/thesis.txt",
        "/dev/zero",
        "fifo",
        "a\0b",
        "9" * 5000,
        "\udcff",
    ),
    *("__import__('os').system('touch {f}/../outside/ran')", "http://127.0.0.1:9/x", "pipe:touch {f}/../outside/ran"),
    *("${oc.env:HOME}", "${model}", "wds/x", [], {}, [1], [[[[[[1]]]]]], {"x": {"y": None}}, [10**9] * 3),
]


def top(file: Path) -> Path:
    """The folder of the attack."""
    return next(parent for parent in file.parents if parent.name == "f")


def outside(file: Path) -> Path:
    """The folder in which nothing may change."""
    return top(file).parent / "outside"


def truncated(file: Path, chance: random.Random) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: chance.randrange(len(data))])


def flipped(file: Path, chance: random.Random) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(chance.choice([1, 3, 30])):
        data[chance.randrange(min(len(data), chance.choice([64, 4096, len(data)])))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def empty(file: Path, chance: random.Random) -> None:
    file.write_bytes(b"")


def noise(file: Path, chance: random.Random) -> None:
    file.write_bytes(chance.randbytes(chance.choice([1, 100, 10**6])))


def zeros(file: Path, chance: random.Random) -> None:
    file.write_bytes(bytes(chance.choice([1, 4096, 10**7])))


def sparse(file: Path, chance: random.Random) -> None:
    os.truncate(file, 1 << 38)


def a_line(file: Path, chance: random.Random) -> None:
    one = chance.choice([b"a", b"9", b"[", b",", b'"', b"\0", b"\xff\xfe", b"\r"])
    file.write_bytes(file.read_bytes()[: chance.randrange(200)] + one * 3 * 10**6)


def pipe(file: Path, chance: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.mkdir()


def endless(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def loop(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.symlink_to(file.name)


def linked(file: Path, chance: random.Random) -> None:
    """The file itself is outside, and must stay as it is."""
    file.symlink_to(shutil.move(file, outside(file)))


def links_beside(file: Path, chance: random.Random) -> None:
    """Links to a file outside, under names that commands write."""
    names = "tmp.pth.tar model_best.pth.tar checkpoint-1.pth.tar summary.tmp .lock train.log score.flags score.log "
    names += "checkpoint_best.pt checkpoint_last.pt.tmp checkpoint_best.pt.tmp checkpoint3.pt checkpoint3.pt.tmp "
    for name in {*names.split(), f"{file.name}.tmp", f"{file.name}.part", f"{file.stem}.txt"} - {file.name}:
        (file.parent / name).unlink(missing_ok=True)
        (file.parent / name).symlink_to(outside(file) / "thesis.txt")


ANY = (truncated, flipped, empty, noise, zeros, sparse, a_line, pipe, folder, endless, loop, linked, links_beside)


def inside(value: Any) -> Any:
    """The parts of a container; of another value none."""
    return vars(value) if isinstance(value, argparse.Namespace) else value if isinstance(value, dict | list) else {}


def places(value: Any, path: tuple = ()) -> Iterator[tuple[Any, Any, tuple]]:
    """Each part of nested containers: what it is in, its key there, and the keys that lead to it."""
    parts = inside(value)
    for key in [*parts] if isinstance(parts, dict) else range(len(parts)):
        yield parts, key, (*path, key)
        yield from places(parts[key], (*path, key))


def a_place(state: Any, chance: random.Random, kind: Callable[[Any], bool] | None = None) -> tuple[Any, Any]:
    """A part of a kind; without one, any part but the many tensors."""
    kind = kind or (lambda value: not isinstance(value, torch.Tensor))
    found = [(parts, key) for parts, key, _ in places(state) if kind(parts[key])]
    return chance.choice(found)


def other_value(state: Any, file: Path, chance: random.Random) -> Any:
    parts, key = a_place(state, chance)
    value = copy.deepcopy(chance.choice(HOSTILE))
    parts[key] = value.replace("{f}", str(top(file))) if isinstance(value, str) else value
    return state


def other_values(state: Any, file: Path, chance: random.Random) -> Any:
    for _ in range(12):
        state = other_value(state, file, chance)
    return state


def no_part(state: Any, file: Path, chance: random.Random) -> Any:
    parts, key = a_place(state, chance)
    parts.pop(key)
    return state


def other_keys(state: Any, file: Path, chance: random.Random) -> Any:
    parts, key = a_place(state, chance)
    if isinstance(parts, dict):
        parts[chance.choice([3, "", "x" * 10**5, "a.b.c", "../x", "\0", "layers"])] = parts.pop(key)
    return state


def deep(state: Any, file: Path, chance: random.Random) -> Any:
    parts, key = a_place(state, chance)
    for _ in range(chance.choice([10, 200])):
        parts[key] = [parts[key]] if chance.random() < 0.5 else {"x": parts[key]}
    return state


def of_itself(state: Any, file: Path, chance: random.Random) -> Any:
    parts, key = a_place(state, chance)
    parts[key] = state
    return state


def of_another_type(state: Any, file: Path, chance: random.Random) -> Any:
    return chance.choice([None, [], 3, "x", {}, {"model": None}, {"args": {}}, [state], {"state_dict": 1}])


def huge_options(state: Any, file: Path, chance: random.Random) -> Any:
    """Whole numbers of a model's options that no machine can build."""
    options = {"args", "model", "model_args"}
    found = [(parts, key) for parts, key, path in places(state) if isinstance(parts[key], int) and options & {*path}]
    for parts, key in chance.sample(found, min(len(found), chance.choice([1, 1, 3, len(found)]))):
        parts[key] = chance.choice([10**5, 10**6, 10**9, 10**12, 2**63])
    return state


def other_files(state: Any, file: Path, chance: random.Random) -> Any:
    """Options that name files and addresses."""
    names = r".*(_path|_from|_dir|file|data|model|yaml|json|bpe|dict|url|split|dataset|cfg|overlay|output)"
    for parts, key, _ in [*places(state)]:
        if isinstance(parts, dict) and isinstance(parts.get(key), str | None) and re.fullmatch(names, str(key)):
            parts[key] = chance.choice(["/dev/zero", "fifo", "http://127.0.0.1:9/x", "pipe:touch ran", "/etc/passwd"])
    return state


def other_tensor(state: Any, file: Path, chance: random.Random) -> Any:
    parts, key = a_place(state, chance, lambda value: isinstance(value, torch.Tensor))
    one = torch.zeros(1)
    kinds = [
        one.expand(10**12),
        one.expand(2 * 10**9),
        one.as_strided((10**10, 32), (0, 0)),
        torch.zeros(3, 3).to_sparse(),
    ]
    kinds += [
        torch.zeros(0),
        torch.zeros(2, dtype=torch.int64),
        torch.tensor(0.0),
        one.bool(),
        torch.full((32, 32), torch.nan),
    ]
    kinds += [torch.quantize_per_tensor(one, 0.1, 0, torch.quint8), torch.zeros(2, dtype=torch.complex64)]
    parts[key] = chance.choice([*kinds, torch.zeros(10**9, device="meta")])
    return state


def program(state: Any, file: Path, chance: random.Random) -> Any:
    parts, key = a_place(state, chance)
    ran = str(outside(file) / "ran")
    parts[key] = Pickled(
        *chance.choice([(os.mkdir, (ran,)), (os.system, (f"touch {ran}",)), (eval, (f"open({ran!r}, 'w')",))])
    )
    return state


PARTS = (other_value, other_values, no_part, other_keys, deep, of_another_type, huge_options, other_files)


def spoiler(
    change: Callable, read: Callable[[Path], Any], write: Callable[[Any, Path, random.Random], None]
) -> Callable:
    """Spoils a file by a change to what is in it."""

    def spoil(file: Path, chance: random.Random) -> None:
        write(change(read(file), file, chance), file, chance)

    spoil.__name__ = change.__name__
    return spoil


def read_state(file: Path) -> Any:
    allow_checkpoint_types()
    return torch.load(file, weights_only=True)


def write_state(state: Any, file: Path, chance: random.Random) -> None:
    torch.save(state, file, _use_new_zipfile_serialization=chance.random() < 0.7)


def write_json(state: Any, file: Path, chance: random.Random) -> None:
    file.write_text(json.dumps(state, default=str), encoding="utf-8", errors="surrogateescape")


def read_header(file: Path) -> Any:
    """Of safetensors."""
    data = file.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def write_header(header: Any, file: Path, chance: random.Random) -> None:
    text, data = json.dumps(header, default=str).encode(errors="surrogateescape"), file.read_bytes()
    size = chance.choice([len(text), len(text), 2**62, len(text) + 9])
    file.write_bytes(size.to_bytes(8, "little") + text + data[8 + int.from_bytes(data[:8], "little") :])


def compressed(file: Path, chance: random.Random) -> None:
    """Gigabytes of zeros in a part of a checkpoint."""
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    bomb = chance.choice([name for name in parts if name.endswith("data.pkl") or "/data/" in name])
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in parts.items():
            with archive.open(name, "w", force_zip64=True) as out:
                for part in (bytes(1 << 25) for _ in range(100)) if name == bomb else (data,):
                    out.write(part)


def bare_pickle(file: Path, chance: random.Random) -> None:
    """Opcodes at random behind a pickle's first bytes."""
    codes = rb"} ] ( \x85 R b s u 2 0 Q \x8a\xff cos\nsystem\n X\xff\xff\xff\x7f cargparse\nNamespace\n h\0 "
    codes += rb"ctorch._utils\n_rebuild_tensor_v2\n cnumpy\ndtype\n"
    words = [word.decode("unicode_escape").encode("latin-1") for word in codes.split()]
    file.write_bytes(b"\x80\x02" + b"".join(chance.choices(words, k=chance.choice([3, 30, 300]))) + b".")


def script(file: Path, chance: random.Random) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(file)


def members(*made: tuple[str, dict]) -> Callable:
    """An archive with the model and further members."""

    def spoil(file: Path, chance: random.Random) -> None:
        with tarfile.open(file, "w:gz", compresslevel=1) as archive:
            archive.add(file.with_name("model.pt"), "model/model.pt")
            for name, fields in made:
                member = tarfile.TarInfo(name.replace("{f}", str(top(file))))
                for key, value in fields.items():
                    setattr(member, key, value.replace("{f}", str(top(file))) if isinstance(value, str) else value)
                archive.addfile(member, io.BytesIO(bytes(member.size)) if member.isreg() else None)

    return spoil


LINK, HARD, THESIS = {"type": tarfile.SYMTYPE}, {"type": tarfile.LNKTYPE}, "{f}/../outside/thesis.txt"
ARCHIVES = {
    "absolute": members((THESIS, {"size": 9})),
    "above": members(("model/../../../../outside/thesis.txt", {"size": 9})),
    "through a link": members(("model/x", {**LINK, "linkname": "{f}/../outside"}), ("model/x/thesis.txt", {"size": 9})),
    "through a hard link": members(("model/x", {**HARD, "linkname": THESIS}), ("model/x", {"size": 9})),
    "device": members(("model/dict.en.txt", dict(type=tarfile.CHRTYPE, devmajor=1, devminor=5))),
    "pipe": members(("model/dict.en.txt", dict(type=tarfile.FIFOTYPE))),
    "chain": members(("model/a", {**LINK, "linkname": "b/.."}), ("model/b", {**LINK, "linkname": "../.."})),
    "bomb": members(("model/big", {"size": 3 << 30})),
    "several folders": members(("other/x", {"size": 1}), ("third", {"size": 1})),
    "endless model": members(("model/model.pt", {**LINK, "linkname": "/dev/zero"})),
}
for name, spoil in ARCHIVES.items():
    spoil.__name__ = name


def bomb(file: Path, chance: random.Random) -> None:
    Image.new("1", (60000, 60000)).save(file)


def other_size(file: Path, chance: random.Random) -> None:
    """An image of other data than its head says."""
    data = bytearray(file.read_bytes())
    data[16:24] = struct.pack(">II", *chance.choices([1, 10**4, 2**31 - 1], k=2))
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    file.write_bytes(data)


def counted(file: Path, chance: random.Random) -> None:
    """A number at its largest."""
    data = bytearray(file.read_bytes())
    at = chance.randrange(max(1, len(data) - 8))
    data[at : at + 8] = chance.choice([b"\xff" * 8, b"\xff" * 7 + b"\x7f", bytes(8), b"\0\0\0\0\1\0\0\0"])
    file.write_bytes(data)


def other_words(file: Path, chance: random.Random) -> None:
    lines = file.read_text(errors="surrogateescape").splitlines() or [""]
    words = ["", "-1", "9" * 400, "nan", "1e999", "\0", "\x85", "../x", '"', "{", "é" * 9, "\r", "#fairseq:overwrite"]
    for number in chance.choices(range(len(lines)), k=5):
        parts = re.split(r"([ ,\t=:|])", lines[number])
        parts[chance.randrange(len(parts))] = chance.choice(words)
        lines[number] = "".join(parts)
    file.write_text("\n".join([*lines, *lines[: chance.choice([0, 5])]]) + "\n", errors="surrogateescape")


def of_pickles() -> list[Callable]:
    changes = (*PARTS, of_itself, other_tensor, program)
    return [*(spoiler(change, read_state, write_state) for change in changes), compressed, bare_pickle, script]


def of_json(read: Callable = lambda file: json.loads(file.read_text()), write: Callable = write_json) -> list[Callable]:
    return [spoiler(change, read, write) for change in PARTS[:6]]


OF_KIND: dict[str, list[Callable]] = {
    **dict.fromkeys([".pt", ".tar"], of_pickles()),
    **{".json": [*of_json(), other_words], ".flags": of_json(), ".safetensors": of_json(read_header, write_header)},
    **{".gz": [*ARCHIVES.values()], ".png": [bomb, other_size], ".idx": [counted], ".onnx": [counted]},
    **dict.fromkeys([".txt", ".en", ".csv", ".log", ".toml"], [other_words]),
}


class Attack(NamedTuple):
    """A file, how it is spoiled, and a command that reads it."""

    file: str
    spoil: Callable[[Path, random.Random], None]
    words: list[str]

    @property
    def kind(self) -> str:
        return f"{Path(self.file).suffix[1:]} {self.spoil.__name__}"


def attacks() -> Iterator[Attack]:
    """One of each kind against each file, in any order, then again with other commands."""
    found = [(file, spoil) for file in readers() for spoil in (*ANY, *OF_KIND.get(Path(file).suffix, ()))]
    random.Random(SEED).shuffle(found)
    commands = readers()
    for turn in itertools.count():
        for number, (file, spoil) in enumerate(found):
            yield Attack(file, spoil, commands[file][(turn + number) % len(commands[file])])


@pytest.fixture(scope="module")
def honest(corpus, straight, images, tmp_path_factory) -> Path:
    """A folder with every file that is spoiled, as the commands have written it."""
    f = tmp_path_factory.mktemp("honest")
    for source, name in ((corpus.data, "data"), (images, "images"), (straight, "save")):
        shutil.copytree(source, f / name)
    for name in ("model.pt", "other.pt"):
        shutil.copy(straight / "checkpoint_last.pt", f / name)
    for language in ("en", "de"):
        shutil.copy(f"{corpus.text}.valid.{language}", f / f"text.{language}")
    shutil.copy(corpus.data / "dict.en.txt", f / "words.txt")
    (f / "lines.txt").write_text("one two\nthree\n")
    (f / "pairs.txt").write_text("one eins\ntwo zwei\n")
    (f / "generate-test.log").write_text("".join(f"D-{n}\t-0.1\tx\n" for n in range(corpus.sentences["valid"])))
    (f / "list.json").write_text(json.dumps({split: {"red": ["0.png"]} for split in ("train", "val")}))
    shutil.copytree(cli.REPOSITORY / "recipes" / "pronounce", f / "results")
    (f / "results" / "scores.json").write_text('{"word_error_rate": 3.5, "params": 8}')
    (f / "results" / "env.json").write_text('{"device": "x", "commit": "x", "packages": {"torch": "2"}}')
    with tarfile.open(f / "model.tar.gz", "w:gz") as archive:
        archive.add(f / "model.pt", "model/model.pt")
    run("python {script} {images} --output image", f)
    state = read_state(f / "image" / "last.pth.tar")
    torch.save({**state, "epoch": 0}, f / "image" / "last.pth.tar")  # so that resuming trains
    run("python -m timm_plugin.compare {images} --output compared --rows looped", f)
    run("python -m fairseq_plugin.convert onnx model.pt served --dictionary data", f)
    model = timm.create_model(MODEL, img_size=16, num_classes=3, **dict(map(key_value, SIZES.split())))
    timm.models.save_for_hf(model, f / "saved", safe_serialization=True)
    assert {name for name in readers() if not (f / name).is_file()} == set()
    return f


def run(command: str, f: Path) -> None:
    warm.succeed({"argv": shlex.split(command.format(**SHORT)), "cwd": f, "kill_after": 600})


def wrong(honest: Path, attack: Attack, number: int, place: Path) -> list[str]:
    """What a command has done to the files and the machine that it must not do."""
    f, beside, report = place / "f", place / "outside", place / "report"
    shutil.copytree(honest, f)
    for made in (beside / "home", f / "tmp"):
        made.mkdir(parents=True)
    (beside / "thesis.txt").write_text("mine")
    os.mkfifo(f / "fifo")
    attack.spoil(f / attack.file, random.Random(f"{SEED} {number}"))
    before = contents(beside)
    env = {"HOME": str(beside / "home"), **dict.fromkeys(["TMPDIR", "MPLCONFIGDIR"], str(f / "tmp"))}
    job = dict(argv=attack.words, cwd=f, env=env, kill_after=SECONDS, stdin=honest / "lines.txt")
    (ended,) = warm.run({**job, "confine": {"folder": str(f), "report": str(report)}})
    effects = report.read_text().splitlines() if report.exists() else []
    peak = max((int(line.split()[1]) for line in effects if line.startswith("memory ")), default=0)
    ours = re.compile(r"memory |subprocess.Popen .*(-m', '(timm_plugin|fairseq_cli)|'git'|fc-list)")  # and matplotlib's
    found = [line for line in effects if not ours.match(line)]
    found += [str(path) for path, _ in contents(beside).items() ^ before.items()]
    if ended.status not in (0, 1, 2):
        found.append(f"status {ended.status}")
    if "Traceback" in ended.log or "Exception ignored" in ended.log:
        found.append(f"traceback: {ended.last_line}")
    if peak > MEMORY or re.search("can't allocate|MemoryError|bad_alloc", ended.log):
        found.append(f"{peak >> 20} MB")
    if log := os.environ.get("ATTACKS"):
        with open(log, "a") as file:
            words = shlex.join(attack.words)[:90]
            file.write(f"{attack.file}, {attack.kind}, {words}: {ended.status}, {peak >> 20} MB, {found}, ")
            file.write(f"{ended.last_line[:300]}\n")
    shutil.rmtree(place)
    return found


def contents(folder: Path) -> dict[Path, bytes | None]:
    """The files of a folder, and what is in them, less what onnxruntime notes about its use when it is imported."""
    found = [path for path in folder.rglob("*") if ".cache" not in path.parts]
    return {path: path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 30 else None for path in found}


def test_hostile_files_do_nothing_but_fail(honest, tmp_path):
    tried = list(itertools.islice(attacks(), TRIED))
    with ThreadPoolExecutor(TOGETHER) as pool:
        numbers = range(len(tried))
        found = list(pool.map(lambda number: wrong(honest, tried[number], number, tmp_path / str(number)), numbers))
    commands = {tuple(attack.words) for attack in tried}
    kinds = {attack.kind for attack in tried}
    print(f"{len(tried)} hostile files of {len(kinds)} kinds, {len(commands)} commands, seed {SEED}")
    assert [(attack.file, attack.kind, attack.words, each) for attack, each in zip(tried, found) if each] == []
