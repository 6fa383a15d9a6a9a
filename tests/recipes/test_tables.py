"""The papers' tables as commands: every row through the real parsers, what is rejected, and what is made of results."""

import os
import re
import shlex
from argparse import Namespace
from pathlib import Path

import commands
import later
import pytest
import render
import request
import rows
import run as program
import torch
from fairseq import options
from kinds.base import SWITCHES

import fairseq_plugin  # noqa: F401  (registers its models)
import timm_plugin  # noqa: F401  (registers its models)
from recurrence.comparison.runs import Command
from tests.support import cli
from tests.support.recipes import NAMED, PAPERS, PARSERS, RECIPES, TABLES, line, name, parsed, recipe, requested
from tests.support.recipes import commands as printed

SCALES_OF_TABLES = [
    pytest.param(table, scale, marks=[] if scale == "smoke" else [pytest.mark.slow])
    for table in TABLES
    for scale in dict.fromkeys(scale for run in table.runs.values() for scale in run.scales)
]


# Commands


def program_of(command: Command) -> str:
    """The program that a command starts, whose parser takes it; many rows have one in common, but for their folder."""
    words = list(command.words)
    if words[0] == "torchrun" and "fairseq_cli.train" in words:
        words = ["fairseq-train", *words[words.index("fairseq_cli.train") + 1 :]]
    elif words[0] == "torchrun":
        words = ["python", *words[words.index("--nproc_per_node") + 2 :]]
    return parsed(*(re.sub(r"/\S+/s1/", "/run/", word) for word in words))


def expect_real_commands(asked: request.Request, run: rows.Run) -> None:
    """The parsers take every command of a run, which is trained where it has to be and scored in its folder."""
    request.check(asked, run)
    found = commands.stages(asked, run, 1)
    commands_of_all = [command for stage in found.values() for command in stage]
    programs = list(map(program_of, commands_of_all))
    assert list(found)[-1] == "scoring"
    made_of_another = "sharing" in found or {"decode", "eight_bits"} & run.settings(asked.scale).keys.keys()
    trains = run.table.kind != "count" and not made_of_another
    assert ("training" in found) == bool({"fairseq-train", "train_image"} & set(programs)) == trains
    folder = commands.run_folder(asked, run, 1)
    assert found["scoring"][-1].output == folder / "scores.json"
    used = {Path(word) for command in commands_of_all for word in command.words}
    _, scale, table, *_ = folder.parents
    assert not [path for path in used if table in (path, *path.parents) and scale not in path.parents], "its data"


@pytest.mark.parametrize(("table", "scale"), SCALES_OF_TABLES, ids=name)
def test_the_real_parsers_take_every_command_of_every_row(table, scale, tmp_path):
    """Each row into a folder of its own; at scale paper the first one in 8 processes too, which divide any batch."""
    alone = "--aug-repeats", "0"  # on one GPU
    runs = [run for run in table.runs.values() if scale in run.scales]
    asked = requested(tmp_path, *alone if scale == "paper" and table.kind == "images" else (), SCALE=scale)
    for run in runs:
        expect_real_commands(asked, run)
    if scale == "paper":
        distributed = requested(tmp_path, SCALE=scale, GPUS="8")
        expect_real_commands(distributed, runs[0])
        for run in runs:
            request.check(distributed, run)
    assert len({commands.run_folder(asked, run, 1) for run in runs}) == len(runs)
    assert not list(tmp_path.iterdir()), "nothing is written"


@pytest.mark.parametrize("switch", SWITCHES)
def test_the_real_parsers_take_the_settings_of_release_and_code(switch, tmp_path):
    for table in TABLES:
        for run in [run for run in table.runs.values() if switch in run.switches and "paper" in run.scales]:
            asked = requested(tmp_path, SCALE="paper", SETTINGS=switch, GPUS="8")
            request.check(asked, run)
            for lines in commands.stages(asked, run, 1).values():
                assert all(program_of(line) for line in lines)


def check_later(asked: request.Request, run: rows.Run) -> None:
    """The check of a training before it starts, as the program makes it."""
    found = commands.stages(asked, run, 1)
    training = commands.parse_training(found)
    if training:
        later.check(training, found, run.settings(asked.scale, asked.settings).keys.get("pairs"))


@pytest.mark.parametrize("table", [table for table in TABLES if table.kind not in ("images", "count")], ids=name)
def test_every_training_of_scale_paper_leaves_what_its_later_stages_read(table, tmp_path):
    for run in [run for run in table.runs.values() if "paper" in run.scales]:
        for switch in run.switches:
            check_later(requested(tmp_path, SCALE="paper", SETTINGS=switch), run)


