"""Names in `--model-overrides` that would have no effect are rejected: fairseq ignores what a model does not have."""

from argparse import Namespace
from dataclasses import fields
from typing import Any

from fairseq import checkpoint_utils, hub_utils, options
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from omegaconf import DictConfig, OmegaConf

from fairseq_plugin.modules.hooks import call_after, call_before
from fairseq_plugin.modules.options import ConfiguredModel
from fairseq_repairs.foreign import literal
from fairseq_repairs.replace import copies_of

# The names in this command's --model-overrides, or among the arguments of from_pretrained, and how errors write them.
GIVEN: dict[str, str] = {}
# Arguments of from_pretrained that are no options.
OF_THE_HUB = {"model_name_or_path", "checkpoint_file", "data_name_or_path", "archive_map"}
OF_THE_HUB |= {"user_dir", "generation_args", "is_vocoder"}


def check_commands() -> None:
    """Lets fairseq's commands and hub interface check the names."""
    call_after(options, "parse_args_and_arch", _note_overrides)
    call_before(hub_utils, "from_pretrained", _note_arguments)
    call_before(checkpoint_utils, "overwrite_args_by_name", _check_overrides)
    for module in copies_of("fairseq_cli.validate"):
        call_before(module, "main", _reject_eight_bits)


def _note_overrides(parsed: Any, *unused, **other) -> None:
    GIVEN.clear()
    args = parsed[0] if isinstance(parsed, tuple) else parsed
    if not getattr(args, "lm_path", None):  # which gets the overrides of the translation models, too
        names = literal(getattr(args, "model_overrides", None) or "{}")
        GIVEN.update({name: f"--model-overrides: {name}" for name in names})


def _note_arguments(*unused, **given) -> None:
    GIVEN.clear()
    GIVEN.update({name: name for name in given.keys() - OF_THE_HUB - _text_options()})


def _text_options() -> set[str]:
    """The options of segmentations and tokenizers."""
    known = [kind for name in ("bpe", "tokenizer") for kind in REGISTRIES[name]["dataclass_registry"].values()]
    return {spec.name for kind in filter(None, known) for spec in fields(kind)}


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
    unknown = sorted(GIVEN.keys() & overrides.keys() - known)
    if unknown:
        raise ValueError(f"{GIVEN[unknown[0]]}: not an option of {arch}")
