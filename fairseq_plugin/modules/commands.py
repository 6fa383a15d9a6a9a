"""What fairseq's commands reject for this plugin's models, beside the rules of each model's options."""

from argparse import Namespace
from typing import Any

from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import DictConfig, OmegaConf

from fairseq_plugin.modules.options import ConfiguredModel
from fairseq_plugin.repairs.foreign import literal
from fairseq_plugin.repairs.replace import call_before, call_with_options

GIVEN: set[str] = set()  # the names in this command's --model-overrides


def check_commands() -> None:
    """Lets fairseq's commands check what concerns this plugin's models; calling it again has no effect."""
    call_before(distributed_utils, "call_main", reject_sharding)
    call_with_options(_note_overrides)
    call_before(checkpoint_utils, "overwrite_args_by_name", _check_overrides)


def _ours(arch: str | None) -> type[ConfiguredModel] | None:
    """The model of an architecture if it is one of this plugin's."""
    model = ARCH_MODEL_REGISTRY.get(arch)
    return model if isinstance(model, type) and issubclass(model, ConfiguredModel) else None


def reject_sharding(cfg: DictConfig, *args, **kwargs) -> None:
    """Raises ValueError for ``--ddp-backend fully_sharded``."""
    arch = getattr(cfg.model, "arch", None) or getattr(cfg.model, "_name", None)
    if cfg.distributed_training.ddp_backend == "fully_sharded" and _ours(arch):
        raise ValueError(
            "--ddp-backend=fully_sharded: would gather a stored block for every run, and needs "
            "fairscale, which is no longer maintained; must be pytorch_ddp or legacy_ddp"
        )


def _note_overrides(args: Namespace) -> None:
    GIVEN.clear()
    if not getattr(args, "lm_path", None):  # which gets the overrides of the translation models, too
        GIVEN.update(literal(getattr(args, "model_overrides", None) or "{}"))


def _check_overrides(cfg: DictConfig, overrides: dict[str, Any]) -> None:
    """Raises ValueError for a name in ``--model-overrides`` that the model does not have; fairseq ignores it."""
    groups: Any = OmegaConf.to_container(cfg)
    groups = {name: vars(group) if isinstance(group, Namespace) else group for name, group in groups.items()}
    model = groups.get("model") or {}
    arch = model.get("arch") or model.get("_name")
    if (ours := _ours(arch)) is None:
        return
    known = {*groups, *ours.options.known()}.union(*(group for group in groups.values() if isinstance(group, dict)))
    unknown = sorted(GIVEN.intersection(overrides) - known)
    if unknown:
        raise ValueError(f"--model-overrides: {unknown[0]}: not an option of {arch}")