@pytest.mark.parametrize(
    ("table", "row", "flags", "message"),
    [
        (
            "takase/table1",
            "cycle",
            "--max-update 1000",
            "1,000 updates, 2.5 epochs of the data: leave 2 ",
        ),
        (
            "takase/table1",
            "cycle",
            "--keep-last-epochs 5",
            "leave 5 checkpoints by epoch, but a later stage reads 10",
        ),
        ("takase/table1", "cycle", "--save-interval 20", "leave 6 checkpoints by epoch, but a later stage reads 10: "),
        ("takase/table1", "cycle", "--max-epoch 9", "9.0 epochs of the data: leave 9 checkpoints by epoch, but "),
        ("takase/table1", "cycle", "--no-epoch-checkpoints", "leave 0 checkpoints by epoch, but "),
        ("takase/table1", "cycle", "--batch-size 1", "leave 1 checkpoints by epoch, but "),
        ("takase/table2", "kiyono", "--max-update 9000", "leave 9 checkpoints by update, but a later stage reads 10: "),
        ("takase/table2", "kiyono", "--keep-interval-updates 9", "leave 9 checkpoints by update, but "),
        ("takase/table4", "cycle", "--save-interval-updates 0", "leave 0 checkpoints by update, but "),
        ("takase/table5", "cycle", "--disable-validation", "leave 0 checkpoint_best.pt, but a later stage reads 1: "),
        ("takase/admin", "plain", "--disable-validation", "leave 0 losses of a validation, but "),
        ("ringformer/table1", "ringformer", "--no-save", "leave 0 checkpoint_best.pt, but a later stage reads 1: cp "),
        ("ilr/table1", "1,1,1,1-none", "--no-last-checkpoints", "leave 0 checkpoint_last.pt, but "),
    ],
)
def test_a_training_that_leaves_too_little_is_rejected(table, row, flags, message, tmp_path):
    asked = requested(tmp_path, *flags.split(), SCALE="paper")
    with pytest.raises(rows.TableError, match=re.escape(message)):
        check_later(asked, NAMED[table].find(row))


def test_ten_epochs_of_the_synthetic_pairs_would_be_rejected(tmp_path):
    """50,000 updates read them less than three times."""
    found = commands.stages(requested(tmp_path, SCALE="paper"), NAMED["takase/table2"].find("cycle_rev_synthetic"), 1)
    words = [
        word.replace("--num-update-checkpoints", "--num-epoch-checkpoints") for word in found["averaging"][0].words
    ]
    found["averaging"] = [Command(tuple(words))]
    with pytest.raises(rows.TableError, match="50,000 updates, 1.7 epochs of the data: leave 0 checkpoints by epoch"):
        later.check(commands.parse_training(found), found, 328_500_000)


def words_of(found: commands.Stages, stage: str = "training") -> list[str]:
    return list(found[stage][0].words)


def trained_with(run: rows.Run, **settings: str) -> Namespace:
    """fairseq's options for the training of a row."""
    words = words_of(commands.stages(requested(Path("out"), **settings), run, 1))
    return options.parse_args_and_arch(PARSERS["fairseq-train"](), words[1:])


def test_settings_of_the_body_are_those_of_section_4_1():
    args = trained_with(NAMED["ringformer/table1"].find("ringformer"), SCALE="paper", SETTINGS="body")
    assert (args.max_update, args.warmup_updates, args.lr) == (830_000, 40_000, [7e-4])
    assert args.batch_size * args.update_freq[0] == 512


def test_the_batch_of_the_table_is_gathered_from_any_processes(tmp_path):
    run = NAMED["ringformer/table1"].find("ringformer")
    for settings, expected in (
        ({}, ("512", "2")),
        ({"GPUS": "2"}, ("512", "1")),
        ({"GPUS": "8"}, ("128", "1")),
        ({"GPUS": "8", "MICRO_BATCH": "16"}, ("16", "8")),
    ):
        words = words_of(commands.stages(requested(tmp_path, SCALE="paper", **settings), run, 1))
        assert (words[words.index("--batch-size") + 1], words[words.index("--update-freq") + 1]) == expected


def test_a_process_takes_at_least_one_text_of_a_language_model(tmp_path):
    """fairseq skips longer ones; 32 processes divide the tokens of an update, but hold no text each."""
    run = NAMED["takase/table5"].find("cycle")
    for settings in ({"GPUS": "32"}, {"MICRO_BATCH": "1536"}):
        with pytest.raises(rows.TableError, match="a process takes .* tokens at once, but a text has 3072"):
            request.check(requested(tmp_path, SCALE="paper", **settings), run)
    request.check(requested(tmp_path, SCALE="paper", GPUS="24"), run)


