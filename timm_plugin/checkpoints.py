"""Loads checkpoints of image models: of trainers, ours or timm's, files of weights, and folders in timm's format."""

import argparse
import pickle
from pathlib import Path
from typing import Any

import timm
from safetensors import SafetensorError
from timm.layers import to_2tuple
from torch import nn
from torch.serialization import DEFAULT_PROTOCOL, MAGIC_NUMBER

from recurrence.errors import misfit
from recurrence.files import read_json, require_plain
from timm_plugin._compat import load_checkpoint_metadata
from timm_plugin._config import DEPTH_OPTIONS, near
from timm_plugin._removed import OF_TRAINING
from timm_plugin._saved import OPTIONS, is_whole, options_of, require_held, require_held_tensors

LEGACY = pickle.dumps(MAGIC_NUMBER, DEFAULT_PROTOCOL)  # how a file of torch before 1.6 begins
PREPROCESSING = ("mean", "std", "crop_pct", "interpolation")
OF_MODEL = {"num_classes": "num_classes", "in_chans": "in_chans", "global_pool": "gp"}  # in train.py
OF_IMAGES = {"data", "dataset", "train_split", "val_split"}
# The types of the parts of a trainer's checkpoint; "model" and those with "ema" hold weights, too.
PARTS = {
    **dict.fromkeys(["state_dict", "state_dict_ema", "model", "model_ema", "optimizer", "amp_scaler", "saver"], dict),
    **{"args": argparse.Namespace, "arch": str, "epoch": int},
}
MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What timm and torch raise for a checkpoint of the right types that is inconsistent."""


def load(path: Path, name: str | None = None, **kwargs: Any) -> nn.Module:
    """The model of a checkpoint, read with torch's safe loader, with the preprocessing and the classes of its training.

    Its `pretrained_cfg` has the names of the classes, `label_names`, in the order of the logits; None if unknown.

    Args:
        path: a file, the folder of a run, for its best epoch, or a folder in timm's format.
        name: of the model; None for the one that the checkpoint names.
        **kwargs: of the model; they override those of the checkpoint.

    Raises:
        ValueError: if the model is not named, or the weights cannot be read or do not fit it.
        OSError: if there is no such file.
    """
    if (best := path / "model_best.pth.tar").exists():
        path = best
    if path.is_dir():
        return _from_folder(path, name, kwargs)
    metadata = metadata_of(path)
    options = options_of(path, metadata.get("args", argparse.Namespace()), OPTIONS.keys() - OF_IMAGES)
    if name is None and timm.is_model(str(metadata.get("arch"))):
        name = metadata["arch"]
    if name is None:
        saved = metadata.get("arch")
        unknown = f"names {saved!r}, which is not registered (see --user-module)" if saved else "does not name it"
        raise ValueError(f"--model: must name the model of {path}, which {unknown}")
    arguments = {**trained_with(name, options), **kwargs}
    model = _with_weights(path, name, arguments, checkpoint_path=str(path))
    given = {option: getattr(options, option, None) for option in (*PREPROCESSING, "input_size")}
    if size := arguments.get("img_size", options.img_size):
        given["input_size"] = (model.in_chans, *to_2tuple(size))
    given = {key: value for key, value in given.items() if value}
    given |= {f"test_{key}": None for key in ("input_size", "crop_pct") if key in given}  # those of other weights
    names = getattr(options, "label_names", None)
    if names is not None and len(names) != model.num_classes:
        raise ValueError(f"{path}: label_names: must be {model.num_classes} names, one a class, not {len(names)}")
    # In place, as timm has the same dictionary as `default_cfg`, too.
    model.pretrained_cfg.update(given, num_classes=model.num_classes, label_names=names)
    return model


def create_model(name: str, **kwargs: Any) -> nn.Module:
    """timm's `create_model`; a model that timm's builder did not make gets the attributes that timm's models have."""
    model = timm.create_model(name, **kwargs)
    for attribute, default in (("num_classes", None), ("in_chans", 3)):
        if not hasattr(model, attribute):
            setattr(model, attribute, kwargs.get(attribute, default))
    if not hasattr(model, "pretrained_cfg"):
        model.pretrained_cfg = timm.models.PretrainedCfg(architecture=name, num_classes=model.num_classes).to_dict()
    return model


