"""The recipes: fairseq accepts every command that they print, and the small ones run end to end."""

import json
import math
import os
import re
import subprocess
from pathlib import Path

import collect  # noqa: E402
import pytest
import results_csv  # noqa: E402

from tests.support import cli
from tests.support.recipes import DATA_ROOT, FIGURES, RECIPES, commands, needs, parsed, recipe

# Of tables; recipes/test_tables.py tries them.
TABLES = [path for path in RECIPES.glob("*/*.sh") if '/../table"' in path.read_text(encoding="utf-8")]
SOURCED = [RECIPES / "common.sh", RECIPES / "data" / "tools.sh"]
RUNS = [("numbers/run.sh", scale, ()) for scale in ("demo", "smoke")]
PREPARE = ("numbers", "multi30k", "kausik", "ilr", "librispeech", "cifar10", "digits")


def test_every_script_is_read_and_may_be_called():
    for script in RECIPES.rglob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)
        assert os.access(script, os.X_OK) == (script not in SOURCED), script


def test_every_script_is_tried():
    """Those of recipes/data by recipes/test_data.py."""
    tried = {RECIPES / script for script, *_ in RUNS} | {*TABLES, *FIGURES, *SOURCED}
    tried |= {RECIPES / name / "prepare.sh" for name in PREPARE} | {RECIPES / "takase" / "wikitext.sh"}
    tried |= {
        RECIPES / name
        for name in ("takase/significance.sh", "digits/run.sh", "automaton/run.sh", "kausik/linear_time.sh")
    }
    tried |= {path for folder in ("data", "commands") for path in (RECIPES / folder).glob("*.sh")}
    assert tried == set(RECIPES.rglob("*.sh"))


@pytest.mark.parametrize(("script", "scale", "arguments"), RUNS, ids=lambda value: str(value))
def test_fairseq_takes_every_command(script, scale, arguments, tmp_path):
    seen = {parsed(words) for words in commands(script, *arguments, SCALE=scale, OUT=str(tmp_path))}
    assert {"fairseq-train", "fairseq-generate"} <= seen
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"


NOWHERE, NO_SET = {"DATA_ROOT": "/nonexistent"}, {"PREPARED": "/nonexistent"}


