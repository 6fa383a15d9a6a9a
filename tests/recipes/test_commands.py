"""The recipes: fairseq accepts every command that they print, and the small ones run end to end."""

import json
import math
import os
import re
import subprocess
from pathlib import Path

import collect
import numpy as np
import pytest
import results_csv
import score
from PIL import Image

from tests.support import cli
from tests.support.recipes import DATA_ROOT, FIGURES, RECIPES, SCRIPTS, commands, needs, parsed, recipe

PREPARE = ("multi30k", "kausik", "ilr", "librispeech", "cifar10", "digits")
SOURCED = [RECIPES / "common.sh", RECIPES / "data" / "tools.sh"]
# The programs that a demo starts, which are fairseq's or train and score images.
DEMOS = {
    "automaton": ["fairseq-train"] * 2,
    "pronounce": ["fairseq-preprocess", "fairseq-train", "fairseq-generate"],
    "digits": ["train_image"] * 3,
}


def test_every_script_is_read_and_may_be_called():
    for script in RECIPES.rglob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)
        assert os.access(script, os.X_OK) == (script not in SOURCED), script


def test_a_search_path_of_cd_changes_nothing():
    """The demo's two trainings run side by side, so that their commands are printed in either order."""
    command = ["bash", "recipes/automaton/run.sh"]
    environment = {"PATH": cli.search_path(), "DRY_RUN": "1"}
    said = [
        subprocess.check_output(command, cwd=cli.REPOSITORY, env={**environment, **more}, text=True).splitlines()
        for more in ({}, {"CDPATH": ".:/"})
    ]
    assert sorted(said[0]) == sorted(said[1])


def test_every_script_is_tried():
    """Those of recipes/data by recipes/test_data.py, those of tables by recipes/test_tables.py."""
    names = ["gpu", "takase/wikitext", "takase/significance", "kausik/linear_time", *(f"{demo}/run" for demo in DEMOS)]
    tried = {RECIPES / f"{name}.sh" for name in [*names, *(f"{name}/prepare" for name in PREPARE)]}
    tried |= {RECIPES / "table.sh", *(RECIPES / "data").glob("*.sh")}
    assert tried | {*SCRIPTS, *FIGURES, *SOURCED} == set(RECIPES.rglob("*.sh"))


@pytest.mark.parametrize("scale", ["demo", "smoke"])
@pytest.mark.parametrize("demo", DEMOS)
def test_the_parsers_take_every_command_of_a_demo(demo, scale, tmp_path):
    programs = [parsed(*words) for words in commands(f"{demo}/run.sh", SCALE=scale, OUT=str(tmp_path), DATA_ROOT="")]
    assert [program for program in programs if program.startswith(("fairseq", "train"))] == DEMOS[demo]
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"


OFFLINE = "https_proxy=http://127.0.0.1:9 http_proxy=http://127.0.0.1:9 DATA_ROOT="