def _from_folder(path: Path, name: str | None, kwargs: dict[str, Any]) -> nn.Module:
    """The model of a folder in timm's format, see :func:`load`; its configuration must not lead elsewhere."""
    config = read_json(path / "config.json", dict)
    if not (isinstance(config.get("architecture"), str) and timm.is_model(config["architecture"])):
        raise ValueError(f"{path}/config.json: must name the architecture, as a folder in timm's format does")
    if name not in (None, config["architecture"]):
        raise ValueError(f"--model={name}: must be {config['architecture']}, the model of {path}")
    arguments = config.get("model_args") or {}
    if not (isinstance(arguments, dict) and OPTIONS["model_kwargs"].holds(arguments)):
        raise ValueError(f"{path}/config.json: model_args: {OPTIONS['model_kwargs'].text}")
    for argument, value in arguments.items():
        if names_source(argument):
            raise ValueError(f"{path}: says {argument}={value!r}: must not name other files or addresses")
    preprocessing = config.get("pretrained_cfg") or {}
    if not isinstance(preprocessing, dict):
        raise ValueError(f"{path}/config.json: pretrained_cfg must be names and values")
    options_of(path / "config.json", argparse.Namespace(**{**config, **preprocessing}))
    return _with_weights(path, f"local-dir:{path}", kwargs, pretrained=True)


def _with_weights(path: Path, name: str, kwargs: dict[str, Any], **source: Any) -> nn.Module:
    """The model with the weights of a file or folder.

    Raises:
        ValueError: they cannot be read, or do not fit the model, or it is larger than they are.
        OSError: there is no such file, or it is a pipe or a device.
    """
    files = [file for file in path.iterdir() if not file.is_dir()] if path.is_dir() else [path]
    for file in files:
        require_plain(file)
    require_held(lambda: timm.create_model(name, **kwargs), sum(file.stat().st_size for file in files), path)
    try:
        return create_model(name, **source, **kwargs).eval()
    except (*MALFORMED, SafetensorError) as error:
        reason = misfit(error) or " ".join(str(error).split()) or type(error).__name__
        if not timm.is_model(name.partition(".")[0]):
            reason += near(name, timm.list_models())
        raise ValueError(f"{path}: not the weights of {name} with {kwargs}: {reason}") from None


def metadata_of(path: Path) -> dict[str, Any]:
    """What a training checkpoint holds besides tensors, {} for a state dict and a file of safetensors.

    Raises:
        ValueError: it cannot be read, or a part of it is of another type than trainers write.
        OSError: if there is no such file.
    """
    require_plain(path)
    if path.suffix == ".safetensors":
        return {}
    with path.open("rb") as file:
        if file.read(len(LEGACY)) == LEGACY:
            raise ValueError(f"{path}: is in torch's format before 1.6: load it with torch, and save it again")
    try:
        found = load_checkpoint_metadata(path)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must be a checkpoint of train_image.py or timm, not a {type(found).__name__}")
    value: Any
    for name, value in found.items():
        kind = PARTS.get(name, object)
        no_epoch = name == "epoch" and not (is_whole(value) and value >= 0)
        if no_epoch or not isinstance(value, kind):
            raise ValueError(f"{path}: not a checkpoint: {name} is {str(value)[:100]!r}, must be a {kind.__name__}")
    require_held_tensors(found, path)
    return found


def options_in(path: Path) -> argparse.Namespace:
    """The options of the trainer that wrote a checkpoint, none for a file of weights; raises as :func:`metadata_of`."""
    return options_of(path, metadata_of(path).get("args", argparse.Namespace()))


def is_registered(name: str) -> bool:
    """Whether timm has a model of this name and, if a tag follows behind a dot, such weights of it."""
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError:  # no such tag
        return False
    return timm.is_model(name)


def names_source(argument: str) -> bool:
    """Whether an argument of a model is a file or an address from which to load weights."""
    return argument.startswith("pretrained") or argument in ("checkpoint_path", "cache_dir")


def trained_with(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The model's arguments among the options of a trainer, ours or timm's train.py.

    Not the files or addresses from which a fine-tuning took its first weights, and none that only steered the training.
    """
    named = dict(getattr(args, "model_kwargs", {}))
    steering = OF_TRAINING.keys() | DEPTH_OPTIONS
    left_out = {argument for argument in named if names_source(argument) or argument in steering}
    kwargs = {argument: value for argument, value in named.items() if argument not in left_out}
    given = [(argument, getattr(args, option, None)) for argument, option in OF_MODEL.items()]
    overlay = named.get("pretrained_cfg_overlay") or {}  # may give the preprocessing, besides a file
    if kept := {key: overlay[key] for key in (*PREPROCESSING, "crop_mode", "input_size") if key in overlay}:
        kwargs["pretrained_cfg_overlay"] = kept
    if isinstance(tag := named.get("pretrained_cfg"), str):  # of other weights, whose preprocessing the training had
        kwargs["pretrained_cfg"] = tag
    channels, *sides = getattr(args, "input_size", None) or (None,)  # train.py's --input-size
    for argument, value in (*given, ("in_chans", channels)):
        if value is not None:
            kwargs.setdefault(argument, value)
    size = getattr(args, "img_size", None) or tuple(sides)
    if size and is_registered(name) and getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
        kwargs.setdefault("img_size", size)
    return kwargs
