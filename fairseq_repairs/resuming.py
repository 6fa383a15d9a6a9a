"""Resuming: from an intact checkpoint, the same on every rank, at the right place of the epoch."""

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.logging import meters, metrics
from fairseq.trainer import Trainer

from fairseq_repairs.files import damage
from fairseq_repairs.replace import after, before, copies_of, instead
from fairseq_repairs.saving import newest_intact

logger = logging.getLogger(__name__)

PERMISSION = "RECURRENCE_RESTORE"  # with "newest", the newest intact checkpoint replaces a damaged or missing one
EARLY_STOP = "early_stop"  # key of the count of --patience in a checkpoint
ORIGIN = "finetune_from_model"  # key of the model with which a checkpoint's training began, while it is loaded
RANKS = "ranks"  # key of the number of ranks that saved a checkpoint, while it is loaded
RETRIES = "amp_retries"  # key of the count of --amp-batch-retries in a checkpoint
SEEN_BY_RANK_0: dict[str, bool] = {}  # path -> whether rank 0 has the file, while ranks resume
SINCE_AVERAGE = "updates_since_average"  # key of the count of --ema-update-freq in a checkpoint
# Meters of all updates, by their keys in a checkpoint: their seconds, and their tokens.
OF_ALL_UPDATES = {"train_wall": meters.StopwatchMeter, "wpb": meters.AverageMeter}


@instead(Trainer, "load_checkpoint")
def restore_intact_checkpoints(load: Callable, trainer: Trainer, filename: str, *args, **kwargs) -> Any:
    """Names a damaged checkpoint and the newest intact one beside it; `RECURRENCE_RESTORE=newest` resumes from that.

    fairseq fails with a traceback about a zip archive, or resumes with damaged numbers, because torch checks no
    checksums. If `checkpoint_last.pt` or the file of `--restore-file` or `--continue-once` is missing, it starts
    a new run without a word; a warning says so.
    """
    chosen = _from_rank_0(trainer, lambda: _choose(filename, trainer.cfg.checkpoint))
    return load(trainer, chosen, *args, **kwargs)


@after(Trainer, "load_checkpoint")
def warn_of_saved_optimizer(
    extra: dict[str, Any] | None,
    trainer: Trainer,
    filename: str,
    reset_optimizer: bool = False,
    reset_lr_scheduler: bool = False,
    optimizer_overrides: dict[str, Any] | None = None,
    *args,
    **kwargs,
) -> None:
    """Warns of options of the optimizer, such as `--weight-decay`, in whose place the checkpoint's are used.

    That is how fairseq resumes, except for the learning rate, but it says nothing.
    """
    if extra is None or reset_optimizer:
        return
    try:
        saved, given = trainer.optimizer.param_groups[0], trainer.optimizer.optimizer_config
    except NotImplementedError:  # of several optimizers
        return
    for name in sorted(given.keys() & saved.keys() - {"lr", *(optimizer_overrides or {})}):
        old, new = (list(one[name]) if isinstance(one[name], tuple) else one[name] for one in (saved, given))
        if old != new:
            remedy = f"""--optimizer-overrides "{{'{name}': {new}}}" changes it"""
            logger.warning(f"{filename}: resumes with its optimizer's {name}={old} in place of {new}; {remedy}")


def _choose(wanted: str, options: Any) -> str:
    """The file to resume from; a missing one starts a new run. Raises ValueError if it is damaged."""
    path = Path(wanted)
    if PathManager.path_requires_pathmanager(wanted):
        return wanted
    wrong = damage(path) if path.is_file() else None
    if path.is_file() and wrong is None:
        return wanted
    once = wanted == getattr(options, "continue_once", None)  # fairseq 0.12.2 lacks it
    if wrong is None and (once or options.restore_file != "checkpoint_last.pt"):
        logger.warning(f"--{'continue-once' if once else 'restore-file'} {wanted}: no such file: starting a new run")
        return wanted
    best = newest_intact(path)
    if best is None and wrong is None:
        return wanted  # a new run
    problem = f"{wanted} is {wrong or 'missing'}"
    if best is None:
        raise ValueError(f"{problem}, and no other checkpoint beside it is intact")
    if os.environ.get(PERMISSION) == "newest":
        logger.warning(f"{problem}: resuming from the newest intact checkpoint, {best}")
        return str(best)
    option = "--finetune-from-model" if wanted == options.finetune_from_model else "--restore-file"
    remedy = f"{option} {best} or {PERMISSION}=newest resumes from the newest intact checkpoint"
    if wrong is None:
        logger.warning(f"{problem}: starting a new run in a folder of checkpoints; {remedy}")
        return wanted
    raise ValueError(f"{problem}; {remedy}")