@pytest.mark.parametrize(
    ("script", "settings", "message"),
    [
        ("pronounce/run.sh", "SCALE=paper", "SCALE=paper: must be demo or smoke"),
        ("automaton/run.sh", "SCALE=paper", "SCALE=paper: must be demo or smoke"),
        ("digits/run.sh", "SCALE=paper", "SCALE=paper: must be demo or smoke"),
        ("data/cmudict.sh", "SET=large", "SET=large: must be plain, stress, tenth, three_tenths or small"),
        ("cifar10/prepare.sh", "CIFAR10=5000 DATA_ROOT=", "CIFAR10=5000: needs DATA_ROOT, a folder"),
        ("cifar10/prepare.sh", "", "DATA_ROOT=/nonexistent: holds no cifar10.tar"),
        ("kausik/prepare.sh", "", "DATA_ROOT=/nonexistent: holds no shakespeare/input.txt"),
        ("ilr/prepare.sh", "", "DATA_ROOT=/nonexistent: holds no war_and_peace/2600-0.txt"),
        ("data/cmudict.sh stress", "DATA_ROOT=", "stress: takes no arguments; settings come first, such as DATA_ROOT="),
        ("digits/prepare.sh --size 8", "DATA_ROOT=", "--size: takes no arguments; settings come first"),
        ("data/prepared.sh", "", "SET=: must be genuine or synthetic"),
        ("data/prepared.sh", "SET=genuine", "PREPARED: must name a folder with the genuine pairs in bin/ and "),
        ("data/prepared.sh", "SET=genuine PREPARED=/nonexistent", "PREPARED=/nonexistent: holds no raw/ and bin/train"),
        ("takase/wikitext.sh", "SET=3", "SET=3: must be 2 or 103"),
        ("librispeech/prepare.sh", "CORPUS=ted", "CORPUS=ted: must be digits or librispeech"),
        ("librispeech/prepare.sh", "", "DATA_ROOT=/nonexistent: holds no fsdd.tar"),
        ("multi30k/prepare.sh", "", "DATA_ROOT=/nonexistent: holds no multi30k/train.de.gz"),
        ("multi30k/prepare.sh", OFFLINE, r"(https://\S+/train.de.gz: not reached; .*set DATA_ROOT|curl: not found)"),
        ("cifar10/prepare.sh", OFFLINE, "CIFAR-10: not downloaded; .*, or set DATA_ROOT"),
        ("data/imagenet_small.sh", "IMAGENET=/nonexistent", "IMAGENET=/nonexistent: must hold the folders train"),
        ("data/wmt16_en_de.sh", "FROM=paper", "FROM=paper: must be archive or corpora"),
        ("data/fineweb_edu.sh", "PIECES=512", "PIECES=512: must be 1024 or 32000"),
        ("data/fineweb_edu.sh", "TOKENS=5M", "TOKENS=5M: must be a whole number of at least 1"),
        ("data/iwslt14_de_en.sh", "DRY_RUN=yes", "DRY_RUN=yes: must be 0 or 1"),
        ("data/iwslt14_de_en.sh", "THREADS=all", "THREADS=all: must be a whole number of at least 1"),
        ("data/iwslt14_de_en.sh", "", ".* holds no iwslt14/de-en.tgz; get it from http://dl.fbaipublic"),
        ("data/imagenet.sh", "DATA_ROOT=", ".* registered users only: get it from https://image-net.org/download"),
        ("data/iwslt14_de_en.sh", OFFLINE, ".* put the file in a folder, as iwslt14/de-en.tgz, and set DATA_ROOT"),
        ("data/wmt14_de_en.sh", OFFLINE, ".* as wmt/training-parallel-europarl-v7.tgz, and set DATA_ROOT"),
        ("data/wmt16_en_de.sh", OFFLINE, "https://statmt.org/wmt10/test.tgz: not reached; without a network, put the"),
        ("ringformer/table1.sh ringformer --arch vanilla_base", "", "--arch: set by the recipe; choose ROW instead"),
        ("sret/table1.sh loops_1 --output=here", "", "--output: set by the recipe; choose OUT instead"),
        ("sret/table1.sh loops_1", "SCALE=small PRECISION=bf16", "PRECISION=bf16: has no effect on SReT 1 at scale "),
        ("takase/speed.sh cycle", "SCALE=paper PRECISION=bf16", "PRECISION=bf16: has no effect on Takase speed at "),
        ("ringformer/table1.sh ringformer", "MICRO_BATCH=8", "MICRO_BATCH=8: has no effect on RingFormer 1 at scale "),
        ("sret/table1.sh loops_1", "OUT=/dev/null/x", r"\[Errno 20\] Not a directory: '/dev/null/x"),
    ],
)
def test_wrong_settings_and_missing_data_are_named(script, settings, message, tmp_path):
    given = dict(word.split("=") for word in settings.split())
    output = recipe(*script.split(), fails=True, **{"OUT": str(tmp_path), "DATA_ROOT": "/nonexistent", **given})
    assert re.search(f"error: {message}", output)
    assert output.count("error: ") == 1
    assert "Traceback" not in output or settings == OFFLINE  # torchvision prints why it could not download


