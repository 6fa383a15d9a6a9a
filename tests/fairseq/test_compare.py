"""python -m fairseq_plugin.compare: controls of every architecture, rejections, and a comparison from end to end."""

import json
import re
import shlex
import sys
from argparse import Namespace
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from fairseq import options as fairseq_options
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_plugin import compare
from fairseq_plugin.controls import TextControls
from fairseq_plugin.elastic import loops_by_side
from fairseq_plugin.models.baselines import OneWideFFN
from fairseq_plugin.models.recurrent_lm import KausikRecurrence
from fairseq_repairs.checkpoints import load_safely
from recurrence import count
from recurrence.comparison.rows import AS_LARGE, ROWS, TIMED, Length
from recurrence.comparison.runs import Command, Runner
from tests.support import cli, models
from tests.support.flags import options

UNSHARED = {arch for arch in models.EVERY if "vanilla" in arch}
WITHOUT_LOOP = {arch for arch in models.EVERY if ARCH_MODEL_REGISTRY[arch] in (OneWideFFN, KausikRecurrence)}
LOOPED = [arch for arch in models.EVERY if arch not in UNSHARED | WITHOUT_LOOP]


def built(words):
    """The model of a command line on the meta device."""
    return models.on_meta(*arch_and_flags(words))


def arch_and_flags(words):
    """The architecture, then all other words."""
    at = words.index("--arch")
    return [words[at + 1], *words[:at], *words[at + 2 :]]


def controls(arch, *flags, names=tuple(ROWS)):
    """The models of these rows."""
    words = ["--arch", arch, *models.tiny_flags(arch, *flags)]
    args = models.saved_options(arch, *flags)
    derived = TextControls(args, words, built(words), Mock(side_effect=built))
    flags = derived.flags(names)
    assert derived.build.call_count <= 21, "seven for each width"
    return args, {name: built(row) for name, row in flags.items() if name not in TIMED}, flags


