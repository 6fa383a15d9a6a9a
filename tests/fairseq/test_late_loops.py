"""Late loops in fairseq: --loop-after-updates, in training, over a resumed run, and in generation."""

import logging
import re
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils, options

from fairseq_plugin import average, compare, depth
from fairseq_repairs.checkpoints import load_safely
from tests.support import cli, models
from tests.support.conversion import as_fairseq
from tests.support.states import same_state

LATE = ("--loop-after-updates", "3")


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ("ringformer_base", ()),
        ("cycle", ("--encoder-order", "0,1,1,2,0", "--decoder-order", "1,0,1")),
        ("recursive_iwslt_de_en", ()),
        ("s2t_cycle", ()),
        ("ilr_small", ("--position", "rope", "--block-loops", "2", "--inject-embedding")),
        ("cycle_lm", ()),
    ],
    ids=str,
)
def test_each_block_runs_once_before_the_loops_begin(arch, flags):
    model, whole, batch = models.tiny(arch, *flags, *LATE), models.tiny(arch, *flags), models.inputs(arch)
    model.train_elastic(1)
    for update in (0, 2, 3, 2):
        model.set_num_updates(update)
        for loop, other in zip(models.loops(model), models.loops(whole)):
            first = tuple(sorted(map(other.order.index, range(len(other.blocks)))))
            other.chosen = first if update < 3 else None
            assert loop.running == other.running
        torch.testing.assert_close(model(*batch)[0], whole(*batch)[0], rtol=0, atol=0)


def test_only_a_side_that_loops_begins_late():
    model = models.tiny("cycle", "--encoder-order", "0,1", "--decoder-order", "0,1,1", *LATE)
    model.train_elastic(1)
    assert [loop.training_depth.loop_after for loop in models.loops(model)] == [0, 3]


def test_a_checkpoint_from_before_converts_to_the_layers_that_were_trained():
    flags = ("--encoder-order", "0,1,1,1,2", "--decoder-order", "0,0,1", "--residual-rank", "2")
    trained, used = models.tiny("cycle", *flags, *LATE), models.tiny("cycle", *flags, seed=1)
    trained.train_elastic(1)
    trained.set_num_updates(0)
    used.load_state_dict(trained.state_dict())
    converted = as_fairseq(used, models.saved_options("cycle", *flags))
    assert (len(converted.encoder.layers), len(converted.decoder.layers)) == (3, 2)


def test_further_training_without_the_option_runs_all_passes_and_says_so(caplog):
    trained, tuned = models.tiny("ringformer_base", *LATE), models.tiny("ringformer_base")
    trained.train_elastic(1)
    trained.set_num_updates(0)
    tuned.load_state_dict(trained.state_dict())
    with caplog.at_level(logging.INFO):
        tuned.set_num_updates(0)
        tuned.set_num_updates(1)
    (said,) = (line for line in caplog.messages if line.startswith("update"))
    assert said == "update 0: encoder 4 of 4 passes (0 0 0 0), decoder 4 of 4 passes (0 0 0 0)"


FLAGS = (
    *("--encoder-layers", "4", "--decoder-layers", "3", "--loop-after-updates", "4", "--weight-decay", "0.5"),
    *("--batch-size", "8", "--max-update", "8", "--save-interval-updates", "2", "--validate-interval-updates", "2"),
)
FEW = ("--gen-subset", "valid", "--beam", "1", "--max-len-b", "20")


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory) -> tuple[Path, str]:
    """Folder and log of a training of 8 updates, 4 of them before the loops begin."""
    folder = tmp_path_factory.mktemp("late")
    return folder, cli.train(corpus.data, folder, *FLAGS)


def test_the_log_says_when_the_depth_changes(trained):
    _, log = trained
    assert re.findall(r"update (\d+): (encoder .*)", log) == [
        ("0", "encoder 1 of 4 passes (0), decoder 1 of 3 passes (0)"),
        ("4", "encoder 4 of 4 passes (0 0 0 0), decoder 3 of 3 passes (0 0 0)"),
    ]


