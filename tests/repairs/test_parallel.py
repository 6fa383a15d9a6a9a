"""Ranks on CPUs: where they meet, and launches that would train nothing or each alone."""

import functools
import sys
import weakref

import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from fairseq_cli import eval_lm, train, validate

from fairseq_repairs import parallel
from tests.support import spawned, upstream


@pytest.fixture
def launched(monkeypatch) -> None:
    """The environment of the second of two processes that torchrun has started."""
    for name, value in zip(parallel.LAUNCHER_VARIABLES, ("localhost", "29500", "1", "2"), strict=True):
        monkeypatch.setenv(name, value)


MEETING = "--distributed-world-size 2 --distributed-init-method tcp://localhost:29511"


class TestParallel:
    @staticmethod
    def config(*flags: str):
        return convert_namespace_to_omegaconf(upstream.arguments("transformer", "--cpu", *flags))

    def test_ranks_without_a_launcher_meet_at_a_free_port(self):
        distributed = self.config("--distributed-world-size", "2").distributed_training
        parallel._prepare_cpu(distributed)
        assert distributed.distributed_init_method.startswith("tcp://localhost:")

    def test_they_meet_at_the_port_of_the_command(self):
        distributed = self.config("--distributed-world-size", "2", "--distributed-port", "29512").distributed_training
        parallel._prepare_cpu(distributed)
        assert distributed.distributed_init_method == "tcp://localhost:29512"

    @pytest.mark.parametrize(
        ("flags", "program", "message"),
        [
            ("--distributed-world-size 0", train, "--distributed-world-size 0: must be >= 1"),
            (MEETING, validate, "--distributed-world-size 2: must be 1; on a CPU, only training"),
            (f"{MEETING} --distributed-rank 1", train, "--distributed-rank 1: must be 0, because on a CPU"),
        ],
    )
    def test_what_a_cpu_cannot_do_is_rejected(self, flags, program, message):
        with pytest.raises(ValueError, match=f"^{message}"):
            distributed_utils.call_main(self.config(*flags.split()), program.main)

    def test_other_commands_stay_in_one_process(self, launched):
        cfg, calls = self.config(), []
        distributed_utils.call_main(cfg, lambda cfg: calls.append(cfg))
        assert calls == [cfg]
        assert cfg.distributed_training.distributed_init_method is None

    def test_started_processes_of_a_program_keep_their_ranks(self, monkeypatch):
        cfg, calls = self.config(*MEETING.split(), "--distributed-no-spawn"), []
        monkeypatch.setattr(distributed_utils, "distributed_main", lambda *given: calls.append(given))

        def main(cfg):
            pass

        distributed_utils.call_main(cfg, main)
        distributed_utils.call_main(cfg, functools.partial(main))
        assert [(given[0], given[2]) for given in calls] == [(0, cfg), (0, cfg)]

    def test_a_spawned_rank_runs_the_repaired_command(self, tmp_path, monkeypatch):
        """As fairseq spawns one for each GPU."""
        started = []
        monkeypatch.setattr(parallel, "_on_cpu", lambda cfg: False)
        parallel.run_ranks_on_cpu(lambda cfg, main: started.append(main), self.config(), eval_lm.main)
        path = tmp_path / "repairs"
        torch.multiprocessing.spawn(spawned.note_repairs, (started[0], path), nprocs=1)
        assert "evaluate_on_each_rank" in path.read_text()

    def test_a_rank_leaves_its_process_groups(self):
        meeting = ("--distributed-init-method", f"tcp://localhost:{parallel.free_port()}")
        alone = ("--distributed-rank", "0", "--distributed-world-size", "1", "--distributed-backend", "gloo")
        seen = []

        def main(cfg):
            group = distributed_utils.get_global_group()
            (found,) = distributed_utils.all_gather_list({"loss": torch.ones(2).half()}, group)
            assert found["loss"].dtype == torch.float32  # as over fairseq's buffer
            seen.extend([torch.distributed.is_initialized(), weakref.ref(group)])

        distributed_utils.distributed_main(0, main, self.config(*meeting, *alone), {})
        assert seen[0]
        assert seen[1]() is None
        assert not torch.distributed.is_initialized()
        assert not hasattr(distributed_utils.get_global_group, "_global_group")

    def test_a_launched_process_that_would_train_alone_is_rejected(self, launched, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["/usr/bin/fairseq-hydra-train"])
        with pytest.raises(ValueError, match=r"distributed_world_size=1: 2 processes were launched"):
            Trainer(self.config(), None, None, None)
