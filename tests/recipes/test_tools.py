"""The tools of the recipes: scores, tables of results, texts."""

import json
import math
import re
import shutil
import sys
from pathlib import Path

import book
import characters
import collect
import commands
import flops
import loss
import perplexity
import pytest
import results_csv
import rows
import score
import torch

from tests.support import cli
from tests.support.recipes import NAMED, RECIPES, line, requested


def test_a_book_is_cut_into_paragraphs_without_its_frame():
    text = "Licence\n*** START OF THE BOOK ***\n\nOne\ntwo.\n\n\nThree.\n*** END OF THE BOOK ***\nMore\n"
    assert book.paragraphs(text) == ["One two.", "Three."]
    assert book.paragraphs("One\n\ntwo") == ["One", "two"]
    parts = book.split([str(number) for number in range(100)])
    assert [len(lines) for lines in parts.values()] == [90, 5, 5]
    assert sum(parts.values(), []) == [str(number) for number in range(100)]


def test_perplexities_are_over_all_symbols(tmp_path):
    (tmp_path / "text").write_text("a b\nc\n")
    assert perplexity.symbols("a b\nc\n") == 5
    assert perplexity.symbols("a\u2028b\n\nc\x85d\n") == 7, "fairseq ends a line at a line feed only"
    (tmp_path / "eval-64.log").write_text("Evaluated 5 tokens\nLoss (base 2): 3.0000\n")
    command = (RECIPES / "metrics" / "perplexity.py", tmp_path, "--pieces", tmp_path / "text", "--contexts", "64")
    assert json.loads(cli.python(*command)) == {"symbols": 5, "perplexity_64": 8.0}
    (tmp_path / "dev").write_text("d\n")
    (tmp_path / "eval-valid.log").write_text("Evaluated 2 tokens\nLoss (base 2): 2.0000\n")
    also = json.loads(cli.python(*command, "--also", f"valid={tmp_path / 'dev'}"))
    assert also == {"symbols": 5, "perplexity_64": 8.0, "perplexity_valid": 4.0}
    (tmp_path / "eval-64.log").write_text("Evaluated 4 tokens\nLoss (base 2): 3.0000\n")
    assert "4 symbols evaluated: must be all 5" in cli.python(*command, fails=True)
    assert perplexity.perplexity("INFO | Evaluated 1,000 tokens\nINFO | Loss (base 2): 2.0000\n", 1000) == 4
    with pytest.raises(ValueError, match="no result"):
        perplexity.perplexity("INFO | Evaluated", 1)


def test_characters_keep_every_symbol_and_the_published_split():
    text = "To be,\n\nor  not" * 10
    parts = characters.split(text)
    assert parts["train"] + parts["valid"] == text
    assert len(parts["train"]) == 135
    assert parts["valid1"] == text[120:135]
    lines = characters.spaced(text).splitlines()
    assert "\n".join(line.replace(" ", "").replace(characters.BLANK, " ") for line in lines) == text
    assert characters.spaced("ab\n") == "a b\n"


def test_hypotheses_come_back_in_order_and_all(tmp_path):
    log = tmp_path / "generate.log"
    lines = ["S-1\tx", "H-1\t-0.5\tzwei @-@ drei", "D-1\t-0.5\tzwei-drei", "D-1\t-0.9\tvier", "D-0\t-0.1\teins"]
    log.write_text("\n".join([*lines, "INFO: D-2"]) + "\n")
    found = score.best_hypotheses(log)
    assert score.in_order(found, 2) == ["eins", "zwei-drei"]
    for count in (1, 3):
        with pytest.raises(ValueError, match=f"2 hypotheses for {count} references"):
            score.in_order(found, count)


def test_a_reference_may_end_with_an_empty_line(tmp_path):
    (tmp_path / "generate.log").write_text("D-0\t-0.1\teins\nD-1\t-0.1\t\n")
    (tmp_path / "reference").write_text("eins\n\n")
    hypotheses, references = score.hypotheses_and_references(tmp_path / "generate.log", tmp_path / "reference")
    assert hypotheses == references == ["eins", ""]


def test_scores_are_those_of_sacrebleu(tmp_path):
    hypotheses, references = ["a small house stands there", "yes"], ["a small house stands here", "yes"]
    ours = score.scores(hypotheses, references, "13a")
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    theirs = json.loads(cli.run("sacrebleu", tmp_path / "ref", "-i", tmp_path / "hyp", "-w", "2", "-f", "json"))
    assert ours["bleu"] == theirs["score"]
    assert ours["exact_match"] == 50


