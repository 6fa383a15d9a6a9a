"""What fairseq-train says where no log was chosen."""

import math

import pytest
from fairseq.data.iterators import CountingIterator, GroupedIterator
from fairseq.logging.progress_bar import SimpleProgressBar

from fairseq_plugin import log
from tests.support import cli

STATS = dict(loss=5.0, nll_loss=4.0, ppl=16, wps=900.0, ups=2.0, num_updates=40, lr=0.001, gnorm=1.0, accuracy=0.5)
SHORT = ["--user-dir", cli.PLUGIN, "--source-lang", "en", "--target-lang", "de", "--arch", "ringformer_tiny"]


@pytest.mark.parametrize(
    ("limits", "update", "left"),
    [((100, math.inf), "40/100", "0:00:30"), ((0, 20), "40/60", "0:00:10"), ((0, math.inf), 40, None)],
)
def test_a_line_has_update_loss_rate_speed_and_time_left(limits, update, left):
    line = log.brief(STATS, *limits)
    expected = dict(update=update, loss=5.0, wps=900.0, lr=0.001, accuracy=0.5, left=left)
    assert line == {name: value for name, value in expected.items() if value is not None}


def test_updates_are_counted_to_the_end_of_the_last_epoch():
    """By the length of the present epoch: with `--update-freq 1,4` the second has a quarter of the first's updates."""
    batches = GroupedIterator(CountingIterator(range(20)), 4)
    bar = SimpleProgressBar(batches, epoch=2)
    left = [log.updates_left(bar, 3) for _ in bar]
    assert left == [9, 8, 7, 6, 5]
    assert log.updates_left(bar, 0) == math.inf


@pytest.mark.slow
def test_a_training_says_little_before_its_first_result(corpus, tmp_path):
    flags = [corpus.data, *SHORT, *cli.OPTIMISER, "--max-tokens", "500", "--max-update", "2", "--log-interval", "1"]
    flags += ["--no-save", "--save-dir", tmp_path]
    short = cli.run("fairseq-train", *flags, fresh=True).splitlines()
    first = next(number for number, line in enumerate(short) if "| train_inner |" in line)
    assert first <= 20
    assert "update=1/2, loss=" in short[first]
    assert "left=0:00:00" in short[first + 1]  # fairseq knows no speed before
    debug = cli.run("fairseq-train", *flags, fresh=True, env={"LOGLEVEL": "DEBUG"})
    assert "FutureWarning" in debug
    for whole in (debug, cli.run("fairseq-train", *flags, "--log-format", "simple")):
        assert "(encoder): LoopedEncoder(" in whole
        assert "num_updates=1, " in whole
