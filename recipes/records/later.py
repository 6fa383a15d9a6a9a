"""Whether the later stages of a run will find what they read, told before fairseq trains.

A stage that averages the checkpoints of 10 epochs, say, needs a training that has as many, and that keeps them.
"""

import itertools
import math
import re
from argparse import Namespace

from commands import Stages
from rows import TableError

# Most tokens of a pair on average: of its longer sentence, with its share of a batch's padding. WMT's have about 35.
TOKENS_OF_A_PAIR = 40
# What a later command reads, and how many of it where it says so.
READ = {
    "checkpoints by epoch": r"--num-epoch-checkpoints (\d+)",
    "checkpoints by update": r"--num-update-checkpoints (\d+)",
    "checkpoint_best.pt": r"/checkpoints/checkpoint_best\.pt",
    "checkpoint_last.pt": r"/checkpoints/checkpoint_last\.pt",
    "losses of a validation": r"/metrics/loss\.py",
}


def check(training: Namespace, found: Stages, pairs: int | None = None) -> None:
    """Rejects a training that does not leave what the later stages read. One without a last update is not checked.

    Args:
        training: fairseq's options.
        found: the commands of the run by stage.
        pairs: sentence pairs of its data; None if they are not known, so that no epoch counts.

    Raises:
        TableError: names what is read, and what the training leaves of it.
    """
    if not training.max_update:
        return
    there = left(training, pairs)
    others = [stage for stage in found if not stage.startswith("training")]
    for command in itertools.chain.from_iterable(found[stage] for stage in others):
        for name, pattern in READ.items():
            read = re.search(pattern, str(command))
            needed = int((*read.groups(), 1)[0]) if read else 0
            if there[name] < needed:
                length = f"{training.max_update:,} updates, {epochs(training, pairs):.1f} epochs of the data"
                raise TableError(f"{length}: leave {there[name]} {name}, but a later stage reads {needed}: {command}")


def left(training: Namespace, pairs: int | None) -> dict[str, int]:
    """How many there will be of everything in READ."""
    interval, validated = training.save_interval_updates, int(not training.disable_validation)
    by_epoch = 0 if training.no_epoch_checkpoints else int(epochs(training, pairs) / training.save_interval)
    by_update = training.max_update // interval if interval > 0 else 0
    files = {
        "checkpoints by epoch": kept(by_epoch, training.keep_last_epochs),
        "checkpoints by update": kept(by_update, training.keep_interval_updates),
        "checkpoint_best.pt": validated,
        "checkpoint_last.pt": int(not training.no_last_checkpoints),
    }
    return (dict.fromkeys(files, 0) if training.no_save else files) | {"losses of a validation": validated}


def kept(saved: int, most: int) -> int:
    """How many of the saved checkpoints fairseq keeps: the last ones, or all if `most` is not positive."""
    return min(saved, most) if most > 0 else saved


def epochs(training: Namespace, pairs: int | None) -> float:
    """How often a training reads its pairs, at least; 0 if their number is not known."""
    if not pairs:
        return 0
    limits = [(training.max_tokens, TOKENS_OF_A_PAIR), (training.batch_size, 1)]
    batch = min(size / of_a_pair for size, of_a_pair in limits if size)
    update = batch * training.update_freq[-1] * training.distributed_world_size
    return min(training.max_update * update / pairs, training.max_epoch or math.inf)