@pytest.mark.parametrize("arch", LOOPED)
def test_controls_of_every_looped_architecture(arch):
    bands = ["--decoder-embed-dim", "64"] if arch.endswith(("_lm", "_lm_large")) else []  # the last needs a column
    args, rows, flags = controls(arch, *bands)
    looped, once, storage, half, narrow, deep = (loops_by_side(rows[name]) for name in ROWS if name not in TIMED)
    for side, loop in looped.items():
        blocks = tuple(range(len(loop.blocks)))
        assert once[side].order == storage[side].order == blocks
        assert deep[side].order == narrow[side].order == tuple(range(loop.passes))
        assert half[side].order == tuple(range(max(1, loop.passes // 2)))
    target = count.stored(rows["looped"])
    for name in AS_LARGE:
        assert 0.97 * target <= count.stored(rows[name]) <= target
    assert count.stored(rows["once"]) <= target <= count.stored(rows["deep"])
    assert all(flags[longer] == flags[name] for longer, name in TIMED.items())
    wide, narrow = (options(*arch_and_flags(flags[name])) for name in ("storage", "narrow"))
    for side in looped:  # the width of a head is that of the looped model, or their number
        width, heads = (getattr(wide, f"{side}_{name}") for name in ("embed_dim", "attention_heads"))
        assert width * getattr(args, f"{side}_attention_heads") == heads * getattr(args, f"{side}_embed_dim")
        assert getattr(narrow, f"{side}_attention_heads") == getattr(args, f"{side}_attention_heads")


@pytest.mark.parametrize("arch", sorted(WITHOUT_LOOP))
def test_what_has_no_loop_over_depth_is_rejected(arch):
    args = options(arch)
    args.arch = arch
    with pytest.raises(ValueError, match=f"--arch={arch}: defines no model without a loop"):
        ARCH_MODEL_REGISTRY[arch].unshared(args, {"encoder": 1, "decoder": 1})


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ("ringformer_base", "--dropout 0 --attention-signal before"),
        ("universal", "--init admin"),
        ("cycle", "--encoder-order 0,1,1,2 --decoder-order 0,0"),
        ("ilr_small", "--block-loops 3 --inject-embedding --inject-adapter"),
        ("cycle_lm", "--adaptive-input-cutoff none --adaptive-softmax-cutoff none"),
        ("cycle_lm", ""),  # its smallest band has one column
    ],
)
def test_controls_keep_the_options_that_are_not_of_a_loop(arch, flags):
    args, _, words = controls(arch, *flags.split(), names=["once"])
    control = options(*arch_and_flags(words["once"]))
    for name in ("dropout", "init", "activation_fn", "position", "adaptive_input_cutoff", "encoder_normalize_before"):
        assert getattr(control, name, None) == getattr(args, name, None)
    assert not {"inject_embedding", "inject_adapter"} & {
        name for name, value in vars(control).items() if value not in (None, False)
    }


def test_a_control_has_the_criterion_of_elastic_depth_without_a_depth():
    words = ["--arch", cli.ARCH, "--criterion", "elastic_cross_entropy", "--mixed-depth", "--depth-range=1-2"]
    looped = TextControls(models.saved_options(cli.ARCH), words, models.on_meta(cli.ARCH), built)
    once = looped.unshared({"encoder": 1, "decoder": 1})
    assert once[:2] == ["--criterion", "elastic_cross_entropy"]
    assert not [word for word in once if "depth" in word]


def test_heads_of_both_sides_grow_in_proportion():
    words = ["ringformer_base", "--encoder-attention-heads", "4", "--decoder-attention-heads", "8"]
    found = TextControls(options(*words), ["--arch", *words], models.on_meta(*words), built).more_heads(1, 7)
    sizes = dict(embed_dim=640, ffn_embed_dim=2567)
    widths = {f"{side}_{name}": size for side in models.SIDES for name, size in sizes.items()}
    assert found == {**widths, "encoder_attention_heads": 5, "decoder_attention_heads": 10}


@pytest.mark.parametrize(("width", "narrower"), [(36, 32), (40, 32)])
def test_heads_lose_two_columns_or_one_of_an_odd_number(width, narrower):
    words = ["ringformer_base"]
    for side in models.SIDES:
        words += [f"--{side}-embed-dim", str(width), f"--{side}-attention-heads", "4", f"--{side}-ffn-embed-dim", "90"]
    found = TextControls(options(*words), ["--arch", *words], models.on_meta(*words), built).narrower_heads(-1, 7)
    sizes = dict(embed_dim=narrower, ffn_embed_dim=90 * narrower // width + 7)
    assert found == {f"{side}_{name}": size for side in models.SIDES for name, size in sizes.items()}


FLAGS = [
    *cli.MODEL,
    *("--optimizer", "adam", "--lr", "0.01", "--criterion", "cross_entropy", "--dropout", "0", "--batch-size", "32"),
    *("--no-epoch-checkpoints", "--cpu", "--num-workers", "0", "--max-update", "6"),
]


ELASTIC = ["--arch", cli.ARCH, "--criterion", "elastic_cross_entropy"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--arch", "transformer"], "--arch=transformer: must be a looped model of this plugin"),
        (["--arch", "vanilla_tiny"], "--arch=vanilla_tiny: runs each of its blocks once; must be a looped model"),
        (["--arch", "one_wide_ffn_tiny"], "--arch=one_wide_ffn_tiny: defines no model without a loop"),
        (["--arch", cli.ARCH, "--seed", "3"], "--seed=3: is set by --seeds"),
        (["--arch", cli.ARCH, "--save-dir", "x"], "--save-dir=x: is set by --output"),
        (["--arch", cli.ARCH, "--reset-optimizer"], "--reset-optimizer: would start anew where an interrupted"),
        (["--arch", cli.ARCH, "--reset-meters"], "--reset-meters: would start anew where an interrupted"),
        (["--arch", cli.ARCH, "--reset-dataloader"], "--reset-dataloader: would start anew where an inter"),
        (["--arch", cli.ARCH, "--checkpoint-suffix", "x"], "--checkpoint-suffix=x: would hide the checkpoints"),
        (["--arch", cli.ARCH, "--no-save-optimizer-state"], "--no-save-optimizer-state: would leave nothing to"),
        pytest.param(
            ["--arch", cli.ARCH, "--continue-once", "x"],
            "--continue-once=x: has the weights of one row",
            marks=pytest.mark.skipif(cli.is_official(), reason="fairseq 0.12.2 has no --continue-once"),
        ),
        (["--arch", cli.ARCH, "--encoder-attention-heads", "3"], "--encoder-attention-heads=3: must divide"),
        (["--arch", cli.ARCH, "--rates", "1,2", "--disable-validation"], "--disable-validation: leaves --rates"),
        (["--arch", cli.ARCH, "--wrong", "3"], "--wrong 3"),
        (["--arch", cli.ARCH, "--score-sentences", "0"], "--score-sentences=0: must be >= 1"),
        ([*ELASTIC, "--depth-range", "4-2"], "--depth-range=4-2: must be MIN-MAX with 1 <= MIN < MAX"),
        (["--arch", cli.ARCH, "--score", "--gen-subset none"], "none"),
        (["--arch", cli.ARCH, "--score", "--beem 5"], "unrecognized arguments: --beem 5"),
        (["--arch", cli.ARCH, "--score", "--scoring chrf"], "--scoring=chrf: must be sacrebleu or bleu"),
        (["--arch", cli.ARCH, "--score", "--model-overrides='{1: 2}'"], "is set by the comparison"),
        (["--arch", cli.ARCH, "--lr-scheduler", "triangular", "--max-lr", "0.001"], "max_lr must be more than lr"),
    ],
)
def test_wrong_flags_are_rejected_before_anything_is_trained(corpus, tmp_path, rejected, words, rule):
    assert rule in rejected(compare.main, corpus.data, "--output", tmp_path / "out", *FLAGS, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("stages", "stretched"),
    [
        (
            "tri_stage --warmup-steps 1 --hold-steps 2 --decay-steps 3",
            "--warmup-steps=2 --hold-steps=4 --decay-steps=6",
        ),
        ("step --lr-deacy-period 3", "--lr-deacy-period=6"),  # fairseq spells it so
        ("cosine --lr-period-updates 3 --warmup-updates 1", "--lr-period-updates=7"),  # which begin after the warm-up
        ("cosine --max-update 60 --warmup-updates 2", "--lr-period-updates=118"),  # of a control that ended before
        ("polynomial_decay --max-update 60 --warmup-updates 2", "--total-num-update=120"),  # the same
        ("fixed --patience 3 --stop-time-hours 1", "--patience=-1 --stop-time-hours=0"),
    ],
)
def test_the_row_time_stretches_every_stage_of_a_schedule(corpus, tmp_path, stages, stretched):
    stages = ("--lr-scheduler", *stages.split())
    words = [str(word) for word in (corpus.data, *FLAGS, "--arch", cli.ARCH, *stages)]
    args = fairseq_options.parse_args_and_arch(compare.command_line(), [*words, "--output", str(tmp_path)])
    comparison = compare.TextComparison(args, words)
    (row,) = comparison.rows(["looped"])
    command = list(comparison.steps(row, 7, tmp_path, Length(9, stretch=2.0))[0].commands[0].words)
    assert command[command.index("--max-update", command.index("--max-epoch")) + 1] == "9"
    assert set(stretched.split()) <= set(command)
    given = command[command.index("fairseq_cli.train") + 1 :]
    assert fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), given).seed == 7


