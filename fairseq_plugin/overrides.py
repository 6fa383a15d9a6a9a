"""Options that would have no effect are rejected: those in `--model-overrides`, in configurations and in Python.

fairseq ignores a name that a model or a search does not have.
"""

import inspect
import json
from argparse import Namespace
from dataclasses import fields
from typing import Any

from fairseq import checkpoint_utils, hub_utils, models, options
from fairseq.dataclass.configs import GenerationConfig
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from omegaconf import DictConfig, OmegaConf

from fairseq_plugin.options import ConfiguredModel, Options
from fairseq_repairs.foreign import literal
from fairseq_repairs.replace import after, before

# The names in this command's --model-overrides, or among the arguments of from_pretrained, and how errors write them.
GIVEN: dict[str, str] = {}
# Arguments of from_pretrained that are not options.
OF_THE_HUB = {"model_name_or_path", "checkpoint_file", "data_name_or_path", "archive_map"}
OF_THE_HUB |= {"user_dir", "generation_args", "is_vocoder"}
OF_A_SEARCH = {spec.name for spec in fields(GenerationConfig)}
# Those that commands read, and no call in Python.
OF_A_COMMAND = {"lm_path", "lm_weight", "nbest", "prefix_size", "replace_unk", "retain_dropout"}
NO_OPTION = "not an option of a search, such as lenpen or max_len_b"
OF_A_CALL = {*inspect.signature(GeneratorHubInterface.generate).parameters}  # of `generate`, which has any other name


@after(options, "parse_args_and_arch")
def _note_overrides(parsed: Any, *unused, **other) -> None:
    GIVEN.clear()
    args = parsed[0] if isinstance(parsed, tuple) else parsed
    if not getattr(args, "lm_path", None):  # which gets the overrides of the translation models, too
        names = literal(getattr(args, "model_overrides", None) or "{}")
        GIVEN.update({name: f"--model-overrides: {name}" for name in names})


@before(hub_utils, "from_pretrained")
def _note_arguments(*unused, **given) -> None:
    kinds = [kind for name in ("bpe", "tokenizer") for kind in REGISTRIES[name]["dataclass_registry"].values()]
    of_text = {spec.name for kind in filter(None, kinds) for spec in fields(kind)}
    GIVEN.clear()
    GIVEN.update({name: name for name in given.keys() - OF_THE_HUB - of_text})


@before(GeneratorHubInterface, "generate")
def _check_search(interface: GeneratorHubInterface, *unused, **given) -> None:
    """Raises ValueError for an argument of `translate`, `sample`, `score` or `generate` that no search takes.

    Those of the task are left to it.
    """
    if not any(isinstance(model, ConfiguredModel) for model in interface.models):
        return
    known = OF_A_CALL | (OF_A_SEARCH - OF_A_COMMAND) | _groups(interface.cfg)["task"].keys()
    for name in sorted(given.keys() - known):
        raise ValueError(f"{name}={given[name]}: {NO_OPTION}")


def _groups(cfg: DictConfig) -> Any:
    """The groups of a configuration, as dictionaries; None for an empty one."""
    groups: Any = OmegaConf.to_container(cfg)
    return {name: vars(group) if isinstance(group, Namespace) else group for name, group in groups.items()}


@before(checkpoint_utils, "overwrite_args_by_name")
def _check_names(cfg: DictConfig, overrides: dict[str, Any]) -> None:
    """Raises ValueError for a name that the model does not have, or no longer has."""
    groups = _groups(cfg)
    model = groups.get("model") or {}
    arch = model.get("arch") or model.get("_name")
    ours = _options_of(arch)
    if ours is None:
        return
    known = {*groups, *ours.known()}.union(*(group for group in groups.values() if isinstance(group, dict)))
    removed = ours.removed()
    for name in sorted(GIVEN.keys() & overrides.keys()):
        if name in removed:
            raise ValueError(f"{GIVEN[name]}: was removed: {removed[name]}")
        if name not in known:
            raise ValueError(f"{GIVEN[name]}: not an option of {arch}")
        if name in OF_A_SEARCH and GIVEN[name] != name:
            raise ValueError(f"{GIVEN[name]}: has no effect there: must be an option of the command")


@before(models, "build_model")
def _check_configuration(cfg: Any, task: Any, from_checkpoint: bool = False) -> None:
    """Raises ValueError for a removed option of a new model, and for a name in `--eval-bleu-args` that no search takes.

    A configuration that was saved may name either.
    """
    ours = _options_of(getattr(cfg, "_name", None))
    if ours is None or from_checkpoint:
        return
    if isinstance(cfg, DictConfig):
        ours.reject_removed(cfg, ours.removed())
    given = json.loads(getattr(getattr(task, "cfg", None), "eval_bleu_args", None) or "{}")
    for name in sorted(set(given) - OF_A_SEARCH):
        raise ValueError(f"--eval-bleu-args: {name}: {NO_OPTION}")


def _options_of(arch: str | None) -> type[Options] | None:
    """The options of an architecture of this package."""
    model = ARCH_MODEL_REGISTRY.get(arch)
    return model.options if isinstance(model, type) and issubclass(model, ConfiguredModel) else None
