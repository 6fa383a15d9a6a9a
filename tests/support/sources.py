"""Small files in the format of the public data sets' archives, for the tests of data preparation."""

import gzip
import io
import json
import tarfile
from pathlib import Path

NUMBERS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TALKS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def pairs(count: int, first: int = 0) -> list[tuple[str, str]]:
    """German and English sentences of numbers."""
    digits = [[int(digit) for digit in f"{number:03d}"] for number in range(first, first + count)]
    return [
        (f"Das ist {' '.join(NUMBERS[d] for d in row)}.", f"It is {' '.join(WORDS[d] for d in row)}.") for row in digits
    ]


def text(lines) -> str:
    """Lines of a file."""
    return "".join(line + "\n" for line in lines)


def write(path: Path, content: str | bytes) -> None:
    """Writes a file, compressed if its name ends in .gz, and makes the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix in (".gz", ".tgz") else data)


def packed(files: dict[str, str | bytes]) -> bytes:
    """A tar file, not compressed."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def two_files(stem: str, rows: list[tuple[str, str]], other: str = "de") -> dict[str, str]:
    """A parallel corpus: STEM.de (or another language, with German text) and STEM.en."""
    return {f"{stem}.{language}": text(row[side] for row in rows) for side, language in enumerate((other, "en"))}


def corpora(root: Path) -> None:
    """WMT's parallel corpora; one pair lacks a side, one contains a carriage return, one is too long."""
    odd = [("Nur hier.", ""), ("Zwei\rTeile.", "Two\rparts."), ("Ja. " * 100, "Yes.")]
    for name, stem, first in (
        ("training-parallel-europarl-v7.tgz", "training/europarl-v7.de-en", 0),
        ("training-parallel-commoncrawl.tgz", "commoncrawl.de-en", 100),
        ("training-parallel-nc-v9.tgz", "training/news-commentary-v9.de-en", 200),
        ("training-parallel-nc-v11.tgz", "training-parallel-nc-v11/news-commentary-v11.de-en", 200),
    ):
        rows = pairs(40, first) + (odd if "crawl" in name else [])
        french = two_files(stem.replace("de-en", "fr-en"), rows, "fr")
        write(root / "wmt" / name, packed(two_files(stem, rows) | french))
    write(root / "wmt" / "training-parallel-un.tgz", packed(two_files("un/undoc.2000.fr-en", pairs(40, 300), "fr")))
    giga = two_files("giga-fren.release2.fixed", pairs(40, 400), "fr")
    compressed = {f"{name}.gz": gzip.compress(content.encode()) for name, content in giga.items()}
    write(root / "wmt" / "training-giga-fren.tar", packed(compressed))


def newstest(root: Path) -> None:
    """The test sets of WMT 2010 to 2016 in their SGML, three sentences each, as sacreBLEU downloads them."""
    from sacrebleu.dataset import DATASETS

    for name in ("wmt10", "wmt11", "wmt12", "wmt13", "wmt14/full", "wmt15", "wmt16"):
        known = DATASETS[name]
        files = {}
        for languages in ("de-en", "en-de", "en-fr"):
            for path, language in zip(known.langpairs.get(languages, []), languages.split("-")):
                rows = [row[language == "en"] for row in pairs(3, 500)]
                segments = [f'<seg id="{number}">{row}</seg>' for number, row in enumerate(rows, 1)]
                files[path] = text(['<doc docid="1" origlang="en">', *segments, "</doc>"])
        write(root / "newstest" / f"{name.replace('/', '_')}.{known.data[0].rsplit('/', 1)[1]}", packed(files))


def wmt16(root: Path) -> None:
    """Google's preprocessed set."""
    files = two_files("train.tok.clean.bpe.32000", [("Das ist ei@@ ns .", "It is o@@ ne .")] * 20)
    for year in range(2009, 2017):
        files |= two_files(f"newstest{year}.tok.bpe.32000", [("Das ist zw@@ ei .", "It is two .")] * 3)
    write(root / "wmt" / "wmt16_en_de.tar.gz", packed(files))


