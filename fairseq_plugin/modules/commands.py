"""Names in `--model-overrides` that would have no effect are rejected: fairseq ignores what a model does not have."""

from argparse import Namespace
from typing import Any

from fairseq import checkpoint_utils, options
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import DictConfig, OmegaConf

from fairseq_plugin.modules.options import ConfiguredModel
from fairseq_plugin.repairs.foreign import copies_of, literal
from fairseq_plugin.repairs.replace import call_after, call_before

GIVEN: set[str] = set()  # the names in this command's --model-overrides


def check_commands() -> None:
    """Lets fairseq's commands check the names; calling it again has no effect."""
    call_after(options, "parse_args_and_arch", _note_overrides)
    call_before(checkpoint_utils, "overwrite_args_by_name", _check_overrides)
    for module in copies_of("fairseq_cli.validate"):
        call_before(module, "main", _reject_eight_bits)


def _note_overrides(parsed: Any, *unused, **other) -> None:
    GIVEN.clear()
    args = parsed[0] if isinstance(parsed, tuple) else parsed
    if not getattr(args, "lm_path", None):  # which gets the overrides of the translation models, too
        GIVEN.update(literal(getattr(args, "model_overrides", None) or "{}"))


def _reject_eight_bits(*unused, **other) -> None:
    """Raises ValueError in fairseq-validate, which does not prepare models for inference, when weights are rounded."""
    if "eight_bits" in GIVEN:
        raise ValueError("--model-overrides: eight_bits: not for fairseq-validate, only for commands that decode")


def _check_overrides(cfg: DictConfig, overrides: dict[str, Any]) -> None:
    """Raises ValueError for a name that the model does not have."""
    groups: Any = OmegaConf.to_container(cfg)
    groups = {name: vars(group) if isinstance(group, Namespace) else group for name, group in groups.items()}
    model = groups.get("model") or {}
    arch = model.get("arch") or model.get("_name")
    ours = ARCH_MODEL_REGISTRY.get(arch)
    if not (isinstance(ours, type) and issubclass(ours, ConfiguredModel)):
        return
    known = {*groups, *ours.options.known()}.union(*(group for group in groups.values() if isinstance(group, dict)))
    unknown = sorted(GIVEN.intersection(overrides) - known)
    if unknown:
        raise ValueError(f"--model-overrides: {unknown[0]}: not an option of {arch}")