@instead(checkpoint_utils, "load_checkpoint")
def agree_on_checkpoint(load: Callable, cfg: Any, trainer: Trainer, **passthrough) -> Any:
    """Lets every rank resume from the files that rank 0 sees, or stops all.

    In fairseq, each rank looks at its own disk: on nodes without a shared folder, some wait forever for a state that
    the others, which start a new run, never request.
    """
    if not torch.distributed.is_initialized():
        return load(cfg, trainer, **passthrough)
    last = os.path.join(cfg.save_dir, f"checkpoint_last{trainer.checkpoint_suffix}.pt")
    beside = [str(path) for path in Path(cfg.save_dir).glob("checkpoint*.pt")]
    if cfg.load_checkpoint_on_all_dp_ranks and os.environ.get(PERMISSION) != "newest":
        beside = []  # each rank reads its own file, and only that
    starts = cfg.finetune_from_model, getattr(cfg, "continue_once", None)  # fairseq 0.12.2 lacks the latter
    restored = cfg.restore_file.replace(".pt", f"{trainer.checkpoint_suffix}.pt")  # as fairseq does
    paths = [last, restored, *beside, *filter(None, starts)]
    with _agreed(trainer, [path for path in paths if not PathManager.path_requires_pathmanager(path)]):
        return load(cfg, trainer, **passthrough)


@instead(PathManager, "exists", "isfile")
def ask_rank_0(look: Callable, path: str) -> bool:
    """Whether rank 0 has a file from which training may resume."""
    return SEEN_BY_RANK_0[path] if path in SEEN_BY_RANK_0 else look(path)


@contextlib.contextmanager
def _agreed(trainer: Trainer, paths: list[str]) -> Iterator[None]:
    """Within this context, every rank sees the files that rank 0 sees.

    Raises:
        ValueError: on all ranks, if each should read its own file and the files are not the same.
    """
    if trainer.data_parallel_world_size > 1 and not _has_own_file(trainer):
        own = trainer.cfg.checkpoint.load_checkpoint_on_all_dp_ranks
        seen = {path: (os.path.getsize(path) if own else 0) for path in paths if os.path.isfile(path)}
        found: list[dict] = [{}] * trainer.data_parallel_world_size
        # Not fairseq's all_gather_list, as the names of a few hundred files are larger than its buffer.
        torch.distributed.all_gather_object(found, seen, trainer.data_parallel_process_group)
        for rank, theirs in enumerate(found):
            if own and theirs != found[0]:
                path = sorted(theirs.items() ^ found[0].items())[0][0]
                raise ValueError(
                    f"--load-checkpoint-on-all-dp-ranks: {path} is not the same on ranks 0 and {rank}; copy it there, "
                    "or leave out the option, so that rank 0 sends its own"
                )
        SEEN_BY_RANK_0.update({path: path in found[0] for path in {*paths, *found[0]}})
    try:
        yield
    finally:
        SEEN_BY_RANK_0.clear()


def _has_own_file(trainer: Trainer) -> bool:
    """Whether each rank saves a file of its own: of experts, of a part of the model, or of a sharded state."""
    cfg = trainer.cfg
    sharded = trainer.is_fsdp and cfg.distributed_training.use_sharded_state
    return sharded or getattr(cfg.model, "base_layers", 0) > 0 or cfg.common.model_parallel_size > 1


def _from_rank_0(trainer: Trainer, ask: Callable[[], str]) -> str:
    """Returns rank 0's answer on every rank, or raises its ValueError on every rank.

    Where each rank has a file of its own, that is its own answer; and no TPU can broadcast.
    """
    if trainer.data_parallel_world_size == 1 or _has_own_file(trainer) or trainer.tpu:
        return ask()
    answer, rejection = None, None
    if trainer.data_parallel_rank == 0:
        try:
            answer = ask()
        except ValueError as error:
            rejection = str(error)
    group, device = trainer.data_parallel_process_group, trainer.device
    answer, rejection = distributed_utils.broadcast_object((answer, rejection), 0, group, device)
    if rejection is not None:
        raise ValueError(rejection)
    return answer


