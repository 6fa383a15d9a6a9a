"""`python -m fairseq_plugin.start`: its project trains, resumes and translates; bad text is named before all else."""

import re
import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece

from fairseq_plugin import start, start_corpus
from tests.support import cli
from tests.support.recipes import parsed

LANGUAGES = ["en", "de"]


def run(script: Path, stdin: str = "") -> str:
    """Runs a script of a project, in a fork of the warm interpreter where it calls Python."""
    environment = {"PATH": cli.search_path(), "PYTHONPATH": str(cli.REPOSITORY)}
    return cli.run("bash", script, stdin=stdin, env=environment)


def sides(corpus, split: str) -> list[Path]:
    return [Path(f"{corpus.text}.{split}.{language}") for language in LANGUAGES]


@pytest.fixture
def shorter(monkeypatch):
    """Only the smallest size, and as many updates as there are validations."""
    monkeypatch.setattr(start, "SIZES", {task: sizes[:1] for task, sizes in start.SIZES.items()})
    monkeypatch.setattr(start, "MOST_READINGS", 1)
    monkeypatch.setattr(start, "FEWEST_UPDATES", 1)
    monkeypatch.setattr(start, "VALIDATIONS", 2)
    monkeypatch.setenv("PATH", cli.search_path())
    monkeypatch.setenv("PYTHONPATH", str(cli.REPOSITORY))


@pytest.mark.slow
def test_a_translator_is_trained_resumed_and_used(corpus, tmp_path, shorter, capsys):
    project = tmp_path / "my project"
    start.main([str(project), "--train", *map(str, sides(corpus, "train")), "--minutes", "1"])
    said, script = capsys.readouterr().out, (project / "train.sh").read_text()
    reasons = re.findall(r"^\* (.*)$", said, re.M)
    assert len(reasons) == 6
    assert " ".join(re.sub(r"^# ", "", script.split("\n#\n")[1].split("set -e")[0], flags=re.M).split()) == " ".join(
        f"* {reason}" for reason in reasons
    )
    assert said.endswith(f"Next: '{project / 'train.sh'}'\n")
    held_out = (project / "text" / "test.en").read_text().splitlines()
    assert not set(zip(held_out, (project / "text" / "test.de").read_text().splitlines())) & set(
        zip(*((project / "text" / f"train.{language}").read_text().splitlines() for language in LANGUAGES))
    )
    log = run(project / "train.sh")
    assert "example hypothesis: " in log
    assert re.search(r"\| valid \| .* bleu ", log)
    assert re.search(r"^Generate test with beam=5: BLEU = [\d.]+", log.splitlines()[-1])
    again = run(project / "train.sh")
    assert "| train_inner |" not in again
    assert again.splitlines()[-1] == log.splitlines()[-1]
    assert len(run(project / "translate.sh", stdin="one two\nthree\n").splitlines()) == 2
    (project / "data-bin" / "train.en-de.de.bin").unlink()
    run(project / "prepare.sh")
    assert (project / "data-bin" / "train.en-de.de.bin").exists()


@pytest.mark.slow
def test_a_language_model_is_trained_and_writes(corpus, tmp_path, shorter):
    project, text = tmp_path / "lm", sides(corpus, "test")[1]
    start.main([str(project), "--text", str(text), "--minutes", "1"])
    rows = text.read_text().splitlines()
    assert (project / "text" / "test").read_text().splitlines() == rows[-50:]
    log = run(project / "train.sh")
    assert re.search(r"Perplexity: [\d.]+", log.splitlines()[-1])
    beginning = " ".join(["eins"] * 210)  # more than fairseq's largest output
    (written,) = run(project / "write.sh", stdin=f"{beginning}\n").splitlines()
    assert written.startswith(beginning)
    run(project / "prepare.sh")


@pytest.mark.slow
def test_pieces_are_learnt_from_lines_of_any_length(tmp_path, monkeypatch):
    """sentencepiece would leave out those of over 4,192 bytes."""
    monkeypatch.setenv("PATH", cli.search_path())
    monkeypatch.setenv("PYTHONPATH", str(cli.REPOSITORY))
    sets = {"train": [*((row,) for row in TARGET), ("γάτα " * 1000,)], "valid": [("a",)], "test": [("b",)]}
    start.write_corpus(tmp_path, start_corpus.Corpus(sets, []), [])
    start.prepare(tmp_path, [], 500)
    assert "▁γάτα 1000\n" in (tmp_path / "data-bin" / "dict.txt").read_text(encoding="utf-8")


