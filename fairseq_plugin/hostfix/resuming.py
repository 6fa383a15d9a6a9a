"""Going on with a training: from a whole checkpoint, the same one on every rank, and not a step too far."""

import argparse
import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from fairseq_plugin.hostfix.foreign import modules
from fairseq_plugin.hostfix.replace import replace
from fairseq_plugin.hostfix.saving import damage, newest_whole

logger = logging.getLogger("fairseq_plugin.hostfix")

PERMISSION = "RECURRENCE_RESTORE"  # "newest" takes the newest whole checkpoint where the wanted one is torn or missing
EARLY_STOP = "early_stop"  # where a checkpoint keeps the count of --patience
SEEN_BY_RANK_0: dict[str, bool] = {}  # files, and whether rank 0 has them, while ranks resume
# Options that say how and where a run runs, not what it computes.
PLACE = {
    *("all_gather_list_size", "cpu", "data_buffer_size", "device_id", "empty_cache_freq", "local_rank"),
    *("load_checkpoint_on_all_dp_ranks", "log_file", "log_format", "log_interval", "max_epoch", "max_update"),
    *("no_progress_bar", "nprocs_per_node", "num_workers", "restore_file", "save_dir", "stop_time_hours"),
    *("tensorboard_logdir", "user_dir", "_name"),
}


def whole_restores() -> None:
    """Name a checkpoint that is torn, and the newest whole one beside it; ``RECURRENCE_RESTORE=newest`` takes that.

    fairseq ends in a traceback about a zip archive, or goes on with damaged numbers, for torch looks at no checksum.
    Where ``checkpoint_last.pt`` is missing beside others it starts anew without a word, and so it does where
    ``--restore-file`` names no file.
    """

    def restore_whole(load: Callable) -> Callable:
        def load_checkpoint(self, filename: str, *args, **kwargs):
            return load(self, _from_rank_0(self, lambda: _choose(filename, self.cfg.checkpoint)), *args, **kwargs)

        return load_checkpoint

    replace(Trainer, "load_checkpoint", restore_whole)


def _choose(wanted: str, options: Any) -> str:
    """The file to go on from. Raises ValueError where there is none and starting anew was not meant."""
    path = Path(wanted)
    if PathManager.path_requires_pathmanager(wanted):
        return wanted
    wrong = damage(path) if path.is_file() else None
    if path.is_file() and wrong is None:
        return wanted
    if wrong is None and options.restore_file != "checkpoint_last.pt":
        raise ValueError(f"--restore-file {wanted}: no such file")
    best = newest_whole(path.parent) if path.parent.is_dir() else None
    if best is None and wrong is None:
        return wanted  # nothing to go on from: a new run
    told = f"{wanted} is {wrong or 'missing'}"
    if best is None:
        raise ValueError(f"{told}, and no other checkpoint beside it is whole")
    if os.environ.get(PERMISSION) == "newest":
        logger.warning(f"{told}: going on from the newest whole checkpoint, {best}")
        return str(best)
    way = f"--restore-file {best} or {PERMISSION}=newest goes on from the newest whole checkpoint"
    if wrong is None:
        logger.warning(f"{told}: a new run begins in a folder of checkpoints; {way}")
        return wanted
    raise ValueError(f"{told}; {way}")


def one_state_for_all_ranks() -> None:
    """Let every rank go on from what rank 0 finds, or stop all.

    In fairseq each looks on its own disk: on nodes that share no folder some wait for ever for a state that the others,
    who start anew, never ask for.
    """

    def as_rank_0_sees(load: Callable) -> Callable:
        def load_checkpoint(cfg, trainer, **passthrough):
            last = os.path.join(cfg.save_dir, f"checkpoint_last{trainer.checkpoint_suffix}.pt")
            beside = [str(path) for path in Path(cfg.save_dir).glob("checkpoint*.pt")]
            paths = [last, cfg.restore_file, *beside, *([cfg.finetune_from_model] if cfg.finetune_from_model else [])]
            with _agreed(trainer, paths):
                return load(cfg, trainer, **passthrough)

        return load_checkpoint

    def ask_rank_0(look: Callable) -> Callable:
        def exists_for_all(path: str) -> bool:
            return SEEN_BY_RANK_0[path] if path in SEEN_BY_RANK_0 else look(path)

        return exists_for_all

    replace(checkpoint_utils, "load_checkpoint", as_rank_0_sees)
    for name in ("exists", "isfile"):
        replace(PathManager, name, ask_rank_0)