@pytest.mark.parametrize(("maximize", "validation"), [(False, 3.5), (True, -3.5)])
def test_a_lower_validation_is_better_whatever_the_metric(tmp_path, maximize, validation):
    meters = [(1, "train_wall", "stopwatch", {"sum": 2.0}), (1, "wpb", "average", {"sum": 100.0})]
    extra = {"best": 3.5, "metrics": {"default": meters}}
    (tmp_path / "checkpoints").mkdir()
    state = {"model": {}, "extra_state": extra, "optimizer_history": [{"num_updates": 4}, {"num_updates": 8}]}
    torch.save(state, tmp_path / "checkpoints" / "checkpoint_last.pt")
    comparison = compare.TextComparison.__new__(compare.TextComparison)
    comparison.args = Namespace(maximize_best_checkpoint_metric=maximize)
    found = {"updates": 8, "seconds": 2, "tokens/s": 50, "validation": validation}
    assert comparison._trained(tmp_path, "") == found


@pytest.mark.parametrize(("limits", "seconds"), [((6, 0), 12), ((0, 2), 40), ((60, 2), 40), ((6, 2), 12)])
def test_the_first_limit_ends_a_training(monkeypatch, limits, seconds):
    monkeypatch.setattr(compare, "time_of_update", lambda args: (2.0, 10))  # of 10 updates an epoch
    comparison = compare.TextComparison.__new__(compare.TextComparison)
    limits = ["--max-update", str(limits[0]), "--max-epoch", str(limits[1])]
    assert comparison.seconds(Namespace(flags=["data", *FLAGS, "--arch", cli.ARCH, *limits])) == seconds


OWN = """
from fairseq_plugin.models.ringformer import PUBLISHED, TINY, RingFormer, vanilla_layers
from fairseq_plugin.register import register_family

class Own(RingFormer):
    unshared = staticmethod(vanilla_layers)

register_family("own_family", Own, {"own_tiny": TINY}, **PUBLISHED)
"""


