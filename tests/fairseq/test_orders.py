"""Any order in fairseq: what it builds, replaces and rejects; depth and fairseq's commands."""

import pytest
import torch

from fairseq_plugin.elastic import at_depths, loops_by_side
from tests.support import cli, models
from tests.support.stacks import depth_log

MIDDLE = ("--encoder-order", "0,1,1,1,2", "--decoder-order", "0,0,1")


def orders(arch: str, *flags: str) -> dict[str, tuple[int, ...]]:
    """The orders of an architecture at its full size."""
    return {side: loop.order for side, loop in loops_by_side(models.on_meta(arch, *flags)).items()}


@pytest.mark.parametrize("arch", ["cycle", "sequence", "universal_small", "takase_vanilla", "s2t_cycle_rev"])
def test_an_order_replaces_the_layers_of_the_preset(arch):
    assert orders(arch, *MIDDLE) == {"encoder": (0, 1, 1, 1, 2), "decoder": (0, 0, 1)}
    assert orders(arch, *MIDDLE, "--encoder-layers", "5") == orders(arch, *MIDDLE)


def test_each_side_has_its_own():
    plain = orders("cycle")
    assert orders("cycle", *MIDDLE[:2]) == {**plain, "encoder": (0, 1, 1, 1, 2)}
    assert orders("cycle", *MIDDLE[2:]) == {**plain, "decoder": (0, 0, 1)}
    flags = (*MIDDLE[2:], "--encoder-layers", "4", "--share-layer-num", "2")
    assert orders("sequence", *flags) == {"encoder": (0, 0, 1, 1), "decoder": (0, 0, 1)}
    assert models.loops(models.tiny("cycle_lm", "--decoder-order", "0,1,2,1"))[0].order == (0, 1, 2, 1)


def test_other_options_of_the_family_act():
    model = models.tiny("cycle", *MIDDLE, "--init", "admin")
    assert [len(loop.own) for loop in models.loops(model)] == [5, 3]
    assert [len(own.residuals) for own in models.loops(model)[1].own] == [3, 3, 3]


def test_a_checkpoint_runs_in_another_order_of_its_blocks(caplog):
    """Each pass has vectors of its own."""
    trained = models.tiny("cycle", *MIDDLE, "--init", "admin")
    flags = ("--encoder-order", "0,1,1,2", "--decoder-order", "0,0,0,1", "--init", "admin")
    used, batch = models.tiny("cycle", *flags, seed=1), models.inputs("cycle")
    used.load_state_dict(trained.state_dict())
    assert depth_log(caplog) == [
        "encoder.loop: runs at depth 4 (0 1 1 2), trained at 5 (0 1 1 1 2)",
        "decoder.loop: runs at depth 4 (0 0 0 1), trained at 3 (0 0 1)",
    ]
    with at_depths(trained, {"encoder": 4, "decoder": 4}):
        torch.testing.assert_close(used(*batch)[0], trained(*batch)[0], rtol=0, atol=0)


def test_commands_read_the_order_from_the_checkpoint_and_overrides_give_another(corpus, tmp_path):
    layers = ("--encoder-layers", "5", "--decoder-layers", "3")  # instead of cli.MODEL's; the orders have as many
    flags = ("--arch", "sequence", *layers, *MIDDLE, "--init", "admin", "--batch-size", "16")
    cli.train(corpus.data, tmp_path, *flags, "--max-epoch", "2")
    few, overrides = ("--gen-subset", "valid", "--beam", "1", "--max-len-b", "20"), "'encoder_layers': None"
    command = (corpus.data, tmp_path / "checkpoint_last.pt", *few)
    generated = cli.generate(*command)
    assert len(cli.hypotheses(generated)) == corpus.sentences["valid"]
    assert "runs at depth" not in generated  # nothing is logged at the trained depth
    command = (*command, "--model-overrides")
    other = cli.generate(*command, f"{{{overrides}, 'encoder_order': '0,1,1,2'}}")
    assert "encoder.loop: runs at depth 4 (0 1 1 2), trained at 5 (0 1 1 1 2)" in other
    wrong = cli.generate(*command, "{'encoder_layers': 4}", fails=True)
    assert "error: --encoder-layers=4: must be 5, the number of passes in --encoder-order=0,1,1,1,2" in wrong
    more = cli.generate(*command, f"{{{overrides}, 'encoder_order': '0,1,2,3'}}", fails=True)
    assert "encoder.loop.blocks.3" in more
    resumed = cli.train(corpus.data, tmp_path, *flags, "--encoder-order", "0,0,1,1,2", fails=True)
    assert "its optimizer state belongs to other parameters" in resumed


def test_sequence_stores_more_layers_where_the_paper_does(caplog):
    """Figure 2 begins a new layer every N // M passes, so that M = 3 and N = 7 need four layers."""
    model = models.tiny("sequence", "--encoder-layers", "7", "--encoder-unique-layers", "3")
    assert model.encoder.loop.order == (0, 0, 1, 1, 2, 2, 3)
    assert "--encoder-unique-layers=3: the rule of Figure 2 stores 4 layers" in caplog.text
