"""timm's tasks, for the trainer, or one error where timm is older than what it needs of them."""

import timm

try:
    from timm import task
    from timm.task import evaluation_sample_limit  # noqa: F401  the newest of what it needs
except ImportError:
    raise ImportError(f"timm {timm.__version__}: must be 1.0.31 or later, which has what the trainer needs") from None

__all__ = ["task"]