def test_the_published_standard_error_is_of_the_tables_batch_in_any_number_of_processes(tmp_path):
    """It shrinks with the batch, which is that of an update in the published code."""
    run = NAMED["kausik/table3"].find("recurrent")
    for gpus, micro in (("1", ""), ("8", ""), ("8", "4")):
        asked = requested(tmp_path, SCALE="paper", GPUS=gpus, MICRO_BATCH=micro)
        words = words_of(commands.stages(asked, run, 1), "scoring")
        assert words[words.index("--batch") + 1] == "256"


@pytest.mark.parametrize(
    ("table", "row"), [("cifar10/train", "sret"), ("sret/table5", "t_384"), ("pronounce/train", "eight_bits")]
)
def test_a_run_has_its_seed_and_reads_other_rows_of_that_seed(table, row, tmp_path):
    """Those of teachers and of models in eight bits."""
    found = commands.stages(requested(tmp_path, SCALE="small"), NAMED[table].find(row), 2)
    words = [word for stage in found.values() for command in stage for word in map(str, command.words)]
    assert any("/s2" in word for word in words)
    assert not any("/s1" in word for word in words)
    assert "training" not in found or words[words.index("--seed") + 1] == "2"


def test_test_images_train_at_scale_smoke_alone_and_choose_no_rates(tmp_path):
    (tmp_path / "cifar10.tar").touch()
    for scale in ("smoke", "small"):
        asked = requested(tmp_path, SCALE=scale, DATA_ROOT=str(tmp_path))
        words = words_of(commands.stages(asked, NAMED["cifar10/train"].find("sret"), 1))
        assert ("--train-split" in words) == (scale == "smoke")
    for run in NAMED["cifar10/rates"].runs.values():
        assert words_of(commands.stages(asked, run, 1))[2] == f"{tmp_path}/cifar10/5000-held-out"


def test_the_last_checkpoints_are_averaged(tmp_path):
    speech = NAMED["takase/table4"].find("cycle")
    for run, last in ((NAMED["multi30k/train"].find("ringformer"), 5), (speech, speech.settings("small").keys["keep"])):
        words = words_of(commands.stages(requested(tmp_path, SCALE="small"), run, 1), "averaging")
        assert words[words.index("--num-update-checkpoints") + 1] == str(last)


