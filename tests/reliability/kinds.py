"""How hostile files are made: functions that spoil an honest file, of each type.

They get the file and a source of chance. The files are in a folder `f`, beside a folder `outside` in which nothing may
change.
"""

import argparse
import copy
import io
import json
import os
import random
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from fairseq_repairs.checkpoints import allow_checkpoint_types
from tests.repairs.test_foreign import Pickled

Spoil = Callable[[Path, random.Random], None]
CODE = "__import__('os').system('touch {f}/../outside/ran')"
NUMBERS = [-1, 0, 10**6, 10**9, 10**18, -(10**18), 2**70, float("nan"), float("inf"), 1e308, 0.5]
NAMES = [
    "",
    "x",
    "../../outside/thesis.txt",
    "{f}/../outside/thesis.txt",
    "/dev/zero",
    "fifo",
    "a\0b",
    "\udcff",
    "wds/x",
]
TEXTS = [CODE, "9" * 5000, "http://127.0.0.1:9/x", "pipe:touch {f}/../outside/ran", "${oc.env:HOME}", "${model}"]
NESTED: list[Any] = [[], {}, [1], [[[[[[1]]]]]], {"x": {"y": None}}, [10**9] * 3]
HOSTILE = [None, True, b"bytes", *NUMBERS, *NAMES, *TEXTS, *NESTED]


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
    names = "tmp.pth.tar model_best.pth.tar checkpoint-1.pth.tar summary.tmp .lock .training.lock "
    names += "train.log score.flags score.log checkpoint_best.pt checkpoint_last.pt.tmp checkpoint_best.pt.tmp "
    names += "checkpoint3.pt checkpoint3.pt.tmp "
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
    huge = [one.expand(10**12), one.expand(2 * 10**9), one.as_strided((10**10, 32), (0, 0))]
    kinds = [torch.zeros(0), torch.tensor(0.0), torch.full((32, 32), torch.nan), torch.zeros(3, 3).to_sparse()]
    kinds += [one.bool(), one.long(), one.cfloat(), torch.quantize_per_tensor(one, 0.1, 0, torch.quint8)]
    parts[key] = chance.choice([*huge, *kinds, torch.zeros(10**9, device="meta")])
    return state


def program(state: Any, file: Path, chance: random.Random) -> Any:
    parts, key = a_place(state, chance)
    ran = str(outside(file) / "ran")
    calls = [(os.mkdir, (ran,)), (os.system, (f"touch {ran}",)), (eval, (f"open({ran!r}, 'w')",))]
    parts[key] = Pickled(*chance.choice(calls))
    return state


PARTS = (other_value, other_values, no_part, other_keys, deep, of_another_type, huge_options, other_files)


def spoiler(change: Callable, read: Callable[[Path], Any], write: Callable[[Any, Path, random.Random], None]) -> Spoil:
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


def members(*made: tuple[str, dict]) -> Spoil:
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


def joined(file: Path, chance: random.Random) -> None:
    """The file twice, or with its second half first."""
    data = file.read_bytes()
    middle = len(data) // 2
    file.write_bytes(chance.choice([data + data, data[middle:] + data[:middle]]))


def many_lines(file: Path, chance: random.Random) -> None:
    lines = file.read_bytes().splitlines(keepends=True) or [b"\n"]
    file.write_bytes(b"".join(lines) + chance.choice([lines[-1], b"\n", b"0\n"]) * 3 * 10**5)


def tagged(file: Path, chance: random.Random) -> None:
    """Code, aliases that grow without end, and files of others."""
    command = f"touch {outside(file) / 'ran'}"
    aliases = "a0: &a0 [x, x]\n" + "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(30))
    code = f"x: !!python/object/apply:os.system ['{command}']\n"
    elsewhere = "audio_root: /dev\nvocab_filename: zero\nglobal_cmvn: {stats_npz_path: fifo}\n"
    unknown = "transforms: {'*': [global_cmvn, os.system]}\n"
    file.write_text(chance.choice([aliases, code, elsewhere, elsewhere + unknown, unknown, "a: &a [*a]\n"]))


def of_pickles() -> list[Spoil]:
    changes = (*PARTS, of_itself, other_tensor, program)
    return [*(spoiler(change, read_state, write_state) for change in changes), compressed, bare_pickle, script]


def of_json(read: Callable = lambda file: json.loads(file.read_text()), write: Callable = write_json) -> list[Spoil]:
    return [spoiler(change, read, write) for change in PARTS[:6]]


BINARY = (".idx", ".bin", ".onnx", ".wav", ".npy", ".zip", ".model")
TEXT = (".txt", ".en", ".csv", ".log", ".toml", ".tsv")
OF_TYPE: dict[str, list[Spoil]] = {
    **dict.fromkeys([".pt", ".tar"], of_pickles()),
    **{".json": [*of_json(), other_words], ".flags": of_json(), ".safetensors": of_json(read_header, write_header)},
    **{".gz": [*ARCHIVES.values()], ".png": [bomb, other_size]},
    **dict.fromkeys(BINARY, [counted, joined]),
    **dict.fromkeys(TEXT, [other_words, many_lines]),
    ".yaml": [other_words, many_lines, tagged],
}


def kinds(file: str) -> list[Spoil]:
    """The ways in which a file of this name is spoiled."""
    found = [*ANY, *OF_TYPE.get(Path(file).suffix, ())]
    # `fairseq-interactive --input <(program)` is a pipe, too, which waits for its writer; many lines are many answers.
    return [spoil for spoil in found if file != "lines.txt" or spoil not in (pipe, many_lines)]
