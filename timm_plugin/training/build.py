"""What the image trainer trains, from its options: the model, and its task."""

import argparse
import inspect
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from recurrence.errors import misfit
from timm_plugin._config import DEPTH_OPTIONS, ImageConfig, near
from timm_plugin._model import ImageModel
from timm_plugin._saved import options_of
from timm_plugin.checkpoints import MALFORMED, create_model, is_registered, metadata_of, options_in, trained_with
from timm_plugin.task import DeepSupervisionTask, hard_distillation, soft_distillation
from timm_plugin.training.folders import different_classes, listed
from timm_plugin.training.options import DEPTH, OptionError, reject


def build(option: str, args: argparse.Namespace, **settings: Any) -> nn.Module:
    """Builds the "model" or the "teacher", at --img-size if its constructor takes a size.

    Args:
        option: which of the two.
        args: of the trainer.
        **settings: arguments of the constructor, where the options have none.

    Raises:
        OptionError: the constructor rejects an argument, or the weights or the images do not fit the model.
    """
    name, kwargs = getattr(args, option), dict(getattr(args, f"{option}_kwargs"))
    overlay = kwargs.get("pretrained_cfg_overlay", {})
    if not isinstance(overlay, dict):
        rule = "must be a dictionary: put the whole argument in quotes, as \"pretrained_cfg_overlay={'file': 'FILE'}\""
        reject(f"{option}_kwargs", f"pretrained_cfg_overlay={overlay}", rule)
    if option == "model":
        kwargs |= {key: value for key in DEPTH if (value := getattr(args, key)) is not None and value is not False}
        if args.depth_range:
            kwargs.setdefault("depth_seed", args.seed)
    if args.img_size and getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
        kwargs["img_size"] = args.img_size
    try:
        model = create_model(name, **{**settings, **kwargs})
    except (AssertionError, OSError, RuntimeError, TypeError, ValueError) as error:
        # timm's error about a missing file has no message.
        reason = misfit(error) or " ".join(str(error).split()) or "must name files that exist"
        # An option of ours may break the rule, not an argument that was given.
        named = re.fullmatch(r"(\w+)=(.*?): (.*)", reason)
        if named and named[1] in (*DEPTH, "img_size") and named[1] not in dict(getattr(args, f"{option}_kwargs")):
            reject(*named.groups())
        reject(f"{option}_kwargs", kwargs, reason + _hint(name, kwargs, error))
    if model.in_chans != 3:
        reject(f"{option}_kwargs", f"in_chans={model.in_chans}", "must be 3, as images are read in RGB")
    return model


def _hint(name: str, kwargs: Mapping[str, Any], error: Exception) -> str:
    """What to do about an error of a model's constructor, as the end of a message; empty if nothing is known."""
    unknown = re.search(r"\(\) got an unexpected keyword argument '(\w+)'$", str(error))
    if unknown:  # of a model of timm; ours say so themselves
        with torch.device("meta"), suppress(TypeError):
            return near(unknown[1], inspect.signature(type(timm.create_model(name))).parameters)
    head = getattr(timm.get_pretrained_cfg(name), "classifier", None)
    other = re.search(rf"size mismatch for {head}\.weight: .*?\[(\d+), ", str(error))
    file = kwargs.get("checkpoint_path") or kwargs.get("pretrained_cfg_overlay", {}).get("file")
    if not (other and file):
        return ""
    overlay = f"\"pretrained_cfg_overlay={{'file': '{file}', 'num_classes': {other[1]}}}\""
    return f" {file} is for {other[1]} classes; for a new head, give --model-kwargs pretrained=True {overlay}"


@contextmanager
def weights_not_found() -> Iterator[list[str]]:
    """Collects the names of the tensors that pretrained weights lack, which timm logs at a level that is not shown.

    With a new head timm accepts any number of them; otherwise none.
    """
    names: list[str] = []
    timms = logging.getLogger("timm.models._builder")
    before, shown = timms.level, timms.getEffectiveLevel()

    def collect(record: logging.LogRecord) -> bool:
        if found := re.match(r"Missing keys \((.+?)\)", record.getMessage()):
            names.extend(found[1].split(", "))
        return record.levelno >= shown

    timms.addFilter(collect)
    timms.setLevel(logging.INFO)
    try:
        yield names
    finally:
        timms.removeFilter(collect)
        timms.setLevel(before)


def origin(args: argparse.Namespace, model: nn.Module, missing: Sequence[str] = ()) -> str:
    """Where the weights of the model come from, which are new, and with which other options they were trained.

    Args:
        args: of the trainer.
        model: as they describe it.
        missing: tensors of which the weights have none, see :func:`weights_not_found`.
    """
    kwargs, config = dict(args.model_kwargs), model.pretrained_cfg
    if path := kwargs.get("checkpoint_path"):
        return f"weights and head of {path}{_otherwise(path, model)}{_other_classes(_classes_in(path), args)}"
    if not kwargs.get("pretrained"):
        return "new weights"
    file = config.get("file")
    tagged = ".".join(config[key] for key in ("architecture", "tag") if config.get(key))
    weights = f"weights of {file or tagged}{_otherwise(file, model)}"
    heads = [config["classifier"]] if isinstance(config["classifier"], str) else config["classifier"] or ()
    if new := [name for name in missing if name.rpartition(".")[0] not in heads]:
        weights += f", except for {len(new)} of {len(model.state_dict())} tensors, which are new ({listed(new)})"
    if config["num_classes"] != args.num_classes:
        return f"{weights}, and a new head in place of that for {config['num_classes']} classes"
    # timm forgets the names of a file's classes, which only a run's checkpoint holds.
    head = config.get("label_names") or (_classes_in(file) if file else None)
    return f"{weights}, and its head{_other_classes(head, args)}"