def test_operations_are_counted_for_the_texts_of_an_update_in_any_number_of_processes(tmp_path):
    counted = set()
    for gpus in ("1", "4"):
        asked = requested(tmp_path, SCALE="paper", GPUS=gpus)
        words = words_of(commands.stages(asked, NAMED["ilr/table1"].find("1,1,1,1-rope"), 1), "counting")
        counted.add(words[words.index("--texts") + 1])
    assert len(counted) == 1


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_a_training_leaves_the_other_gpus_of_a_machine_alone(scale, monkeypatch):
    """fairseq's default number of processes is that of the GPUs, each of which would take the whole batch."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    for table, row in (("ringformer/table1", "vanilla"), ("takase/table4", "cycle"), ("kausik/table6", "copying")):
        assert trained_with(NAMED[table].find(row), SCALE=scale).distributed_world_size == 1
    for demo in ("pronounce/run.sh", "automaton/run.sh"):
        words = next(words for words in printed(demo) if words[0] == "fairseq-train")
        assert options.parse_args_and_arch(PARSERS["fairseq-train"](), words[1:]).distributed_world_size == 1


def test_repeated_augmentation_is_not_dropped_in_silence(tmp_path):
    run = NAMED["sret/table1"].find("loops_3")
    words = words_of(commands.stages(requested(tmp_path, SCALE="paper", GPUS="8"), run, 1))
    assert words[words.index("--aug-repeats") + 1] == "3"
    with pytest.raises(rows.TableError, match="GPUS=1: repeated augmentation .3 copies .* --aug-repeats 0"):
        request.check(requested(tmp_path, SCALE="paper"), run)
    request.check(requested(tmp_path, "--aug-repeats", "0", SCALE="paper"), run)


def test_a_row_that_scores_the_checkpoint_of_another_takes_no_flags(tmp_path):
    run = NAMED["pronounce/train"].runs["eight_bits"]
    request.check(requested(tmp_path, SCALE="small"), run)
    with pytest.raises(rows.TableError, match="^--lr 1: eight_bits scores another row's checkpoint and takes no flags"):
        request.check(requested(tmp_path, "--lr", "1", SCALE="small"), run)


def test_settings_of_the_release_add_their_flags_to_the_papers():
    for switch, expected in ("paper", ([1e-3], 4000)), ("release", ([2e-3], 8000)):
        args = trained_with(NAMED["takase/table3"].find("en_fr-cycle"), SCALE="paper", SETTINGS=switch)
        assert (args.lr, args.warmup_updates) == expected
        assert (args.init, args.encoder_layers, args.max_update) == ("admin", 18, 50000)


def test_seeds_settings_and_flags_are_passed_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join([str(cli.SCRIPTS), os.environ["PATH"]]))
    for key, value in dict(SCALE="paper", SEEDS="1 2 3", SETTINGS="code", OUT=str(tmp_path), DRY_RUN="1").items():
        monkeypatch.setenv(key, value)
    assert program.main([str(RECIPES / "ringformer" / "table1.sh"), "vanilla", "--dropout", "0.2"]) == 0
    trained = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("fairseq-train")]
    assert [words[words.index("--seed") + 1] for words in trained] == ["1", "2", "3"]
    assert all(words[-2:] == ["--dropout", "0.2"] and "--bf16" not in words for words in trained)
    assert len({words[words.index("--save-dir") + 1] for words in trained}) == 3
    assert all("/table1/paper-code/vanilla/s" in words[words.index("--save-dir") + 1] for words in trained)


PAPER, CODE = {"SCALE": "paper"}, "PATH[$(touch {0})0]"


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        ("ring", {}, "ROW=ring: no such row; did you mean ringformer"),
        ("vanilla", {"SCALE": "huge"}, "SCALE=huge: input should be 'smoke', 'small', 'long' or 'paper'"),
        ("vanilla", {"SCALES": "paper"}, "SCALES=paper: unknown setting; did you mean SCALE?"),
        ("vanilla --scale huge", {}, "SCALE=huge: input should be "),
        ("vanilla --seed x", {}, "SEEDS=x: input should be a valid integer"),
        ("vanilla --seed", {}, "--seed: needs a value"),
        ("vanilla --lr 1e-3 --layers 3", {}, "unrecognized arguments: --layers 3"),
        ("vanilla", {"SCALE": "long"}, "SCALE=long: must be one of smoke, small, paper for RingFormer 1, vanilla"),
        ("vanilla", {"SEED": "x"}, "SEED=x: input should be a valid integer"),
        ("vanilla", {"SEEDS": "1 -2"}, "SEEDS=1 -2: input should be greater than or equal to 0"),
        ("vanilla", {"SEED": " "}, "SEED= : list should have at least 1 item"),
        ("vanilla", {"PRECISION": "fp8"}, "PRECISION=fp8: input should be "),
        ("vanilla", {"SETTINGS": "mine"}, "SETTINGS=mine: input should be 'paper', 'body', 'release' or 'code'"),
        ("vanilla", {"SETTINGS": "code"}, "SETTINGS=code: must be paper at scale smoke"),
        ("vanilla", PAPER | {"SETTINGS": "release"}, "SETTINGS=release: must be one of paper, body, code for "),
        ("vanilla", {"DRY_RUN": "yes"}, "DRY_RUN=yes: input should be '0' or '1'"),
        ("vanilla", {"GPUS": "2"}, "GPUS=2: must be 1 at scale smoke"),
        ("vanilla --no-save", PAPER, "210,000 updates, 47.8 epochs of the data: leave 0 checkpoint_best.pt, but "),
        ("vanilla", PAPER | {"GPUS": "3"}, "GPUS=3, MICRO_BATCH=341: their product must divide the "),
        *(("vanilla", PAPER | {name: CODE}, f"{name}={CODE}: input should be ") for name in ("GPUS", "MICRO_BATCH")),
    ],
)
def test_wrong_settings_are_named_before_anything_starts(words, settings, message, tmp_path):
    touched = tmp_path / "touched"
    settings = {key: value.replace("{0}", str(touched)) for key, value in settings.items()}
    out = tmp_path / "out"
    output = recipe("ringformer/table1.sh", *words.split(), fails=True, OUT=str(out), **settings)
    assert f"error: {message.replace('{0}', str(touched))}" in output
    assert not touched.exists()
    assert not out.exists()


def test_flags_of_the_image_trainer_are_whole_words(tmp_path, capsys):
    """The results would have the seed that an abbreviated --seed replaces."""
    found = commands.stages(requested(tmp_path, "--see", "3"), NAMED["ringformer/table2"].runs["uit"], 1)
    with pytest.raises(SystemExit):
        commands.parse_training(found)
    assert "unrecognized arguments: --see 3" in capsys.readouterr().err


def test_usage_and_list():
    assert "usage: " in recipe("ringformer/table1.sh", fails=True)
    assert "error: list static: list takes no row and no flags" in recipe(
        "ringformer/table4.sh", "list", "static", fails=True
    )
    lines = recipe("ringformer/table4.sh", "list").splitlines()
    assert [line.split("\t")[0] for line in lines] == list(NAMED["ringformer/table4"].runs)
    assert lines[0].split("\t")[1:4] == ["ringformer_tiny", "static signal", "H/F 128/512, P* 0.46M, BLEU 23.35"]


def test_nested_threads_of_openmp_count_at_the_outer_level():
    assert request.read_request({"OMP_NUM_THREADS": "2,1"}, []).threads == 2


def test_a_row_is_found_by_the_name_of_its_architecture():
    for table, arch, row in (
        ("sret/table5", "sret_tl", "tl"),
        ("sret/table5", "sret_tl_global", "tl_global"),
        ("ringformer/table1", "ringformer_base", "ringformer"),
        ("ringformer/table4", "ringformer_tiny", "ringformer"),
    ):
        assert NAMED[table].find(arch).name == row
    with pytest.raises(rows.TableError, match="ROW=recursive_deit_tiny: several rows have it: loops_1, loops_2"):
        NAMED["sret/table1"].find("recursive_deit_tiny")
    with pytest.raises(rows.TableError, match="did you mean tl_distilled"):
        NAMED["sret/table5"].find("tl_distiled")


def test_the_recipes_own_flags_are_settings_and_the_others_the_trainers(tmp_path):
    asked = requested(tmp_path, "--dropout", "0.2", "--scale", "small", "--seed=2", SCALE="smoke", SEED="1")
    assert (asked.scale, asked.seeds, asked.flags) == ("small", [2], ["--dropout", "0.2"])
    crops = requested(tmp_path, "--scale", "0.5", "1", "--lr=1e-3")
    assert (crops.scale, crops.flags) == ("smoke", ["--scale", "0.5", "1", "--lr=1e-3"])


# What is made of them


def shown(monkeypatch, *lines: dict) -> str:
    """Table 4 beside these results."""
    monkeypatch.setattr(render, "read", lambda path: list(lines))
    (paper,) = [paper for paper in PAPERS if paper.paper == "RingFormer"]
    return render.section(paper, paper.tables["table4"])


def test_the_columns_of_the_largest_scales_come_first():
    scales = ["small-5000-20", "small-7000", "small-15000", "small", "paper-code-9000", "paper"]
    assert sorted(scales, key=render.size) == scales[::-1]


def test_every_scale_has_its_column_and_smoke_none(monkeypatch):
    smoke = line(row="vanilla", value="1.11", scale="smoke")
    assert "ours (" not in shown(monkeypatch, smoke)
    three = [line(row="vanilla", value=value) for value in ("20.5", "21.5", "22.5")]
    assert "| 25.48 | 20.50 |" in shown(monkeypatch, *three[:1], smoke)
    assert "| 25.48 | 21.50 ± 0.58 (3 seeds) |" in shown(monkeypatch, *three)
    diverged = line(row="vanilla", seed="4", value="")
    assert "| 25.48 | 21.50 ± 0.58 (3 seeds), 1 failed |" in shown(monkeypatch, *three, diverged)
    both = shown(monkeypatch, *three, line(row="vanilla", value="25", scale="paper"))
    assert "| BLEU | sacreBLEU, ours (paper) | sacreBLEU, ours (small) |" in both
    assert "| 25.48 | 25.00 | 21.50 ± 0.58 (3 seeds) |" in both
    assert "| 25.48 | failed |" in shown(monkeypatch, line(row="vanilla", value=""))


def test_recorded_runs_have_the_updates_of_their_scale(tmp_path):
    """So one more seed of a row is trained as those were with which it is averaged."""
    for table in [table for table in TABLES if table.kind not in ("images", "count")]:
        for run in render.shown(table).drop_duplicates(["row", "scale"]).to_dict("records"):
            if "-" in run["scale"] or not run["updates"]:
                continue
            found = commands.stages(requested(tmp_path, SCALE=run["scale"]), table.runs[run["row"]], 1)
            training = commands.parse_training(found)
            if training and training.patience <= 0:
                assert training.max_update == int(run["updates"]), run["cmd"]


def test_a_run_too_short_to_show_its_effect_is_in_no_table(monkeypatch):
    lines = [line(row="static", value="2.41"), line(row="ringformer", value="22.95")]
    text = shown(monkeypatch, *lines)
    assert "22.95" in text
    assert "2.41" not in text
    assert render.how([NAMED["ringformer/table4"]]).count("RingFormer 4") == 1
