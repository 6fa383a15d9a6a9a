"""python -m fairseq_plugin.depth: the depth curve of a checkpoint, and the safe range stored in the file."""

import csv
import shutil

import pytest
from fairseq import checkpoint_utils

from fairseq_plugin import depth
from recurrence.loop import named_loops
from tests.support import cli, models

SEARCH = ("--gen-subset", "valid", "--beam", "1", "--max-len-b", "15", "--cpu")


@pytest.mark.parametrize(
    ("apart", "names"),
    [
        (False, ["1", "2", "3", "4"]),
        (True, [*(f"encoder {n}" for n in (1, 2, 3)), *(f"decoder {n}" for n in (1, 2, 3)), "4"]),
    ],
)
def test_the_depths_that_are_tried(apart, names):
    loops = named_loops(models.tiny("universal_tiny"))
    tried = list(depth.assignments(loops, apart))
    assert [name for name, _ in tried] == names
    assert tried[-1][1] == {"encoder.loop": 4, "decoder.loop": 4}
    assert tried[0][1] == ({"encoder.loop": 1, "decoder.loop": 4} if apart else dict.fromkeys(loops, 1))


@pytest.mark.parametrize("arch", ["vanilla_tiny", "recurrent_lm", "ilr_small"])
def test_a_checkpoint_of_one_depth_is_rejected(arch):
    model = models.tiny(arch)
    with pytest.raises(ValueError, match="a checkpoint runs at other depths where its blocks run again in turn"):
        list(depth.assignments(named_loops(model), False))


@pytest.mark.slow
def test_the_curve_of_a_checkpoint(trained, corpus, tmp_path, capsys, caplog):
    path = tmp_path / "checkpoint.pt"
    shutil.copy(trained.folder / "checkpoint_last.pt", path)
    flags = ("--path", str(path), *SEARCH, "--scoring", "sacrebleu", "--write", "--tolerance", "0")
    depth.main([str(corpus.data), *flags, "--output", str(tmp_path / "curve.csv")])
    with (tmp_path / "curve.csv").open(newline="") as file:
        one, two = csv.DictReader(file)
    assert (one["depth"], two["depth"], two["agreement"]) == ("1", "2", "1.0")
    expected = cli.generate(corpus.data, path, *SEARCH, "--scoring", "sacrebleu")
    assert f"BLEU = {float(two['score']):.1f}"[:9] in expected
    smallest = 1 if float(one["score"]) >= float(two["score"]) else 2
    assert f"decoder.loop: safe from {smallest} to 2 passes" in capsys.readouterr().out
    caplog.clear()
    checkpoint_utils.load_model_ensemble_and_task([str(path)], dict(data=str(corpus.data), decoder_layers=3))
    assert f"decoder.loop: runs 3 passes, outside the safe range {smallest} to 2" in caplog.text


def test_several_checkpoints_are_rejected(capsys):
    with pytest.raises(SystemExit):
        depth.main(["data", "--path", "a.pt:b.pt"])
    assert "--path=a.pt:b.pt: must be one checkpoint" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [["--prefix-size", "2"], [], ["--fp16"]], ids=["prefix", "no limit of the batch", "half precision"]
)
def test_the_score_at_full_depth_is_that_of_generate(trained, corpus, tmp_path, flags):
    path = trained.folder / "checkpoint_last.pt"
    search = (*SEARCH, "--max-len-a", "0.5", "--scoring", "sacrebleu", *flags)
    depth.main([str(corpus.data), "--path", str(path), *search, "--output", str(tmp_path / "curve.csv")])
    with (tmp_path / "curve.csv").open(newline="") as file:
        *_, full = csv.DictReader(file)
    assert f"BLEU = {float(full['score']):.1f}"[:9] in cli.generate(corpus.data, path, *search)


def test_constraints_are_rejected(capsys):
    with pytest.raises(SystemExit):
        depth.main(["data", "--path", "a.pt", "--constraints"])
    assert "--constraints=ordered: not supported here" in capsys.readouterr().err