@contextlib.contextmanager
def _agreed(trainer: Trainer, paths: list[str]) -> Iterator[None]:
    """Meanwhile every rank sees the files that rank 0 sees.

    Raises:
        ValueError: on all ranks, where each was to read its own file and one of them has another or none.
    """
    if trainer.data_parallel_world_size > 1 and not trainer.checkpoint_suffix:  # else each rank has files of its own
        own = trainer.cfg.checkpoint.load_checkpoint_on_all_dp_ranks
        seen = {path: (os.path.getsize(path) if own else 0) for path in paths if os.path.isfile(path)}
        found = distributed_utils.all_gather_list(seen, trainer.data_parallel_process_group)
        for rank, theirs in enumerate(found):
            if own and theirs != found[0]:
                path = sorted(theirs.items() ^ found[0].items())[0][0]
                raise ValueError(
                    f"--load-checkpoint-on-all-dp-ranks: {path} is not the same on ranks 0 and {rank}; copy it there, "
                    "or leave the option out, so that rank 0 sends its own"
                )
        SEEN_BY_RANK_0.update({path: path in found[0] for path in {*paths, *found[0]}})
    try:
        yield
    finally:
        SEEN_BY_RANK_0.clear()


def _from_rank_0(trainer: Trainer, ask: Callable[[], str]) -> str:
    """The answer of rank 0 on every rank, or its ValueError."""
    if trainer.data_parallel_world_size == 1:
        return ask()
    answer, refusal = None, None
    if trainer.data_parallel_rank == 0:
        try:
            answer = ask()
        except ValueError as error:
            refusal = str(error)
    group, device = trainer.data_parallel_process_group, trainer.device
    answer, refusal = distributed_utils.broadcast_object((answer, refusal), 0, group, device)
    if refusal is not None:
        raise ValueError(refusal)
    return answer


def finished_runs_stay() -> None:
    """Let the command of a run that is finished end without an update more, which fairseq trains and saves."""

    def end_at_once(load: Callable) -> Callable:
        def load_checkpoint(cfg, trainer, **passthrough):
            found = load(cfg, trainer, **passthrough)
            reached = None if found[0] is None else _limit_reached(trainer)
            if reached is not None:
                updates = trainer.get_num_updates()
                logger.info(f"nothing is left to train: {updates} updates are done and {reached} is reached")
                trainer.cfg.optimization.max_epoch = -1
            return found

        return load_checkpoint

    replace(checkpoint_utils, "load_checkpoint", end_at_once)


def _limit_reached(trainer: Trainer) -> str | None:
    """The option for which a training would stop behind its next validation, with its value."""
    limits, patience = trainer.cfg.optimization, trainer.cfg.checkpoint.patience
    if trainer.get_num_updates() >= (limits.max_update or math.inf):
        return f"--max-update {limits.max_update}"
    if 0 < limits.stop_time_hours < trainer.cumulative_training_time() / 3600:
        return f"--stop-time-hours {limits.stop_time_hours}"
    if 0 < patience <= _early_stop().get("num_runs", 0):
        return f"--patience {patience}"
    return None


def patience_goes_on() -> None:
    """Keep the count of validations without progress in checkpoints, so that ``--patience`` outlives a resume.

    fairseq begins to count anew, and takes the first validation after a resume for the best of all.
    """

    def keep_count(state_dict: Callable) -> Callable:
        def state_dict_with_count(self) -> dict[str, Any]:
            state = state_dict(self)
            state["extra_state"][EARLY_STOP] = dict(_early_stop())
            return state

        return state_dict_with_count

    def restore_count(load: Callable) -> Callable:
        def load_checkpoint(self, filename: str, reset_optimizer=False, *args, reset_meters=False, **kwargs):
            extra = load(self, filename, reset_optimizer, *args, reset_meters=reset_meters, **kwargs)
            if extra is not None and not reset_optimizer and not reset_meters:
                _early_stop().update(extra.get(EARLY_STOP, {}))
            return extra

        return load_checkpoint

    replace(Trainer, "state_dict", keep_count)
    replace(Trainer, "load_checkpoint", restore_count)


