"""The demo: two models of a cellular automaton, and what its report says of them."""

import re

import numpy as np
import pytest
from PIL import Image

from tests.support.recipes import commands, parsed, recipe


def test_both_models_store_the_same_and_fairseq_takes_their_commands(tmp_path):
    trained = [words for words in commands("automaton/run.sh", OUT=str(tmp_path)) if words[0] == "fairseq-train"]
    assert [parsed(words) for words in trained] == ["fairseq-train"] * 2
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"


@pytest.mark.slow
def test_the_demo_prints_a_table_and_draws_a_picture(tmp_path):
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