@pytest.mark.parametrize("script", ["sret/figure5.sh", "gpu.sh"])
def test_what_reads_one_seed_rejects_several(script, tmp_path):
    output = recipe(script, fails=True, OUT=str(tmp_path), SCALE="smoke", SEEDS="1 2")
    assert "error: SEEDS=1 2: must be one seed here, such as SEED=2" in output
    assert not list(tmp_path.iterdir())


def test_a_finished_stage_stands_for_its_own_flags_only(tmp_path):
    script, out = tmp_path / "run.sh", str(tmp_path / "out")
    script.write_text(f'source "{RECIPES}/common.sh"\ntraining() {{ echo trains; }}\nstages "$OUT" training\n')
    assert "trains" in recipe(script, "--lr", "1e-3", OUT=out)
    assert "training: done before" in recipe(script, "--lr", "1e-3", OUT=out)
    for flags in ([], ["--lr", "1e-4"]):
        refused = recipe(script, *flags, fails=True, OUT=out)
        assert f"error: flags '{' '.join(flags)}': {out} holds a run with flags '--lr 1e-3'; use those, or" in refused


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, Path, str]:
    """The text of the demo of pronunciation, its run, and what it prints after it failed and was interrupted once."""
    out = tmp_path_factory.mktemp("out")
    settings = {"SCALE": "smoke", "OUT": str(out)}
    (train,) = (words for words in commands("pronounce/run.sh", **settings) if words[0] == "fairseq-train")
    recipe("pronounce/run.sh", "--max-tokens", "1", fails=True, **settings)
    cli.run(*train, "--max-update", "8", env={"PYTHONPATH": str(cli.REPOSITORY)})
    printed = recipe("pronounce/run.sh", **settings)
    return out / "data/cmudict/small/raw", out / "pronounce/demo/smoke/ringformer_small/s1", printed


@pytest.mark.slow
def test_an_interrupted_demo_resumes_and_a_finished_one_is_not_repeated(demo):
    raw, run, _ = demo
    before = (run / "train.log").read_text()
    assert "@ 8 updates" in before
    assert "training: done before" in recipe("pronounce/run.sh", SCALE="smoke", OUT=str(raw.parents[3]))
    assert (run / "train.log").read_text() == before


@pytest.mark.slow
def test_the_last_command_of_the_demo_pronounces_a_word_outside_the_environment(demo):
    command = demo[2].partition("To pronounce words of your own, one a line:\n")[2]
    line = cli.run("bash", "-c", command, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(cli.REPOSITORY)})
    assert re.search(r"^D-0\t-?[\d.]+\t[A-Z ]*$", line, re.MULTILINE)


@pytest.mark.slow
def test_the_errors_are_those_of_all_words_that_are_held_out(demo):
    raw, run, _ = demo
    references = (raw / "valid.references").read_text().splitlines()
    found = json.loads((run / "scores.json").read_text())
    hypotheses = score.best_hypotheses(run / "generate.log")
    wrong = sum(hypotheses[number] not in known.split("\t") for number, known in enumerate(references))
    assert found["words"] == len(references) == len(hypotheses)
    assert found["word_error_rate"] == round(100 * wrong / len(references), 2)