@pytest.mark.slow
def test_an_architecture_of_ones_own_is_compared(corpus, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text(OWN)
    words = [corpus.data, "--output", tmp_path / "out", *FLAGS, "--arch", "own_tiny"]
    words += ["--user-dir", tmp_path / "own", "--rows", "narrow", "--score", "--max-len-b 15", "--max-update", "2"]
    run(*words)
    runs = pd.read_csv(tmp_path / "out" / "runs.csv").set_index("row")
    assert runs.score.notna().all()
    log = (tmp_path / "out" / "narrow" / "seed1" / "score.log").read_text()
    assert f"Translated {corpus.sentences['test']:,} sentences" in log
    assert 0.9 * runs.parameters.looped <= runs.parameters.narrow <= runs.parameters.looped


@pytest.mark.slow
def test_a_fork_trains_as_its_command_does_bit_for_bit(corpus, tmp_path):
    """The starter is a process of its own, and so is the command: neither is a fork of the tests' interpreter."""
    weights = []
    for name, imports in {"own": (), "fork": compare.UPSTREAM}.items():
        flags = [corpus.data, "--arch", cli.ARCH, *FLAGS, "--dropout", "0.1", "--save-dir", tmp_path / name]
        train = ["fairseq_cli.train", *flags, "--user-dir", compare.USER_DIR]
        runner = Runner(imports=imports)
        assert runner.run(Command.of(sys.executable, "-m", *train), tmp_path / f"{name}.log") == 0
        runner.close()
        weights.append(load_safely(tmp_path / name / "checkpoint_last.pt")["model"])
    own, fork = weights
    assert own.keys() == fork.keys()
    assert all(torch.equal(own[key], fork[key]) for key in own)


def run(*words) -> str:
    """Runs the command; its steps are forks of the warm interpreter, too."""
    code = f"import sys; sys.executable = {str(cli.stand_ins() / 'python')!r}; "
    return cli.python("-c", code + "from fairseq_plugin import compare; compare.main()", *words)


@pytest.mark.slow
def test_a_comparison_from_end_to_end(corpus, tmp_path):
    """Part of the test set is decoded; the comparison of an own architecture decodes all of it."""
    output = tmp_path / "out"
    words = [corpus.data, "--output", output, "--rows", "once,storage,storage_time"]
    words += ["--score", "--beam 2 --max-len-b 15", "--score-sentences", "20", "--arch", cli.ARCH, *FLAGS]
    said = run(*words, "--dry-run")
    assert "| storage " in said
    assert not output.exists()
    commands = [shlex.split(line) for line in said.splitlines() if "fairseq_cli.train" in line]
    assert len(commands) == 3
    one = ["fairseq_cli.train", "--distributed-world-size", "1"]  # before the flags, which may have another
    assert all(command[command.index(one[0]) :][:3] == one for command in commands)
    run(*words)
    runs = pd.read_csv(output / "runs.csv")
    assert list(runs["row"]) == ["looped", "once", "storage", "storage_time"]
    assert runs[["score", "seconds", "decoding"]].notna().all(axis=None)
    looped, storage, longer = (runs[runs["row"] == name].iloc[0] for name in ("looped", "storage", "storage_time"))
    assert longer["updates"] == max(1, round(storage["updates"] * looped["seconds"] / storage["seconds"]))
    assert storage["updates"] == 6
    page = (output / "comparison.md").read_text()
    assert "one seed, so no interval" in page
    result = output / "once" / "seed1" / "score.json"
    decoded = re.search(r"Translated ([\d,]+) sentences", result.with_name("score.log").read_text())
    assert 10 <= int(decoded[1].replace(",", "")) <= 30
    kept = {path: path.stat().st_mtime_ns for path in output.glob("*/*/*.json") if path != result}
    result.unlink()
    again = run(*words)
    log = result.with_name("score.log")
    assert [line for line in again.splitlines() if line.endswith("...")] == [
        f"once, seed 1: score, logged in {log} ..."
    ]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert json.loads(result.read_text())["score"] == runs[runs["row"] == "once"].iloc[0]["score"]


@pytest.mark.slow
def test_texts_are_scored_by_perplexity(german, tmp_path):
    flags = ["--task", "language_modeling", "--tokens-per-sample", "16", "--sample-break-mode", "none"]
    flags += FLAGS[len(cli.MODEL) :]
    flags += ["--arch", "ilr_small", "--decoder-layers", "1", "--reuse-map", "2", "--decoder-embed-dim", "16"]
    words = [german.data, "--output", tmp_path, "--rows", "once", "--rates", "1e-6,0.01", *flags]
    run(*words)
    runs = pd.read_csv(tmp_path / "runs.csv")
    assert (runs["score"] > 1).all()
    assert (runs["rate"] == 0.01).all()
    assert "perplexity by" in (tmp_path / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("more", "scored"), [([], "checkpoint_best.pt"), (["--disable-validation"], "checkpoint_last.pt")]
)
def test_the_best_checkpoint_is_scored_unless_nothing_tells_it(corpus, tmp_path, more, scored):
    words = [str(word) for word in (corpus.data, *FLAGS, "--arch", cli.ARCH, *more)]
    args = fairseq_options.parse_args_and_arch(compare.command_line(), [*words, "--output", str(tmp_path)])
    comparison = compare.TextComparison(args, words)
    _, score = comparison.steps(*comparison.rows(["looped"]), 7, tmp_path)
    assert score.commands[0].words[-2:] == ("--path", str(tmp_path / "checkpoints" / scored))