def iwslt(root: Path) -> None:
    """IWSLT 2014's talks: 69 lines of text, one of them of too different lengths, and lines that are no text."""
    files = {}
    for side, language in enumerate(("de", "en")):
        talk = ["<url>http://x</url>", "<keywords>talks</keywords>", "<talkid>1</talkid>"]
        talk += [f"<title>{('Über „Zahlen“', 'On “numbers”')[side]}</title>"]
        talk += ["<description>TED Talk</description>", ("Ja, ja, ja, ja.", "Yes.")[side]]
        talk += [row[side] for row in pairs(66)]
        files[f"de-en/train.tags.de-en.{language}"] = text(talk)
        for number, name in enumerate(TALKS):
            row = pairs(1, 600 + number)[0][side].replace("is", "’s")
            xml = ["<mteval>", '<doc docid="1">', f'<seg id="1"> {row} </seg>', "</doc>", "</mteval>"]
            files[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = text(xml)
    write(root / "iwslt14" / "de-en.tgz", packed(files))


def multi30k(root: Path) -> None:
    """Revisit-MMT's captions: tokens in lower case, two words of them in pieces."""
    for name, rows in (("train", pairs(40)), ("valid", pairs(2, 100)), ("test.2016", pairs(2, 200))):
        for side, language in enumerate(("de", "en")):
            lines = (row[side].lower().replace(".", " .") for row in rows)
            cut = (line.replace("null", "n@@ ull").replace("zwei", "z@@ wei") for line in lines)
            write(root / "multi30k_en_de_bpe" / f"{name}.{language}.gz", text(cut))


def scan(root: Path) -> None:
    """Commands of SCAN's kind, with 1 to 30 actions."""
    lines = (f"IN: walk {number} OUT: {' '.join(['I_WALK'] * number)}" for number in range(1, 31))
    write(root / "scan" / "tasks.txt.gz", text(lines))


def bert(root: Path) -> None:
    """A vocabulary of BERT's kind: every letter, some words, the marks."""
    letters = sorted({letter for row in pairs(200) for letter in "".join(row).replace(" ", "")} | {"Y", "e", "s"})
    whole = ["Das", "ist", "It", "is", *WORDS]
    pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *whole]
    write(root / "bibert-ende" / "vocab.txt", text(pieces))


def fineweb(root: Path) -> None:
    """Documents, and a small vocabulary of byte-level BPE."""
    from tokenizers import ByteLevelBPETokenizer

    documents = [f"On {word}.\n\nIt is {word}, häufig “{word}”." for word in WORDS * 5]
    rows = text(json.dumps({"text": document}) for document in ["", *documents])
    write(root / "fineweb_edu" / "part.jsonl", rows)
    learnt = ByteLevelBPETokenizer()
    learnt.train_from_iterator(
        documents, vocab_size=300, special_tokens=["<unk>", "<bos>", "<eos>"], show_progress=False
    )
    (root / "fineweb_edu_1024").mkdir()
    learnt.save_model(str(root / "fineweb_edu_1024"))


def imagenet(root: Path, classes: int = 3) -> None:
    """ImageNet's three archives: two training images and one for validation of each class."""
    import numpy
    from PIL import Image
    from scipy.io import savemat

    def image(shade: int) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", (8, 8), (shade, shade, shade)).save(file, "JPEG")
        return file.getvalue()

    folder, names = root / "imagenet", [f"n{number:08d}" for number in range(classes)]
    inner = {
        f"{name}.tar": packed({f"{name}_{one}.JPEG": image(10 * number + one) for one in range(2)})
        for number, name in enumerate(names)
    }
    write(folder / "ILSVRC2012_img_train.tar", packed(inner))
    images = {f"ILSVRC2012_val_{number + 1:08d}.JPEG": image(200 + number) for number in range(classes)}
    write(folder / "ILSVRC2012_img_val.tar", packed(images))
    fields = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children")
    rows = [(number + 1, name, f"thing {number}, object", "", 0) for number, name in enumerate(names)]
    rows.append((classes + 1, "n99999999", "everything", "", classes))
    meta = numpy.array(rows, dtype=[(field, object) for field in fields])
    file = io.BytesIO()
    savemat(file, {"synsets": meta})
    truth = text(str(number) for number in range(classes, 0, -1))
    kit = "ILSVRC2012_devkit_t12/data"
    content = {f"{kit}/meta.mat": file.getvalue(), f"{kit}/ILSVRC2012_validation_ground_truth.txt": truth}
    write(folder / "ILSVRC2012_devkit_t12.tar.gz", packed(content))
    listed = {"train": {names[0]: [f"{names[0]}_1.JPEG"]}, "val": {names[0]: [f"ILSVRC2012_val_{classes:08d}.JPEG"]}}
    write(root / "imagenet_small" / "imagenet-small.json", json.dumps(listed))


ALL = (corpora, newstest, wmt16, iwslt, multi30k, bert, fineweb, imagenet, scan)