def test_every_character_is_a_piece(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", cli.search_path())
    monkeypatch.setenv("PYTHONPATH", str(cli.REPOSITORY))
    han = [("".join(map(chr, range(first, first + 20))),) for first in range(0x4E00, 0x4E00 + 3000, 20)]
    corpus = start_corpus.Corpus({"train": han, "valid": han[:1], "test": han[:1]}, [])
    pieces, reason = start.choose_pieces(corpus)
    assert (pieces, reason.partition(":")[0]) == (3500, "3,500 pieces")
    start.write_corpus(tmp_path, corpus, [])
    start.prepare(tmp_path, [], pieces)
    model = sentencepiece.SentencePieceProcessor(str(tmp_path / "checkpoints" / "sentencepiece.bpe.model"))
    assert not any(model.is_unknown(model.piece_to_id(character)) for (line,) in han for character in line)


@pytest.mark.parametrize("task", start.SIZES)
def test_every_size_has_a_script_that_fairseq_accepts(task):
    for size in start.SIZES[task]:
        script = start.Plan(task, 30.0, size).script(["a reason"])
        (line,) = re.findall(r"^fairseq-train .*", script.replace("\\\n", ""), re.M)
        parsed(*shlex.split(line.replace('"$plugin"', start.USER_DIR)))


@pytest.mark.parametrize("task", start.SIZES)
@pytest.mark.parametrize(
    ("seconds", "warmup", "validated", "logged"),
    [(0.5, 288, 576, 30), (0.01, 1000, 28_800, 1500), (100, 1, 3, 1)],  # 2,880, 144,000 and 14 updates
)
def test_a_training_warms_up_validates_and_logs_in_proportion(task, seconds, warmup, validated, logged):
    script = start.Plan(task, 30.0, start.SIZES[task][0], seconds, batches=10_000).script([])
    flags = {"warmup-updates": warmup, "validate-interval-updates": validated, "log-interval": logged}
    assert {name: int(re.search(rf"--{name} (\d+)", script)[1]) for name in flags} == flags


def test_a_larger_size_needs_time_to_read_the_text(monkeypatch):
    seconds = dict(zip(start.SIZES["translation"], (0.1, 0.2, 0.4, 2.0)))
    monkeypatch.setattr(start, "timed", lambda _, plan: replace(plan, seconds=seconds[plan.size], batches=180))
    chosen = [start.choose(Path(), start.Plan("translation", minutes)) for minutes in (5, 20, 200)]
    assert [plan.size.what for plan in chosen] == [
        "2 + 2 passes of width 128",
        "4 + 4 passes of width 128",
        "6 + 6 passes of width 512",
    ]
    assert [plan.updates for plan in chosen] == [2400, 4800, 4800]
    assert [plan.dropout for plan in chosen] == [0.1, 0.1, 0.1]
    with pytest.raises(ValueError, match=r"^--minutes=0\.1: time for 48 updates, fewer than 100: must be at least 1$"):
        start.choose(Path(), start.Plan("translation", 0.1))
    assert start.Plan("translation", 0.001).updates == 1  # fairseq's parser takes no 0


SOURCE = [f"Satz {number}" for number in range(100)]
TARGET = [f"sentence {number}" for number in range(100)]


@pytest.fixture
def refused(tmp_path, rejected):
    """Tells how a project of these texts is refused; nothing is written."""

    def call(files: dict[str, str | bytes], *words: str) -> str:
        for name, text in files.items():
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        before = {path.name for path in tmp_path.iterdir()}
        given = [str(tmp_path / word) if word in files else word for word in words]
        said = rejected(start.main, tmp_path / "project", *given)
        assert {path.name for path in tmp_path.iterdir()} == before
        return said.replace(f"{tmp_path}/", "").splitlines()[-1].partition("error: ")[2]

    return call


def lines(rows: list[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def test_bad_text_is_named_with_file_and_line(refused):
    good = {"a.de": lines(SOURCE), "a.en": lines(TARGET)}
    pair = ("--train", "a.de", "a.en")
    latin = lines(SOURCE[:2]).encode() + "für\n".encode("latin-1") + lines(SOURCE[3:]).encode()
    assert refused({**good, "a.de": latin}, *pair) == (
        "a.de:3: byte 0xfc at column 2: must be UTF-8 text: convert the file, as with iconv -f LATIN1 -t UTF-8"
    )
    assert refused({**good, "a.en": lines(TARGET[1:])}, *pair).startswith("a.de has 100 lines, a.en has 99 lines: ")
    test = {"t.de": lines(["neu", SOURCE[7]]), "t.en": lines(["new", TARGET[7]])}
    said = refused(good | test, *pair, "--test", "t.de", "t.en")
    assert said.startswith("t.de:2: is also line 8 of a.de, the first of 1 such lines: remove them from the training")
    valid = {"v.de": lines(["alt", "neu"]), "v.en": lines(["old", "new"])}
    said = refused(good | test, *pair, "--valid", "t.de", "t.en")
    assert said.endswith("remove them from the training text, or validation would measure how well it was memorised")
    test["t.de"] = lines(["neu", "neuer"])
    said = refused(good | valid | test, *pair, "--valid", "v.de", "v.en", "--test", "t.de", "t.en")
    assert said == (
        "t.de:1: is also line 2 of v.de, the first of 1 such lines: remove them from the validation text, "
        "or the checkpoint would be chosen by what scores it"
    )
    assert refused(good | test, *pair, "--test", "t.de") == "--test: must be two files, like the training text"
    said = refused(good | test, "--text", "a.en", "--valid", "t.de", "t.en")
    assert said == "--valid: must be one file, like the training text"
    assert refused({"a.txt": "x\n", "b.txt": "x\n"}, "--train", "a.txt", "b.txt") == (
        "--train a.txt b.txt: the names must end in two languages, as in train.de train.en"
    )
    few = {"a.de": lines(SOURCE[:30]), "a.en": lines(TARGET[:30])}
    assert refused(few, *pair) == "a.de: leaves 28 lines to train on: must be at least 50"
    blank = {"v.de": "", "v.en": ""}
    assert refused(good | blank, *pair, "--valid", "v.de", "v.en") == "v.de: has no line that can be used"
    long = {"a.de": lines(["x" * 1001] * 60), "a.en": lines(TARGET[:60])}
    assert refused(long, *pair) == "a.de: has no line that can be used"
    assert "No such file or directory: 'x.txt'" in refused(good, "--text", "x.txt")
    assert refused(good, "--text", ".") == ".: must be a file, not a folder, a pipe or a device"
    assert refused(good | valid, *pair, "--valid", "v.en", "v.de") == (
        "--valid v.en v.de: must be in the order of --train, de first"
    )
    assert refused(good, *pair, "--minutes", "nan") == "argument --minutes: nan: must be a number > 0"


def test_a_project_that_exists_is_left_alone(tmp_path, rejected):
    assert "already exists" in rejected(start.main, tmp_path, "--text", tmp_path / "x")


def test_running_text_may_have_empty_lines_and_repeat_short_ones(tmp_path):
    train, test = tmp_path / "train", tmp_path / "test"
    train.write_bytes(b"\xef\xbb\xbf" + lines(["Title", "", *SOURCE]).replace("\n", "\r\n").encode())
    test.write_text(lines(["Title", "", "another  line"]))
    corpus = start_corpus.read_corpus([train], [], [test])
    assert corpus.sets["test"] == [("Title",), ("another line",)]
    assert corpus.sets["train"][:2] == [("Title",), ("Satz 0",)]
    assert corpus.sets["valid"] == [(row,) for row in SOURCE[-5:]]
    test.write_text("long " * 30)
    train.write_text(lines([*SOURCE, "long " * 30]))
    with pytest.raises(ValueError, match=rf"^{test}:1: is also line 101 of {train}, "):
        start_corpus.read_corpus([train], [], [test])


def test_empty_and_too_long_pairs_are_left_out_and_copies_of_what_is_held_out_too(tmp_path):
    paths = [tmp_path / f"a.{language}" for language in LANGUAGES]
    for path, side in zip(paths, ("", "no source")):
        path.write_text(lines([*(f"line {number}" for number in range(90)), *["same"] * 10, "x" * 1001, side, ""]))
    corpus = start_corpus.read_corpus(paths, [], [])
    rows = corpus.sets
    assert corpus.notes[0] == "train: pairs left out, with an empty line or over 1,000 characters: 3"
    assert all(all(row) for name in rows for row in rows[name])
    assert [len(rows[name]) for name in ("test", "valid")] == [5, 4]
    assert not set(rows["train"]) & {*rows["test"], *rows["valid"]}


def test_at_most_500_pairs_validate_always_the_same():
    def held_out() -> list:
        corpus = start_corpus.Corpus({"train": list(rows)}, [])
        start_corpus.hold_out(corpus, "valid", 500, pairs=True)
        assert sorted(corpus.sets["train"] + corpus.sets["valid"]) == sorted(rows)
        return corpus.sets["valid"]

    rows = [(f"Satz {number}", f"sentence {number}") for number in range(12_000)]
    assert len(held_out()) == 500
    assert held_out() == held_out() != rows[-500:]


def test_another_translation_of_a_sentence_that_is_held_out_does_not_train():
    rows = [(f"Satz {number // 5}", f"sentence {number}") for number in range(100)]
    corpus = start_corpus.Corpus({"train": rows}, [])
    start_corpus.hold_out(corpus, "test", 500, pairs=True)
    trained, tested = ({source for source, _ in corpus.sets[name]} for name in ("train", "test"))
    assert trained
    assert tested
    assert not trained & tested


def test_sources_that_a_given_test_has_with_another_translation_are_counted(tmp_path):
    files = {}
    for name, count, end in (("train", 100, ""), ("test", 7, " .")):
        files[name] = [tmp_path / f"{name}.{language}" for language in LANGUAGES]
        files[name][0].write_text(lines(SOURCE[:count]))
        files[name][1].write_text(lines([line + end for line in TARGET[:count]]))
    corpus = start_corpus.read_corpus(files["train"], [], files["test"])
    shared = {source for source, _ in corpus.sets["train"]} & {source for source, _ in corpus.sets["test"]}
    assert corpus.notes[-1] == f"test: {len(shared)} of 7 sources are in the training text, too"


def test_a_script_scores_the_model_that_it_trains():
    for name in start.SIZES:
        script = (start.SCRIPTS / f"{name}.sh").read_text(encoding="utf-8")
        assert '--save-dir "$run"' in script
        assert '--path "$run/checkpoint_best.pt"' in script
        assert "\nrun=checkpoints " in script


@pytest.mark.parametrize("length", [99, 100])
def test_a_line_of_100_characters_is_in_two_texts_by_no_coincidence(tmp_path, length):
    train, test = tmp_path / "train", tmp_path / "test"
    train.write_text(lines([*SOURCE, "x" * length]))
    test.write_text(lines(["x" * length]))
    with pytest.raises(ValueError, match="is also line 101 of") if length == 100 else nullcontext():
        start_corpus.read_corpus([train], [], [test])


def test_a_line_without_end_is_rejected_before_it_fills_the_memory(tmp_path):
    text = tmp_path / "endless.en"
    text.write_text("A dog.\n")
    with text.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"endless\.en:2: must have <= 10,000,000 bytes"):
        start_corpus.read_lines(text)


def test_the_highest_bleu_is_the_best():
    script = start.Plan("translation", 30.0, start.SIZES["translation"][0]).script([])
    (line,) = re.findall(r"^fairseq-train .*", script.replace("\\\n", ""), re.M)
    _, *words = shlex.split(line.replace('"$plugin"', start.USER_DIR))
    args = start.parse(words)
    assert (args.best_checkpoint_metric, args.maximize_best_checkpoint_metric) == ("bleu", True)


def test_a_text_that_is_read_more_often_has_more_dropout():
    plans = [start.Plan("translation", 30.0, seconds=0.5, batches=batches) for batches in (100, 60, 40)]
    assert [round(plan.updates / plan.batches) for plan in plans] == [29, 48, 72]
    assert [plan.dropout for plan in plans] == [0.1, 0.2, 0.3]