FILE = "No such file or directory: "
WRONG_CALLS = [
    ("metrics/score.py foo.log", "argument LOG=REFERENCE: foo.log: must have a value before and after ="),
    ("metrics/score.py foo.log=bar", FILE + "'bar'"),
    ("metrics/pronunciation.py foo.log=bar", FILE + "'bar'"),
    ("metrics/eight_bits.py foo.pt=bin --letters bar --references bar", FILE + "'bar'"),
    ("metrics/loss.py foo.log", FILE + "'foo.log'"),
    ("digits/data.py /dev/null", "Not a directory: '/dev/null"),
    ("digits/report.py foo", FILE + "'foo/scores.json'"),
    ("pronounce/report.py foo --data bar", FILE + "'foo/scores.json'"),
    ("pronounce/ship.py foo.pt --data bar --folder baz", "foo.pt"),
    ("figures/curves.py foo --output /dev/null/x.svg", "argument --output: '/dev/null/x.svg': /dev/null is not a "),
    ("metrics/perplexity.py run --pieces text --contexts 64", FILE + "'text'"),
    ("metrics/score_speech.py run data test", FILE + "'data/test.tsv'"),
    ("metrics/score_image.py run", FILE + "'run/summary.csv'"),
    ("metrics/answers.py --path foo.pt --batch 4", "foo.pt"),
    (
        "metrics/flops.py --symbols 9 --text 9 --texts 9 -- --arch ilr_small --max-update 9 --reuse-map x",
        "--reuse-map=x: must be",
    ),
    ("metrics/score.py a/test.log=ref b/test.log=ref", "test: is the name of 2 files: must be of one"),
    ("metrics/cost_image.py uit depth", "argument key=value: 'depth': must be key=value"),
    ("metrics/cost_image.py uit dept=2", "unexpected keyword argument 'dept'"),
    ("cifar10/shrink.py foo bar --size 16", "data=foo: must hold cifar-10-batches-py"),
    ("cifar10/hold_out.py foo bar", "data=foo: must hold cifar-10-batches-py"),
    ("data/clean.py in out de en", FILE + "'in.de'"),
    ("data/wordpieces.py dictionary no_vocabulary output", FILE + "'no_vocabulary'"),
    ("data/segment.py encode foo.model text pieces", "foo.model"),
    ("data/iwslt.py foo bar", FILE + "'foo/train.tags.de-en.de'"),
    ("data/imagenet_small.py list imagenet output", FILE + "'list'"),
    ("kausik/characters.py text folder", FILE + "'text'"),
    ("ilr/book.py book folder", FILE + "'book'"),
    ("data/pronunciations.py folder --words 9", "--words 9: must be >= 100"),
]