@pytest.mark.slow
def test_the_report_shows_words_errors_parameters_and_places(demo):
    raw, run, printed = demo
    found, count = json.loads((run / "scores.json").read_text()), collect.training(run)["params"]
    for shown in (f"wrong words      {found['word_error_rate']:.1f} %", f"{count:,} parameters", str(run)):
        assert shown in printed
    words = [line.replace(" ", "") for line in (raw / "valid.letters").read_text().splitlines()]
    assert re.findall(r"^  ([a-z]+)  .*[A-Z]", printed, re.MULTILINE) == words[:20]


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
def test_the_demo_of_the_automaton_prints_a_table_and_draws_a_picture(tmp_path):
    output = recipe("automaton/run.sh", SCALE="smoke", OUT=str(tmp_path))
    assert "Rows of 24 cells that are wholly right; 46,272 stored parameters each" in output
    percents = r"((?: +\d+ %)+)"
    once = re.search(r"^  once +\(trained on 1 to 12\)" + percents + " +- +-$", output, re.MULTILINE)
    looped = re.search(r"^  looped +\(trained on 1 to 6\)" + percents + "$", output, re.MULTILINE)
    assert (once[1].count("%"), looped[1].count("%")) == (5, 7)
    assert "looped: " in output, "progress of both models"
    assert "once: " in output
    picture = tmp_path / "automaton" / "smoke" / "s1" / "automaton.png"
    assert str(picture) in output
    colours = {tuple(colour) for colour in np.array(Image.open(picture).convert("RGB")).reshape(-1, 3)}
    assert {(40, 40, 40), (252, 190, 170), (225, 225, 225)} <= colours  # a cell, a wrong cell, steps without an answer
    assert "training: done before" in recipe("automaton/run.sh", SCALE="smoke", OUT=str(tmp_path))


# By what DATA_ROOT holds: a script, its row with architecture and updates, the limits of its first value, its metrics.
CONTEXTS = [f"perplexity at {context}" for context in (32, 64, 128, 256)]
ERRORS = [f"standard error of the {of}" for of in ("loss", "loss as published", "accuracy")]
ROWS = {
    "multi30k": ("multi30k/train", "cycle_rev cycle_rev 10", (-1, 100), "BLEU", "chrF", "exact match %"),
    "shakespeare": (
        "kausik/table2",
        "recurrent recurrent_lm 20",
        (2.5, math.log(72)),
        "loss, nats",
        "accuracy %",
        *ERRORS,
    ),
    "war_and_peace": ("ilr/table1", "2,1,1,1-alibi ilr_small 20", (50, 1024), *CONTEXTS, "training FLOPs"),
    "wikitext2": (
        "takase/table5",
        "cycle_rev cycle_rev_lm 8",
        (100, 20_000),
        "perplexity, validation",
        "perplexity at 64",
    ),
    "cifar10.tar": ("cifar10/train", "sret sret_tl 20", (0, 100), "top-1 %", "MMAC"),
    "fsdd.tar": ("takase/table4", "cycle s2t_cycle 12", (0, 200), "word errors %"),
}
# What a file in the output tells of the data that are whole.
WHOLE = {
    "multi30k": (
        "train/smoke/cycle_rev/s1/scores.json",
        r'(?s)"sentences": 1000,.*"nrefs:1\|case:mixed\|eff:no\|tok:13a',
    ),
    "shakespeare": ("characters/preprocess.log", r"(?s)1003855 tokens, 0.0% replaced.* 111540 tokens, 0.0% replaced"),
    "war_and_peace": ("bin/preprocess.log", "Dictionary: 1024 types"),
}


@pytest.mark.slow
@pytest.mark.parametrize("data", [pytest.param(name, marks=needs(name)) for name in ROWS])
def test_from_the_raw_data_to_a_score(data, tmp_path):
    script, run, (low, high), *metrics = ROWS[data]
    recipe(f"{script}.sh", run.split()[0], SCALE="smoke", OUT=str(tmp_path), DATA_ROOT=str(DATA_ROOT), THREADS="1")
    out = tmp_path / Path(script).parent
    found = results_csv.read(out / "results.csv")
    assert [found[0][name] for name in ("row", "arch", "updates")] == run.split()
    values = {one["metric"]: float(one["value"]) for one in found}
    assert values.keys() == set(metrics)
    assert low < values[metrics[0]] < high
    assert min(values.values()) >= 0
    path, pattern = WHOLE.get(data, ("results.csv", ""))
    assert re.search(pattern, (out / path).read_text())
