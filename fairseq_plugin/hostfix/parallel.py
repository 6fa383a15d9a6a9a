"""Data parallel runs on machines without a GPU, and no run that trains nothing or trains twice."""

import gc
import inspect
import os
import socket
from collections.abc import Callable
from pathlib import Path

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import ARCH_MODEL_REGISTRY, distributed_fairseq_model
from fairseq.trainer import Trainer
from omegaconf import DictConfig

from fairseq_plugin.hostfix.replace import look_before, replace

LAUNCHER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")


def launched_processes() -> int:
    """Number of processes that torchrun, or a launcher that sets the same variables, has started; 1 without one."""
    launched = all(name in os.environ for name in LAUNCHER_VARIABLES)
    return int(os.environ["WORLD_SIZE"]) if launched else 1


def refuse_sharding(cfg: DictConfig) -> None:
    """Refuses ``--ddp-backend fully_sharded`` for the models of this plugin.

    Raises:
        ValueError: naming the option and what to use.
    """
    name = getattr(cfg.model, "arch", None) or getattr(cfg.model, "_name", None)
    family = ARCH_MODEL_REGISTRY.get(name)
    ours = family is not None and family.__module__.startswith("fairseq_plugin.")
    if ours and cfg.distributed_training.ddp_backend == "fully_sharded":
        raise ValueError(
            "--ddp-backend=fully_sharded: would gather a stored block at each of its runs, and needs "
            "fairscale, which is no longer maintained; must be pytorch_ddp or legacy_ddp"
        )


def cpu_data_parallel() -> None:
    """Run several ranks on the CPU over gloo, under torchrun or started by ``--distributed-world-size``.

    fairseq counts CUDA devices where it should count ranks: without any, it divides by zero, starts no process at
    all and ends with success, or hands a device number to DistributedDataParallel; and it gathers statistics in a CUDA
    buffer wherever there is a GPU, also with ``--cpu``. The other commands stay in one process: fairseq's own
    validation fails on ranks that get unequal numbers of batches.

    Differs from fairseq's own rule: torchrun's world size is taken without ``--distributed-world-size`` too. fairseq
    ignores it then and trains once per process, each overwriting the other's files.
    """

    def count_ranks(call_main: Callable) -> Callable:
        def call_main_on_any_device(cfg, main, **kwargs):
            distributed = cfg.distributed_training
            refuse_sharding(cfg)
            if cfg.common.fp16 and _trains(main) and not torch.cuda.is_available():
                raise ValueError("--fp16: needs a GPU, on which fairseq scales its losses; --bf16 trains without one")
            if _on_cpu(cfg) and not _trains(main):
                _refuse_ranks(distributed)
                return main(cfg, **kwargs)
            if launched_processes() > 1 and distributed.distributed_init_method is None and _trains(main):
                distributed.distributed_world_size = launched_processes()
            if _on_cpu(cfg) and not distributed.pipeline_model_parallel:
                _prepare_cpu(distributed)
                if distributed.distributed_init_method is not None and not distributed.distributed_no_spawn:
                    return _spawn(cfg, main, kwargs)
            return call_main(cfg, main, **kwargs)

        return call_main_on_any_device

    def drop_device_ids(data_parallel: Callable) -> Callable:
        def DistributedDataParallel(module, device_ids=None, output_device=None, **kwargs):
            if next(module.parameters()).device.type == "cpu":
                device_ids = output_device = None
            return data_parallel(module, device_ids=device_ids, output_device=output_device, **kwargs)

        return DistributedDataParallel

    def gather_on_cpu(all_gather_list: Callable) -> Callable:
        def all_gather_list_on_any_device(data, group=None, max_size=16384):
            if torch.distributed.get_backend(group) != "gloo":
                return all_gather_list(data, group, max_size)
            gathered = [None] * torch.distributed.get_world_size(group)
            torch.distributed.all_gather_object(gathered, data, group=group)
            return gathered

        return all_gather_list_on_any_device

    replace(distributed_utils, "call_main", count_ranks)
    replace(distributed_utils, "all_gather_list", gather_on_cpu)
    replace(distributed_fairseq_model, "DistributedDataParallel", drop_device_ids)


