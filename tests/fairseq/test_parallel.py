"""Data parallel training on CPUs: two processes equal one, however they are started."""

import pytest

from fairseq_repairs.parallel import free_port
from tests.support import cli

pytestmark = pytest.mark.slow

STEPS = ("--batch-size", "8", "--max-update", "6", "--save-interval-updates", "3")
FLAGS = (*cli.WITHOUT_DROPOUT, *STEPS, *cli.BACKEND)


def losses(log: str) -> dict[float, float]:
    """Return the loss of every update that was logged, by its number; each may be logged once."""
    lines = cli.logged(log)
    found = {line["num_updates"]: line["loss"] for line in lines}
    assert len(found) == len(lines)
    return found


@pytest.fixture(scope="module")
def one_process(corpus, tmp_path_factory) -> str:
    """Log of one process with the total batch of two ranks."""
    return cli.train(corpus.data, tmp_path_factory.mktemp("one"), *FLAGS, "--update-freq", "2", "--no-save")


@pytest.fixture(scope="module")
def expected(one_process) -> dict[float, float]:
    """Its losses, which change from one update to the next."""
    found = losses(one_process)
    assert list(found) == [1, 2, 3, 4, 5, 6]
    assert len(set(found.values())) == 6
    return found


def test_two_processes_equal_one_with_the_same_total_batch(corpus, one_process, expected, tmp_path):
    """Started by torchrun; only the environment gives their number."""
    log = cli.torchrun(2, *cli.train_command(corpus.data, tmp_path, *FLAGS))
    assert losses(log) == pytest.approx(expected, abs=0.0011)
    assert "training on 2 devices" in log
    one, two = (cli.logged(output, "valid")[-1]["valid_loss"] for output in (one_process, log))
    assert two == pytest.approx(one, abs=0.0011)


def test_two_nodes_train_the_same_and_resume(corpus, expected, tmp_path):
    program = ("-m", "fairseq_cli.train", *cli.train_command(corpus.data, tmp_path / "nodes", *FLAGS))
    first, second = cli.two_nodes(*program, "--max-update", "3")
    assert losses(first) == pytest.approx({number: expected[number] for number in (1, 2, 3)}, abs=0.0011)
    assert "training on 2 devices" in first
    assert losses(second) == {}  # only the first node logs them
    first, _ = cli.two_nodes(*program)
    assert losses(first) == pytest.approx({number: expected[number] for number in (4, 5, 6)}, abs=0.0011)


def test_torchrun_reports_the_line_with_which_a_rank_ends(corpus, tmp_path):
    path = tmp_path / "cut.pt"
    path.write_bytes(b"PK\x03\x04")
    log = cli.torchrun(2, *cli.train_command(corpus.data, tmp_path, *FLAGS, "--restore-file", path), fails=True)
    assert "Traceback" in log  # torchrun's own
    assert 'fairseq_cli/train.py", line' not in log  # none of the command
    cause = log.partition("Root Cause")[2]
    assert f"train.py: error: {path} is truncated after 4 bytes" in cause


def test_init_method_and_world_size_start_the_ranks(corpus, expected, tmp_path):
    meeting = ("--distributed-init-method", f"tcp://localhost:{free_port()}", "--distributed-world-size", "2")
    log = cli.train(corpus.data, tmp_path, *FLAGS, *meeting, "--no-save")
    assert losses(log) == pytest.approx(expected, abs=0.0011)


def test_workers_of_spawned_ranks_are_forks(tmp_path):
    """Spawned ones would not have the repairs, and cannot unpickle a data set that holds its task."""
    flags = ("--task", "automaton", "--arch", "ilr_small", "--criterion", "answer_cross_entropy", "--batch-size", "8")
    ranks = ("--distributed-world-size", "2", "--disable-validation", "--no-save", "--optimizer", "adam")
    lines = ("--max-update", "2", "--log-format", "json", "--log-interval", "1")
    command = ("fairseq-train", *cli.HOST, *flags, *ranks, *cli.WORKER, *lines)
    assert list(losses(cli.run(*command, "--save-dir", tmp_path))) == [1, 2]


def test_the_last_update_of_an_epoch_is_divided_by_all_its_batches(tmp_path):
    """Of three batches, the second rank has one, and then an empty one."""
    flags = ("--task", "automaton", "--arch", "ilr_small", "--criterion", "answer_cross_entropy", "--batch-size", "8")
    flags += ("--train-texts", "24", "--optimizer", "adam", "--dropout", "0", "--disable-validation", "--no-save")
    lines = ("--max-update", "1", "--log-format", "json", "--log-interval", "1", "--save-dir", tmp_path)
    found = []
    for ranks, batches in ((1, 4), (2, 2)):
        split = ("--distributed-world-size", ranks, "--update-freq", batches)
        (line,) = cli.logged(cli.run("fairseq-train", *cli.HOST, *flags, *split, *lines))
        found.append((float(line["gnorm"]), float(line["bsz"])))
    assert found[1] == pytest.approx(found[0], abs=0.0011)


def test_a_rank_that_starts_no_process_does_not_end_with_success(corpus, tmp_path):
    meeting = ("--distributed-init-method", "tcp://localhost:29511", "--distributed-world-size", "2")
    log = cli.train(corpus.data, tmp_path, *FLAGS, *meeting, "--distributed-rank", "1", fails=True)
    assert "--distributed-rank 1" in log
    assert "torchrun" in log
    assert not losses(log)