def _classes_in(checkpoint: str) -> Sequence[str] | None:
    """The names of the classes of a run's checkpoint, in the order of the logits; None if the file does not say."""
    with suppress(OSError, *MALFORMED):
        return getattr(options_in(Path(checkpoint)), "label_names", None)
    return None


def _other_classes(head: Sequence[str] | None, args: argparse.Namespace) -> str:
    """How the classes of a head differ from those of DATA, as the end of a message; empty if not, or if unknown."""
    difference = different_classes(head or args.label_names, args.label_names)
    return f", whose classes DATA {difference}" if difference else ""


def _otherwise(file: str | None, model: nn.Module) -> str:
    """The options with which a file was trained, where the model has others, in brackets; empty if it has none.

    The weights fit whatever many options say, such as the number of heads.
    """
    before = _configuration(Path(file)) if file and isinstance(model, ImageModel) else None
    if before is None:
        return ""
    now = vars(model.config)
    others = {name: value for name, value in vars(before).items() if name in now and now[name] != value}
    words = [f"{name}={value}" for name, value in others.items() if not _may_differ(name)]
    return f" (trained with {', '.join(words)})" if words else ""


def _configuration(checkpoint: Path) -> ImageConfig | None:
    """The options of the model that was trained, with its defaults; None if the checkpoint does not say."""
    with suppress(OSError, *MALFORMED), torch.device("meta"):
        saved = metadata_of(checkpoint)
        if "args" in saved and is_registered(str(saved.get("arch"))):
            options = options_of(checkpoint, saved["args"])
            trained = timm.create_model(saved["arch"], **trained_with(saved["arch"], options))
            return trained.config if isinstance(trained, ImageModel) else None
    return None


def _may_differ(option: str) -> bool:
    """Whether fine-tuning may change an option freely: rates, the depths of training, the images' size, the classes."""
    return option.endswith("_rate") or option in (*DEPTH_OPTIONS, "num_classes", "img_size")


def load_teacher(args: argparse.Namespace) -> nn.Module:
    """The teacher with the weights of --teacher-checkpoint, by default timm's pretrained ones.

    It has the options of its training, unless --teacher-kwargs has others.

    Raises:
        OptionError: as :func:`build` does, or the weights do not fit the teacher, or are for other classes.
    """
    if args.teacher_checkpoint:
        return _trained_teacher(args)
    teacher = build("teacher", args, num_classes=args.num_classes, pretrained=True)
    config = teacher.pretrained_cfg
    rule = None
    if config["num_classes"] != args.num_classes:  # timm has drawn it a new classifier
        rule = f"its weights are for {config['num_classes']} classes, the images have {args.num_classes}"
    elif difference := different_classes(args.label_names, config.get("label_names") or args.label_names):
        rule = f"its weights must be for the images' classes: {difference}"
    if rule:
        reject("teacher", args.teacher, f"{rule}: needs --teacher-checkpoint")
    return teacher


def _trained_teacher(args: argparse.Namespace) -> nn.Module:
    path = Path(args.teacher_checkpoint)
    try:
        trained = options_in(path)
        arch = str(metadata_of(path).get("arch"))  # may have a tag, whose preprocessing the training had
        name = arch if arch.partition(".")[0] == args.teacher and is_registered(arch) else args.teacher
        settings = {name: value for name, value in trained_with(args.teacher, trained).items() if name != "img_size"}
        teacher = build(
            "teacher",
            argparse.Namespace(**{**vars(args), "teacher": name}),
            **{**settings, "num_classes": args.num_classes},
        )
        timm.models.load_checkpoint(teacher, str(path))
    except OptionError:
        raise
    except (RuntimeError, ValueError) as error:
        reason = misfit(error) or " ".join(str(error).split())
        reject("teacher_checkpoint", path, reason.removeprefix(f"{path}: "))
    names = getattr(trained, "label_names", None) or args.label_names
    if difference := different_classes(args.label_names, names):
        reject("teacher_checkpoint", path, f"must have the images' classes: {difference}")
    seen = {key: value for key in ("mean", "std") if (value := getattr(trained, key, None))}
    teacher.pretrained_cfg = {**teacher.pretrained_cfg, **seen}  # timm's tasks normalise its images by these
    return teacher


def make_task(args: argparse.Namespace, model: nn.Module, device: torch.device) -> timm.task.TrainingTask:
    """The training task: classification of the labels, or with --teacher one of the two kinds of distillation.

    Raises:
        OptionError: --teacher with a model that is trained at several depths at once, or as :func:`load_teacher` does.
    """
    criterion = dict(soft_targets=True) if args.mixup or args.cutmix else dict(smoothing=args.smoothing)
    settings = dict(criterion_kwargs=criterion, device=device)
    supervised = getattr(model, "supervises_depths", False)
    if not args.teacher:
        return (DeepSupervisionTask if supervised else timm.task.ClassificationTask)(model, **settings)
    if supervised and model.config.pass_loss:
        reject("pass_loss", model.config.pass_loss, "must not be given with --teacher, whose labels are for one pass")
    if supervised:
        reject("teacher", args.teacher, f"must not be given with {args.model}, whose two depths learn from labels")
    sized = argparse.Namespace(**{**vars(args), "img_size": args.img_size or _side(model)})
    teacher = load_teacher(sized).to(device)
    if args.distillation == "hard":
        return hard_distillation(model, teacher, **settings)
    return soft_distillation(model, teacher, args.temperature, **settings)


def _side(model: nn.Module) -> int | None:
    """The side of the images that a model is trained on without --img-size; None if they are not square."""
    _, height, width = timm.data.resolve_model_data_config(model)["input_size"]
    return height if height == width else None