@pytest.mark.parametrize("start", [2, 4])
def test_a_resumed_run_ends_with_the_same_weights(corpus, trained, start, tmp_path):
    """From before the loops begin, and from the checkpoint after the last update of one run each."""
    folder, log = trained
    again = cli.train(corpus.data, tmp_path, *FLAGS, "--restore-file", folder / f"checkpoint_1_{start}.pt")
    assert [line["loss"] for line in cli.logged(again)] == [line["loss"] for line in cli.logged(log)][start:]
    assert same_state(*(load_safely(path / "checkpoint_last.pt")["model"] for path in (tmp_path, folder)))


def test_checkpoints_generate_at_the_depth_of_their_training(corpus, trained, tmp_path):
    """Those from before run each block once, which is what validation measured; averages over the start run all."""
    folder, log = trained
    before, after, mean = (folder / "checkpoint_1_4.pt", folder / "checkpoint_1_6.pt", tmp_path / "average.pt")
    average.main(["--inputs", str(before), str(after), "--output", str(mean)])
    for path, passes in ((before, [1, 1]), (after, [4, 3]), (mean, [4, 3])):
        (model,), *_ = checkpoint_utils.load_model_ensemble_and_task([str(path)], dict(data=str(corpus.data)))
        assert [len(loop.running) for loop in models.loops(model)] == passes
    early = cli.generate(corpus.data, before, *FEW)
    assert "encoder.loop: runs each block once, 1 of 4 passes, as in training" in early
    assert len(cli.hypotheses(early)) == corpus.sentences["valid"]
    (valid,) = (line for line in cli.logged(log, "valid") if line["valid_num_updates"] == 4)
    found = cli.run("fairseq-validate", corpus.data, *cli.HOST, "--batch-size", "8", "--path", before)
    assert re.search(rf"\| loss {valid['valid_loss']:g} ", found)


def test_a_checkpoint_from_before_has_no_depth_curve(corpus, trained, rejected):
    words = (corpus.data, "--path", trained[0] / "checkpoint_1_4.pt", *FEW, "--cpu")
    assert "the checkpoint is from before its loops began, and so has one depth" in rejected(depth.main, *words)


def test_a_comparison_does_not_score_a_checkpoint_from_before(corpus, trained, tmp_path):
    folder, _ = trained
    words = [str(corpus.data), *cli.MODEL, "--arch", cli.ARCH, *cli.OPTIMISER, *FLAGS]
    args = options.parse_args_and_arch(compare.command_line(), [*words, "--output", str(tmp_path)])
    comparison = compare.TextComparison(args, words)
    _, score, _ = comparison.steps(comparison.rows(["looped"])[0], 1, tmp_path)
    early, late = (
        cli.generate(corpus.data, folder / f"checkpoint_1_{update}.pt", *FEW, "--scoring", "sacrebleu", "--quiet")
        for update in (4, 8)
    )
    assert score.read(tmp_path, late).keys() == {"score", "decoding"}
    with pytest.raises(ValueError, match="scores checkpoint_best.pt from before the loops began"):
        score.read(tmp_path, early)


@pytest.mark.slow
def test_half_precision_needs_an_optimizer_that_keeps_idle_parameters(corpus, tmp_path):
    """Without weight decay it does: parameters that never had a gradient have no momentum."""
    log = cli.train(corpus.data, tmp_path, *FLAGS, "--bf16", fails=True)
    assert "error: --bf16: its optimizer moves and decays all parameters" in log
    cli.train(corpus.data, tmp_path, *FLAGS, "--bf16", "--weight-decay", "0", "--max-update", "4")
    first, last = (load_safely(tmp_path / f"checkpoint_1_{update}.pt")["model"] for update in (2, 4))
    later = [key for key in last if re.search(r"loop\.own\.[1-3]\.", key)]
    assert all(torch.equal(first[key], last[key]) for key in later)