@pytest.mark.parametrize(
    ("script", "settings", "message"),
    [
        ("numbers/run.sh", {"SCALE": "paper"}, "SCALE=paper: must be demo or smoke"),
        ("automaton/run.sh", {"SCALE": "paper"}, "SCALE=paper: must be demo or smoke"),
        ("digits/run.sh", {"SCALE": "paper"}, "SCALE=paper: must be demo or smoke"),
        ("cifar10/prepare.sh", {"CIFAR10": "5000", "DATA_ROOT": ""}, "CIFAR10=5000: needs DATA_ROOT, a folder"),
        ("cifar10/prepare.sh", NOWHERE, "DATA_ROOT=/nonexistent: holds no cifar10.tar"),
        ("kausik/prepare.sh", NOWHERE, "DATA_ROOT=/nonexistent: holds no shakespeare/input.txt"),
        ("ilr/prepare.sh", NOWHERE, "DATA_ROOT=/nonexistent: holds no war_and_peace/2600-0.txt"),
        ("ilr/prepare.sh", {"CORPUS": "/nonexistent"}, "CORPUS=/nonexistent: no such file"),
        ("data/prepared.sh", {}, "SET=: must be genuine or synthetic"),
        ("data/prepared.sh", {"SET": "genuine"}, "PREPARED: must name a folder with the genuine pairs in bin/ and "),
        ("data/prepared.sh", {"SET": "genuine"} | NO_SET, "PREPARED=/nonexistent: holds no raw/ and bin/train.*."),
        ("takase/wikitext.sh", {"SET": "3"}, "SET=3: must be 2 or 103"),
        ("librispeech/prepare.sh", {"CORPUS": "ted"}, "CORPUS=ted: must be digits or librispeech"),
        ("librispeech/prepare.sh", NOWHERE, "DATA_ROOT=/nonexistent: holds no fsdd.tar"),
        ("multi30k/prepare.sh", NOWHERE, "DATA_ROOT=/nonexistent: holds no multi30k/train.de.gz"),
    ],
)
def test_wrong_settings_are_named(script, settings, message, tmp_path):
    assert message in recipe(script, fails=True, OUT=str(tmp_path), **settings)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("multi30k/prepare.sh", r"error: (https://\S+/train.de.gz: not reached; .*set DATA_ROOT|curl: not found)"),
        ("cifar10/prepare.sh", r"error: CIFAR-10: not downloaded; .*, or set DATA_ROOT"),
    ],
)
def test_without_a_network_the_data_is_asked_for(script, message, tmp_path):
    blocked = {"https_proxy": "http://127.0.0.1:9", "DATA_ROOT": ""}
    assert re.search(message, recipe(script, fails=True, OUT=str(tmp_path), **blocked))


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Where the recipe of the demo writes."""
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def output(out) -> str:
    """What the demo at scale smoke prints, after it failed once and was interrupted in training once."""
    settings = {"SCALE": "smoke", "OUT": str(out)}
    train, _ = [words for words in commands("numbers/run.sh", **settings) if words[0] == "fairseq-train"]
    recipe("numbers/run.sh", "--max-tokens", "1", fails=True, **settings)
    cli.run(*train, "--max-update", "30", "--disable-validation", env={"PYTHONPATH": str(cli.REPOSITORY)})
    return recipe("numbers/run.sh", **settings)


@pytest.fixture(scope="module")
def run(out, output) -> Path:
    """The folder of its finished run."""
    return out / "numbers" / "run" / "smoke" / "ringformer_tiny" / "s1"


@pytest.mark.slow
def test_an_interrupted_demo_resumes(run):
    assert "@ 30 updates" in (run / "train.log").read_text()


@pytest.mark.slow
def test_the_score_is_over_all_sentences(out, run):
    scores = json.loads((run / "scores.json").read_text())
    references = (out / "numbers" / "smoke" / "test.de").read_text().splitlines()
    hypotheses = (run / "generate.txt").read_text().splitlines()
    assert scores["sentences"] == len(references) == len(hypotheses) == 100
    matches = sum(map(str.__eq__, references, hypotheses))
    assert scores["exact_match"] == matches
    assert 0 < scores["bleu"] <= 100


@pytest.mark.slow
def test_the_report_shows_scores_parameters_and_places(run, output):
    scores, count = json.loads((run / "scores.json").read_text()), collect.training(run)["params"]
    unshared = int(re.search(r"^  vanilla_tiny +([\d,]+)$", output, re.MULTILINE)[1].replace(",", ""))
    assert f"exact match        {scores['exact_match']:.1f} %" in output
    assert f"{count:,}" in output
    assert str(run) in output
    assert " -> " in output
    once = collect.training(run.parents[1] / "ringformer_tiny_once" / "s1")["params"]
    assert f"{once:,} stored parameters" in output
    assert once < count < unshared


@pytest.mark.slow
def test_a_finished_demo_is_not_repeated(out, run):
    before = (run / "train.log").read_text()
    assert "training: done before" in recipe("numbers/run.sh", SCALE="smoke", OUT=str(out))
    assert (run / "train.log").read_text() == before


@pytest.mark.slow
def test_no_number_is_in_two_sets(out, run):
    sets = [(out / "numbers" / "smoke" / f"{name}.en").read_text().splitlines() for name in ("train", "valid", "test")]
    assert [len(lines) for lines in sets] == [800, 100, 100]
    assert len(set().union(*sets)) == 1000


@pytest.mark.slow
@needs("multi30k")
def test_multi30k_from_the_raw_corpus_to_a_score(tmp_path):
    output = recipe("multi30k/train.sh", "cycle_rev", SCALE="smoke", OUT=str(tmp_path), DATA_ROOT=str(DATA_ROOT))
    (bleu, _) = results_csv.read(tmp_path / "multi30k" / "results.csv")
    assert bleu["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert (bleu["arch"], bleu["updates"]) == ("cycle_rev", "10")
    assert '"sentences": 1000' in output


def test_the_orders_are_compared_with_universal_on_every_set(tmp_path):
    found = commands("takase/significance.sh", SCALE="paper", OUT=str(tmp_path), DATA_ROOT="")
    compared = [words for words in found if words[0] == "sacrebleu" and "--paired-bs" in words]
    assert len(compared) == 7
    scored = {word.split("=")[0].removesuffix(".log") for words in found for word in words if "generate-" in word}
    for words in compared:
        systems = [word.removesuffix(".txt") for word in words[words.index("-i") + 1 : words.index("-m")]]
        assert "/universal/" in systems[0]
        assert len(systems) == 7
        assert {*systems} <= scored


@pytest.mark.slow
@needs("shakespeare")
def test_shakespeare_from_the_raw_text_to_a_loss(tmp_path):
    recipe("kausik/table2.sh", "recurrent", SCALE="smoke", OUT=str(tmp_path), DATA_ROOT=str(DATA_ROOT))
    out = tmp_path / "kausik"
    log = (out / "characters" / "preprocess.log").read_text()
    assert "1003855 tokens, 0.0% replaced" in log
    assert "111540 tokens, 0.0% replaced" in log
    found = {row["metric"]: row for row in results_csv.read(out / "results.csv")}
    assert set(found) >= {"loss, nats", "standard error of the loss", "standard error of the loss as published"}
    assert found["loss, nats"]["updates"] == "20"
    assert 2.5 < float(found["loss, nats"]["value"]) < math.log(72)
    scores = json.loads((out / "table2" / "smoke" / "recurrent" / "s1" / "scores.json").read_text())
    assert scores["symbols"] == 111_540


@pytest.mark.slow
@needs("war_and_peace")
def test_ilr_from_the_book_to_perplexities_at_four_contexts(tmp_path):
    recipe("ilr/table1.sh", "2,1,1,1-alibi", SCALE="smoke", OUT=str(tmp_path), DATA_ROOT=str(DATA_ROOT))
    found = results_csv.read(tmp_path / "ilr" / "results.csv")
    assert [one["metric"] for one in found] == [f"perplexity at {n}" for n in (64, 32, 128, 256)] + ["training FLOPs"]
    assert all(50 < float(one["value"]) < 1024 for one in found[:4])
    assert len((tmp_path / "ilr" / "bin" / "dict.txt").read_text().splitlines()) + 4 == 1024
    assert found[0]["updates"] == "20"


@pytest.mark.slow
@needs("wikitext2")
def test_wikitext_from_the_files_to_a_perplexity(tmp_path):
    recipe("takase/table5.sh", "cycle_rev", SCALE="smoke", OUT=str(tmp_path), DATA_ROOT=str(DATA_ROOT))
    found = results_csv.read(tmp_path / "takase" / "results.csv")
    assert [one["metric"] for one in found] == ["perplexity, validation", "perplexity at 64"]
    assert {(one["arch"], one["updates"]) for one in found} == {("cycle_rev_lm", "8")}
    assert all(100 < float(one["value"]) < 20_000 for one in found)
