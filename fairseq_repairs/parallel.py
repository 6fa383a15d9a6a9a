"""Data parallel training on CPUs; rejects launches whose ranks would not train, or would each train alone."""

import gc
import inspect
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import options, utils
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from fairseq.trainer import Trainer
from omegaconf import DictConfig
from torch import nn

from fairseq_repairs.commands import is_fairseq_command
from fairseq_repairs.replace import after, before, in_groups, instead

LAUNCHER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")


def launched_processes() -> int:
    """Number of processes started by torchrun or a launcher that sets the same variables; 1 without one."""
    launched = all(name in os.environ for name in LAUNCHER_VARIABLES)
    return int(os.environ["WORLD_SIZE"]) if launched else 1


@instead(distributed_utils, "call_main")
def run_ranks_on_cpu(call_main: Callable, cfg: DictConfig, main: Callable, **kwargs) -> Any:
    """Trains with several ranks on CPUs over gloo, started by torchrun or by `--distributed-world-size`.

    fairseq counts CUDA devices where it should count ranks: without any, it divides by zero or exits successfully
    without starting a process. Other commands stay in one process, because fairseq's validation fails if ranks get
    different numbers of batches; a program whose processes are already started and meet somewhere keeps them.

    Differs from fairseq: torchrun's world size is used even without `--distributed-world-size`. With one GPU or none,
    fairseq ignores it then, and each process trains alone and overwrites the other's files.
    """
    distributed = cfg.distributed_training
    if not _trains(main):
        started = distributed.distributed_init_method is not None and distributed.distributed_no_spawn
        if started or not _on_cpu(cfg):
            return call_main(cfg, partial(_run_main, main), **kwargs)
        if distributed.distributed_world_size != 1:  # fairseq would exit successfully without starting a process
            raise ValueError(
                f"--distributed-world-size {distributed.distributed_world_size}: must be 1; on a CPU, only training "
                "can use several ranks"
            )
        return main(cfg, **kwargs)
    if launched_processes() > 1 and distributed.distributed_init_method is None:
        distributed.distributed_world_size = launched_processes()
    if _on_cpu(cfg) and not distributed.pipeline_model_parallel:
        _prepare_cpu(distributed)
        if distributed.distributed_init_method is not None and not distributed.distributed_no_spawn:
            return _spawn(cfg, main, kwargs)
    return call_main(cfg, main, **kwargs)


@instead(options, "add_distributed_training_args")
def train_in_one_process_on_cpu(add: Callable, parser: Any, default_world_size: int | None = None) -> Any:
    """Trains with `--cpu` in one process unless `--distributed-world-size` says otherwise.

    fairseq's default is the number of GPUs, which `--cpu` does not use: the batch would be as many times larger.
    """
    if default_world_size is None and "--cpu" in sys.argv:
        default_world_size = 1
    return add(parser, default_world_size)


@instead(distributed_fairseq_model, "DistributedDataParallel")
def allow_data_parallel_on_cpu(
    data_parallel: Callable, module: nn.Module, device_ids: Any = None, output_device: Any = None, **kwargs
) -> nn.Module:
    """Lets DistributedDataParallel wrap a model on the CPU, to which fairseq passes a CUDA device number."""
    if next(module.parameters()).device.type == "cpu":
        device_ids = output_device = None
    return data_parallel(module, device_ids=device_ids, output_device=output_device, **kwargs)


@instead(distributed_utils, "all_gather_list")
def gather_statistics_on_cpu(all_gather_list: Callable, data: Any, group: Any = None, max_size: int = 16384) -> list:
    """Gathers statistics of ranks over gloo without CUDA; fairseq uses a CUDA buffer if there is a GPU."""
    if torch.distributed.get_backend(group) != "gloo":
        return all_gather_list(data, group, max_size)
    gathered = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(gathered, utils.move_to_cpu(data), group=group)  # as fairseq does
    return gathered


@after(distributed_utils, "distributed_main")
def destroy_process_groups(done: None, *args) -> None:
    """Destroys the process groups of a rank that trained over gloo before its interpreter exits.

    fairseq leaves them open. Their threads may then release a tensor while the interpreter shuts down, and on a busy
    machine the process sometimes aborts after a successful training.
    """
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        vars(distributed_utils.get_global_group).pop("_global_group", None)
        gc.collect()  # the trainer, which is in a reference cycle, holds a reference to its group
        torch.distributed.destroy_process_group()


@before(Trainer, "__init__")
def reject_ranks_that_train_alone(self, cfg, *args, **kwargs) -> None:
    """Rejects a launch in which each of several processes would train as if it were the only one.

    fairseq-hydra-train imports this package too late for :func:`run_ranks_on_cpu`. A program of the user may train a
    model of its own in each process.
    """
    world_size = in_groups(cfg).distributed_training.distributed_world_size
    if is_fairseq_command() and launched_processes() > 1 and world_size == 1:
        raise ValueError(
            f"distributed_world_size={world_size}: {launched_processes()} processes were launched, and each "
            "would train alone and overwrite the others' files; pass "
            f"distributed_training.distributed_world_size={launched_processes()}"
        )


def _trains(main: Callable) -> bool:
    """Whether a function is the main one of fairseq's training; its module's name may be `__main__`."""
    code = getattr(inspect.unwrap(main), "__code__", None)
    return code is not None and Path(code.co_filename).name in ("train.py", "hydra_train.py")


def _on_cpu(cfg: DictConfig) -> bool:
    return not cfg.common.tpu and (cfg.common.cpu or not torch.cuda.is_available())


def _prepare_cpu(distributed: DictConfig) -> None:
    """Sets the address at which the ranks meet. Raises ValueError for a world size below 1."""
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
        port = distributed.distributed_port if distributed.distributed_port > 0 else free_port()
        distributed.distributed_init_method = f"tcp://localhost:{port}"


def _spawn(cfg: DictConfig, main: Callable, kwargs: dict) -> None:
    """Starts every rank on this machine and waits for them.

    Raises:
        ValueError: if the given rank is not 0, which would mean ranks on several machines.
    """
    distributed = cfg.distributed_training
    if distributed.distributed_rank:
        raise ValueError(
            f"--distributed-rank {distributed.distributed_rank}: must be 0, because on a CPU rank 0 starts all ranks "
            "on this machine; to start them yourself, use torchrun or pass --distributed-no-spawn to each"
        )
    distributed.distributed_rank = None  # each process gets its own
    torch.multiprocessing.spawn(
        _run_rank,
        args=(main, cfg, {**kwargs, "start_rank": 0}),
        nprocs=distributed.distributed_world_size,
    )


def _run_rank(i: int, main: Callable, cfg: DictConfig, kwargs: dict) -> None:
    """Runs in a new process: importing this module applies the repairs before fairseq's function is called."""
    distributed_utils.distributed_main(i, main, cfg, kwargs)


def _run_main(main: Callable, *args, **kwargs) -> None:
    """Runs in a new process: unpickling this function applies the repairs before `main` is looked up there."""
    main(*args, **kwargs)


def free_port() -> int:
    """A port of this machine that nobody uses."""
    # torch's getfree_port logs a traceback in a container without IPv6.
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
