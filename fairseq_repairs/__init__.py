"""fairseq for today's torch, numpy and Python: what fails with them, and what was silently wrong (README.md).

Importing this package repairs the installed fairseq; `fairseq-train --user-dir fairseq_repairs` does, too. Each repair
is a function, below the name of what it changes. Names are replaced only inside fairseq's own modules: torch and numpy
stay as they are, but torch's safe loader also knows `checkpoints.CHECKPOINT_TYPES`, in forms of ours; `torch.load`
keeps `weights_only=True`, and nothing is written to disk. Where several repairs change one function, their order
matters at most for the words of an error.

fairseq imports a `--user-dir` before it looks up any of these names; the exception is fairseq-hydra-train, see
:func:`parallel.reject_ranks_that_train_alone`.
"""

from fairseq_repairs import (  # noqa: F401
    archives,
    arguments,
    audio,
    averages,
    binary,
    checkpoints,
    commands,
    corpus,
    data,
    decoding,
    foreign,
    gradients,
    half,
    interactive,
    log,
    messages,
    parallel,
    ranges,
    resuming,
    saving,
    sizes,
    unknown,
    workers,
)