@after(checkpoint_utils, "load_checkpoint")
def end_finished_runs(loaded: tuple[dict[str, Any] | None, Any], cfg: Any, trainer: Trainer, **passthrough) -> None:
    """Ends the command of a finished run at once; fairseq trains and saves one more update."""
    if loaded[0] is None or not isinstance(trainer, Trainer):
        return
    if reached := _limit_reached(trainer):
        updates = trainer.get_num_updates()
        logger.info(f"nothing is left to train: {updates} updates are done and {reached} is reached")
        trainer.cfg.optimization.max_epoch = -1


def _limit_reached(trainer: Trainer) -> str | None:
    """The option, with its value, whose limit training has reached; None if it has reached none."""
    limits, patience = trainer.cfg.optimization, trainer.cfg.checkpoint.patience
    if trainer.get_num_updates() >= (limits.max_update or math.inf):
        return f"--max-update {limits.max_update}"
    if 0 < limits.stop_time_hours < trainer.cumulative_training_time() / 3600:
        return f"--stop-time-hours {limits.stop_time_hours}"
    if 0 < patience <= _early_stop().get("num_runs", 0):
        return f"--patience {patience}"
    return None


@after(Trainer, "load_checkpoint")
def begin_time_anew(extra: dict[str, Any] | None, trainer: Trainer, filename: str, *args, **kwargs) -> None:
    """Counts the time for `--stop-time-hours` of a fine-tuning from 0; fairseq goes on from that of the first model."""
    if filename == trainer.cfg.checkpoint.finetune_from_model:
        trainer._previous_training_time = 0


@after(Trainer, "state_dict")
def save_counts(state: dict[str, Any], trainer: Trainer) -> None:
    """Stores the counts of `--patience`, `--amp-batch-retries` and `--ema-update-freq`, for :func:`restore_counts`."""
    extra = state["extra_state"]
    extra[EARLY_STOP] = dict(_early_stop())
    if hasattr(trainer, "_amp_retries"):  # with --amp
        extra[RETRIES] = trainer._amp_retries
    if trainer.cfg.ema.store_ema:
        extra[SINCE_AVERAGE] = trainer.ema.update_freq_counter


@after(Trainer, "load_checkpoint")
def restore_counts(
    extra: dict[str, Any] | None,
    trainer: Trainer,
    filename: str,
    reset_optimizer: bool = False,
    *args,
    reset_meters: bool = False,
    **kwargs,
) -> None:
    """Skips the same batches, averages after the same updates and stops as early as an uninterrupted run.

    fairseq restarts the counts, and treats the first validation after resuming as the best so far.
    """
    if extra is None or reset_optimizer:
        return
    if not reset_meters:
        _early_stop().update(extra.get(EARLY_STOP, {}))
    if hasattr(trainer, "_amp_retries"):  # with --amp
        trainer._amp_retries = extra.get(RETRIES, 0)
    if trainer.cfg.ema.store_ema:
        trainer.ema.update_freq_counter = extra.get(SINCE_AVERAGE, 0)


@before(checkpoint_utils, "load_checkpoint")
def forget_other_trainings(cfg: Any, trainer: Trainer, **passthrough) -> None:
    """Begins without the best score of another training of this process, as of `fairseq-hydra-train --multirun`.

    fairseq keeps it: a later training that is never better would save no `checkpoint_best.pt`.
    """
    for kept in (_early_stop(), vars(checkpoint_utils.save_checkpoint)):
        for name in ("best", "num_runs"):
            kept.pop(name, None)


def _early_stop() -> dict[str, Any]:
    """The best validation score and the number of validations since, which fairseq stores as function attributes."""
    *_, train = copies_of("fairseq_cli.train")
    return vars(train.should_stop_early)