@pytest.mark.parametrize(("call", "message"), WRONG_CALLS, ids=[call for call, _ in WRONG_CALLS])
def test_what_a_tool_lacks_is_named(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script, *arguments = call.split()
    output = cli.python(RECIPES / script, *arguments, fails=True)
    assert message in output
    assert "Traceback" not in output
    assert not list(tmp_path.iterdir())


def test_training_time_is_that_of_all_epochs():
    lines = ["train_inner | epoch 001: 50 / 99 loss=1, train_wall=7, wall=9"]
    for epoch, train_wall, wall in ((1, 20, 30), (2, 5, 40), (2, 21, 60)):
        lines.append(f"train | epoch 00{epoch} | loss 1 | train_wall {train_wall} | wall {wall}")
    assert collect.seconds("\n".join(f"2026-01-01 00:00:00 | INFO | {line}" for line in lines)) == 41
    lines = [f'train | {{"epoch": {epoch}, "train_train_wall": "{wall}"}}' for epoch, wall in ((1, 7), (2, 5), (2, 9))]
    assert collect.seconds("\n".join(f"2026-01-01 00:00:00 | INFO | {line}" for line in lines)) == 16


def test_results_are_only_added_to(tmp_path):
    path = tmp_path / "results.csv"
    results_csv.append(path, [line(value="31.5")])
    before = path.read_text()
    results_csv.append(path, [line(seed="2", value="32.5")])
    assert path.read_text().startswith(before)
    assert [found["value"] for found in results_csv.read(path)] == ["31.5", "32.5"]
    path.write_text("row,value\nr,1\n")
    with pytest.raises(ValueError, match="columns"):
        results_csv.read(path)


def test_core_parameters_leave_out_embeddings_outputs_and_buffers(tmp_path):
    own = "encoder.loop.own.0.residuals.0"
    sizes = {"encoder.embed_tokens.weight": 7, "decoder.output_projection.bias": 7, "profiled": 1, f"{own}.offset": 1}
    sizes |= {
        f"decoder.adaptive_softmax.{part}": 7 for part in ("version", "head.class_proj.weight", "tail.0.2.weight")
    }
    sizes |= {"decoder.adaptive_softmax.head._float_tensor": 1, "encoder.loop.looping": 1}
    sizes |= {f"{own}.weight": 5, "decoder.layer_norm.weight": 3}
    state = {"model": {name: torch.zeros(size) for name, size in sizes.items()}, "args": None, "cfg": None}
    state |= {"optimizer_history": [{"num_updates": 1, "best_loss": 0}], "last_optimizer_state": None}
    torch.save(state | {"extra_state": {"train_iterator": {"epoch": 1}}}, tmp_path / "checkpoint.pt")
    assert collect.core_parameters(tmp_path / "checkpoint.pt") == 8


def test_a_resumed_log_counts_with_its_last_lines(tmp_path):
    lines = ["num. shared model params: 1,234 (num. trained: 1,234)"]
    lines += [f'train | {{"epoch": {n}, "train_num_updates": "{20 * n}", "train_train_wall": "5"}}' for n in (1, 2)]
    (tmp_path / "train.log").write_text("".join(f"2026 | INFO | {line}\n" for line in lines))
    assert collect.training(tmp_path) == {"params": 1234, "updates": 40, "wall_s": 10}


def test_a_folder_that_can_be_written_gets_no_file(tmp_path):
    results_csv.check_writable(tmp_path / "new" / "results.csv")
    assert not list((tmp_path / "new").iterdir())


def test_the_recorded_runs_can_be_called_again():
    recorded = [found for path in RECIPES.glob("*/results.csv") for found in results_csv.read(path)]
    assert recorded
    for found in recorded:
        settings, script, row = re.fullmatch(r"((?:[A-Z_]+=\S+ )+)(recipes/\S+\.sh) (\S+).*", found["cmd"]).groups()
        assert set(dict(setting.split("=") for setting in settings.split())) >= {"SCALE", "SEED"}
        NAMED[script.removeprefix("recipes/").removesuffix(".sh")].find(row)


def test_nothing_of_the_corpora_is_in_the_repository():
    if shutil.which("git") is None or not (cli.REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    listed = cli.run("git", "-C", cli.REPOSITORY, "ls-files", "recipes").split()
    assert {Path(name).suffix for name in listed} <= {".sh", ".py", ".md", ".csv", ".svg", ".toml", ""}


def test_operations_are_those_of_the_updates_that_a_flag_asks_for(tmp_path, monkeypatch, capsys):
    run, totals = NAMED["ilr/table1"].find("1,1,1,1-rope"), []
    for flags in ([], ["--max-update", "120"]):
        (count,) = commands.stages(requested(tmp_path, *flags, SCALE="small"), run, 1)["counting"]
        monkeypatch.setattr(sys, "argv", list(count.words[1:]))
        flops.main()
        totals.append(json.loads(capsys.readouterr().out)["training_flops"])
    assert totals[0] == 2 * totals[1] > 0


def test_the_loss_is_that_of_the_last_validation_in_nats(tmp_path):
    lines = [{"valid_num_updates": str(at), "valid_nll_loss": base2} for at, base2 in ((10, "3"), (20, "2"))]
    log = tmp_path / "train.log"
    log.write_text("".join(f"now | INFO | valid | {json.dumps(line)}\n" for line in lines))
    assert loss.last_validation(log) == {"loss": round(2 * math.log(2), 4), "updates": 20}


@pytest.mark.slow
def test_table_2_of_intra_layer_recurrence_has_the_ratios_that_its_note_tells():
    table = rows.read(RECIPES / "ilr").tables["table2"]
    ratios = []
    for variant in ("small", "large"):
        found = []
        for row in ("baseline", "one_layer_twice", "doubled"):
            settings = table.find(f"{row}-{variant}").settings()
            symbols, text = settings.keys["symbols"], settings.keys["text"]
            found.append(flops.per_text(symbols, text, ["--arch", "ilr_small", *settings.flags]))
        ratios += [f"{one['both'] / found[0]['both']:.3f}" for one in found[1:]]
        total = found[0]["both"] * settings.keys["batch"] * settings.keys["updates"]
        assert total == pytest.approx({"small": 6.68e15, "large": 2.028e18}[variant], rel=2e-3)
    assert ratios == ["1.235", "1.941", "1.098", "1.782"]
    assert f"ours {ratios[0]}, {ratios[1]} and {ratios[2]}" in table.note
    assert flops.per_text(1024, 1024, ["--arch", "ilr_small"])["params"] == 1_180_800  # as in Table 3