def _early_stop() -> dict[str, Any]:
    """The best validation and the number of those since, which fairseq keeps as attributes of a function."""
    *_, train = modules("fairseq_cli.train")
    return vars(train.should_stop_early)


def changed_options() -> None:
    """Print the options that differ from those of the checkpoint that a training goes on from."""

    def keep_options(load: Callable) -> Callable:
        def load_checkpoint_to_cpu(*args, **kwargs):
            state = load(*args, **kwargs)
            if state.get("cfg") is not None and isinstance(state.get("extra_state"), dict):
                state["extra_state"]["options"] = _options(state["cfg"])
            return state

        return load_checkpoint_to_cpu

    def print_changes(load: Callable) -> Callable:
        def load_checkpoint(self, filename: str, *args, **kwargs):
            extra = load(self, filename, *args, **kwargs)
            if extra is not None and "options" in extra:
                before, now = extra["options"], _options(self.cfg)
                names = sorted(name for name in _computing(before) & _computing(now) if before[name] != now[name])
                changes = [f"--{name.replace('_', '-')} {now[name]} (was {before[name]})" for name in names]
                if changes:
                    logger.info(f"options that are not those of {filename}: {', '.join(changes)}")
            return extra

        return load_checkpoint

    replace(checkpoint_utils, "load_checkpoint_to_cpu", keep_options)
    replace(Trainer, "load_checkpoint", print_changes)


def _options(cfg: Any) -> dict[str, Any]:
    """All options of a run by name; those of a model that has no configuration of its own are a Namespace."""
    groups: Any = OmegaConf.to_container(cfg, enum_to_str=True) if OmegaConf.is_config(cfg) else cfg
    found: dict[str, Any] = {}
    for group in groups.values():
        values = vars(group) if isinstance(group, argparse.Namespace) else group
        if isinstance(values, dict):
            found |= {name: value for name, value in values.items() if name not in found and not _refers(value)}
    return found


def _refers(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("${")


def _computing(options: dict[str, Any]) -> set[str]:
    return {name for name in options if name not in PLACE and not name.startswith("distributed_")}


def place_among_ranks() -> None:
    """Go on at the same place of an epoch with another number of ranks.

    fairseq counts batches of one rank: with twice the ranks it goes too far, and ends in "please report this", with
    half of them it trains a half of what was done once more. The place is rounded down, so that no batch is left out
    and fewer than the number of ranks are repeated.
    """

    def convert_place(load: Callable) -> Callable:
        def load_checkpoint(self, filename: str, *args, **kwargs):
            extra = load(self, filename, *args, **kwargs)
            place = {} if extra is None else extra["train_iterator"]
            before = place and extra.get("options", {}).get("distributed_world_size")
            now, batches = self.data_parallel_world_size, place.get("iterations_in_epoch", 0)
            if before and before != now:
                place["iterations_in_epoch"] = batches * before // now
                logger.info(
                    f"{filename} is of {before} ranks, now there are {now}: epoch {place['epoch']} goes on behind its "
                    f"first {place['iterations_in_epoch'] * now} batches, and an update is made of {now / before:g} "
                    "times as many; --update-freq changes that"
                )
            return extra

        return load_checkpoint

    def name_the_reason(load: Callable) -> Callable:
        def load_state_dict(self, state_dict: dict) -> None:
            behind, batches = state_dict.get("iterations_in_epoch", 0), len(self)
            if state_dict.get("version", 1) > 1 and behind >= batches > 0:
                raise ValueError(
                    f"the checkpoint was written behind batch {behind} of epoch {state_dict['epoch']}, which has "
                    f"{batches} now: other data or another batch size; --reset-dataloader starts at epoch 1"
                )
            load(self, state_dict)

        return load_state_dict

    replace(Trainer, "load_checkpoint", convert_place)
    replace(EpochBatchIterator, "load_state_dict", name_the_reason)