@after(Trainer, "load_checkpoint")
def keep_clocks(extra: dict[str, Any] | None, trainer: Trainer, *args, reset_meters: bool = False, **kwargs) -> None:
    """Continues seconds and tokens of all updates, and the seconds since the start of training (`wall`), on resuming.

    fairseq restarts the former if the checkpoint was saved at the end of an epoch; if it was saved within one, they
    stay as they are, because what is logged goes to the meters before loading. It restarts `wall`, and stops it at 0
    if the checkpoint was saved within an epoch.
    """
    if extra is None or reset_meters:
        return
    known = metrics._active_aggregators["default"] = metrics.get_meters("default")
    for priority, key, _, state in extra.get("metrics", {}).get("default", ()):
        if key in OF_ALL_UPDATES and key not in known:
            meter = OF_ALL_UPDATES[key]()
            meter.load_state_dict(state)
            known.add_meter(key, meter, priority)
    if "wall" in known:
        # A tensor in a checkpoint of several ranks, which the log cannot round.
        known["wall"].start_time = time.perf_counter() - float(trainer.cumulative_training_time())


@after(checkpoint_utils, "load_checkpoint_to_cpu")
def note_run(state: dict[str, Any], *args, **kwargs) -> None:
    """Notes the task's state, the number of ranks, and the model with which training began, for the repairs below."""
    cfg, extra = state.get("cfg") or {}, state.get("extra_state")
    if not isinstance(extra, dict):
        return
    if "task_state" in state:
        extra["task_state"] = state["task_state"]
    if distributed := cfg.get("distributed_training"):
        extra[RANKS] = distributed["distributed_world_size"]
    if options := cfg.get("checkpoint"):
        extra[ORIGIN] = options["finetune_from_model"]


@after(Trainer, "load_checkpoint")
def restore_task_state(
    extra: dict[str, Any] | None, trainer: Trainer, filename: str, reset_optimizer: bool = False, *args, **kwargs
) -> None:
    """Restores a task's state when training resumes; fairseq saves it, but only reads it for inference."""
    if extra is not None and "task_state" in extra and not reset_optimizer:  # as in fine-tuning, with other data
        trainer.task.load_state_dict(extra["task_state"])


@after(Trainer, "load_checkpoint")
def warn_of_unused_model(extra: dict[str, Any] | None, trainer: Trainer, filename: str, *args, **kwargs) -> None:
    """Warns of a `--finetune-from-model` that fairseq silently ignores, because the folder has another training."""
    wanted = trainer.cfg.checkpoint.finetune_from_model
    if extra is None or wanted is None:
        return
    used = filter(None, (filename, extra.get(ORIGIN)))
    if os.path.realpath(wanted) in map(os.path.realpath, used):
        return
    missing = "" if PathManager.exists(wanted) else ", which does not exist,"
    logger.warning(
        f"--finetune-from-model {wanted}{missing} is not used: the training of {filename}, which did not begin with "
        "it, continues; use another --save-dir"
    )


@after(Trainer, "load_checkpoint")
def keep_place_in_epoch(extra: dict[str, Any] | None, trainer: Trainer, filename: str, *args, **kwargs) -> None:
    """Resumes at the same place of an epoch with another number of ranks.

    fairseq counts batches per rank: with twice the ranks, it resumes too late and fails with "please report this"; with
    half the ranks, it repeats half of the batches. The place is rounded down, so no batch is skipped, and fewer batches
    than there are ranks are repeated.
    """
    place = {} if extra is None else extra["train_iterator"]
    then = place and extra.get(RANKS)
    now, batches = trainer.data_parallel_world_size, place.get("iterations_in_epoch", 0)
    if then and then != now:
        place["iterations_in_epoch"] = batches * then // now
        options = trainer.cfg.checkpoint
        if filename == options.finetune_from_model:
            return  # of which another training begins
        resumes = f"epoch {place['epoch']} resumes after {place['iterations_in_epoch'] * now} batches, and "
        logger.info(
            f"{filename} was saved by {then} ranks, now there are {now}: {'' if options.reset_dataloader else resumes}"
            f"an update has {now / then:g} times as many batches as before; --update-freq changes that"
        )


@before(EpochBatchIterator, "load_state_dict")
def reject_place_after_the_epoch(batches: EpochBatchIterator, state: dict[str, Any]) -> None:
    """Says that the data or the batch size has changed, if an epoch has no more batches than were done when saving.

    fairseq asks the user to report this to its developers.
    """
    done, length = state.get("iterations_in_epoch", 0), len(batches)
    if state.get("version", 1) > 1 and done >= length > 0:
        raise ValueError(
            f"the checkpoint was saved after batch {done} of epoch {state['epoch']}, which now has only "
            f"{length}: other data or another batch size; --reset-dataloader starts at epoch 1"
        )