def leave_process_groups() -> None:
    """Let a rank that has trained over gloo leave its process groups before its interpreter ends.

    fairseq leaves them open. Their threads may then still be letting go of a tensor while the interpreter shuts down,
    and the process aborts after a training that has succeeded, now and then and on a busy machine.
    """

    def leave(distributed_main: Callable) -> Callable:
        def distributed_main_to_the_end(i, main, cfg, kwargs):
            distributed_main(i, main, cfg, kwargs)
            if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
                vars(distributed_utils.get_global_group).pop("_global_group", None)
                gc.collect()  # a group ends with the last that holds it, and a trainer holds its own in a cycle
                torch.distributed.destroy_process_group()

        return distributed_main_to_the_end

    replace(distributed_utils, "distributed_main", leave)


def refuse_lonely_ranks() -> None:
    """Stop a training that torchrun has started several times over while each process takes itself for the only one.

    The last resort for ways of starting that this package sees too late to mend (fairseq-hydra-train).
    """

    look_before(Trainer, "__init__", _refuse_alone)


def _refuse_alone(self, cfg, *args, **kwargs) -> None:
    world_size = cfg.distributed_training.distributed_world_size
    if launched_processes() > 1 and world_size == 1:
        raise ValueError(
            f"distributed_world_size={world_size}: {launched_processes()} processes were launched, and each "
            "would train alone and overwrite the others' files; pass "
            f"distributed_training.distributed_world_size={launched_processes()}"
        )


def _trains(main: Callable) -> bool:
    return Path(inspect.getfile(main)).name in ("train.py", "hydra_train.py")  # also where that is the main module


def _refuse_ranks(distributed: DictConfig) -> None:
    """Raises ValueError where fairseq would start no process for a command and end with success."""
    world_size = distributed.distributed_world_size
    if world_size != 1:
        raise ValueError(f"--distributed-world-size {world_size}: must be 1; on a CPU only training has ranks")


def _on_cpu(cfg: DictConfig) -> bool:
    return not cfg.common.tpu and (cfg.common.cpu or not torch.cuda.is_available())


def _prepare_cpu(distributed: DictConfig) -> None:
    """Fill in where the ranks meet. Raises ValueError for a world size below 1."""
    if distributed.distributed_world_size < 1:
        raise ValueError(f"--distributed-world-size {distributed.distributed_world_size}: must be >= 1")
    if distributed.distributed_backend == "nccl":
        distributed.distributed_backend = "gloo"
    if launched_processes() > 1:
        distributed.distributed_init_method = "env://"
        distributed.distributed_world_size = int(os.environ["WORLD_SIZE"])
        distributed.distributed_rank = int(os.environ["RANK"])
        distributed.device_id = 0
        distributed.distributed_no_spawn = True
    elif distributed.distributed_world_size > 1 and distributed.distributed_init_method is None:
        port = distributed.distributed_port if distributed.distributed_port > 0 else _free_port()
        distributed.distributed_init_method = f"tcp://localhost:{port}"


def _spawn(cfg: DictConfig, main: Callable, kwargs: dict) -> None:
    """Start every rank on this machine and wait for them.

    Raises:
        ValueError: if the rank is not 0, so that ranks on other machines seem to be meant.
    """
    distributed = cfg.distributed_training
    if distributed.distributed_rank:
        raise ValueError(
            f"--distributed-rank {distributed.distributed_rank}: on a CPU all ranks are started from rank 0, on this "
            "machine; to start each of them yourself, use torchrun or pass --distributed-no-spawn to every one"
        )
    distributed.distributed_rank = None  # each process gets its own
    torch.multiprocessing.spawn(
        _run_rank,
        args=(main, cfg, {**kwargs, "start_rank": 0}),
        nprocs=distributed.distributed_world_size,
    )


def _run_rank(i: int, main: Callable, cfg: DictConfig, kwargs: dict) -> None:
    """What a started process runs: fairseq's function as the repairs, which come with this module, have left it."""
    distributed_utils.distributed_main(i, main, cfg, kwargs)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
