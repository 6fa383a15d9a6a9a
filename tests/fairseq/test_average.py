"""Checkpoint averaging: the mean, the rest of the state, and the choice of a folder's last checkpoints."""

import argparse
from collections import OrderedDict

import pytest
import torch

from fairseq_plugin import average
from fairseq_repairs.checkpoints import load_safely


@pytest.fixture
def checkpoints(tmp_path):
    """Three checkpoints of one model, two keys of which share a tensor, in a folder with files of other kinds."""
    chance = torch.Generator().manual_seed(0)
    for epoch in (1, 2, 10):
        weight = torch.randn(40, 50, generator=chance)
        model = OrderedDict(embed=weight, output=weight, bias=torch.randn(3, generator=chance).bfloat16())
        model["version"] = torch.tensor([epoch])
        state = {"model": model, "cfg": {"model": argparse.Namespace(epoch=epoch)}, "last_optimizer_state": {}}
        torch.save(state, tmp_path / f"checkpoint{epoch}.pt")
        torch.save(state, tmp_path / f"checkpoint_{epoch}_{epoch * 100}.pt")
    for name in ("checkpoint_last.pt", "checkpoint_best.pt", "checkpoint1.pt.tmp", "notes.txt"):
        (tmp_path / name).write_text("")
    return tmp_path


def run(folder, *flags) -> dict:
    """The average that the command writes."""
    average.main(["--inputs", str(folder), "--output", str(folder / "average.pt"), *flags])
    return load_safely(folder / "average.pt")


def test_mean_in_double_precision_and_the_rest_of_the_first(checkpoints):
    paths = [checkpoints / f"checkpoint{epoch}.pt" for epoch in (2, 1, 10)]
    state, originals = average.average_checkpoints(paths), [load_safely(path) for path in paths]
    assert list(state["model"]) == ["embed", "output", "bias", "version"]
    for key in ("embed", "output", "bias"):
        tensors = [original["model"][key] for original in originals]
        mean = torch.stack([tensor.double() for tensor in tensors]).mean(0)
        assert state["model"][key].dtype == tensors[0].dtype
        torch.testing.assert_close(state["model"][key], mean.to(tensors[0].dtype), rtol=0, atol=1e-7)
    assert state["model"]["version"].tolist() == [2]
    assert state["cfg"]["model"].epoch == 2
    assert state["last_optimizer_state"] is None


def test_command_line_stores_a_shared_tensor_once(checkpoints):
    model = run(checkpoints, "--num-epoch-checkpoints", "2")["model"]
    first, second = (load_safely(checkpoints / f"checkpoint{epoch}.pt")["model"]["embed"] for epoch in (2, 10))
    torch.testing.assert_close(model["embed"], (first + second) / 2)
    assert model["embed"].data_ptr() == model["output"].data_ptr()
    assert (checkpoints / "average.pt").stat().st_size < 1.5 * 40 * 50 * 4


@pytest.mark.parametrize(
    ("flags", "latest"),
    [
        ("--num-epoch-checkpoints 2", 10),
        ("--num-epoch-checkpoints 2 --checkpoint-upper-bound 9", 2),
        ("--num-update-checkpoints 1", 10),
        ("--num-update-checkpoints 2 --checkpoint-upper-bound 200", 2),
    ],
)
def test_last_checkpoints_by_epoch_and_by_update(checkpoints, flags, latest):
    assert run(checkpoints, *flags.split())["cfg"]["model"].epoch == latest


@pytest.mark.parametrize(
    ("inputs", "flags", "message"),
    [
        ("{}", "--num-epoch-checkpoints 4", "--num-epoch-checkpoints=4: there are only 3 checkpoints by epoch"),
        ("{}", "--num-epoch-checkpoints 0", "--num-epoch-checkpoints=0: must be >= 1"),
        ("{}", "", "not a file; a folder needs --num-epoch-checkpoints"),
        ("{}/nothing.pt", "", "nothing.pt: not a file"),
        ("{}/checkpoint1.pt", "--checkpoint-upper-bound 3", "--checkpoint-upper-bound needs --num-epoch-checkpoints"),
        ("{}/checkpoint1.pt", "--num-epoch-checkpoints 1", "must be one folder"),
    ],
)
def test_options_that_do_not_fit_are_rejected(checkpoints, rejected, inputs, flags, message):
    output = checkpoints / "o.pt"
    words = ("--inputs", inputs.format(checkpoints), "--output", output, *flags.split())
    assert message in rejected(average.main, *words)
    assert not output.exists()


def test_the_folder_of_the_average_is_made(checkpoints):
    output = checkpoints / "averages of mine" / "average.pt"
    average.main(["--inputs", str(checkpoints), "--num-epoch-checkpoints", "1", "--output", str(output)])
    assert load_safely(output)["cfg"]["model"].epoch == 10


@pytest.mark.parametrize("different", ["other", "embed", "order of loop"])
def test_checkpoints_of_different_models_are_rejected(checkpoints, different):
    one, other = (load_safely(checkpoints / f"checkpoint{epoch}.pt") for epoch in (1, 2))
    if different == "order of loop":
        for order, state in (((0, 1), one), ((1, 0), other)):
            state["model"]._metadata = {"loop": {"order": order}}
    else:
        other["model"][different] = torch.zeros(1, 50)
    torch.save(one, checkpoints / "checkpoint1.pt")
    torch.save(other, checkpoints / "other.pt")
    with pytest.raises(ValueError, match=rf"other\.pt: {different} differs from that in .*checkpoint1\.pt"):
        average.average_checkpoints([checkpoints / "checkpoint1.pt", checkpoints / "other.pt"])


@pytest.mark.parametrize("marked", [1, 2])
def test_a_checkpoint_that_tells_no_order_goes_with_any(checkpoints, marked):
    """As those of earlier versions."""
    state = load_safely(checkpoints / f"checkpoint{marked}.pt")
    state["model"]._metadata = {"loop": {"order": (0, 1)}}
    torch.save(state, checkpoints / f"checkpoint{marked}.pt")
    found = average.average_checkpoints([checkpoints / f"checkpoint{epoch}.pt" for epoch in (1, 2)])
    assert found["model"]["version"].tolist() == [1]
