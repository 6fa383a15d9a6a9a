"""Options of the image trainer and the rules that they must satisfy; names follow timm's train.py where it has them."""

import argparse
import ast
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import timm
import torch
from timm.optim import list_optimizers

from recurrence.removed import Removed, reject_options
from timm_plugin import MODELS
from timm_plugin._config import DEPTH_OPTIONS, near
from timm_plugin._removed import OF_TRAINING
from timm_plugin._saved import OPTIONS
from timm_plugin.checkpoints import is_registered
from timm_plugin.training.user_module import add_user_module


def is_policy(text: str) -> bool:
    """Whether --aa knows it: timm parses it, or it is TRIVIAL."""
    try:
        timm.data.create_transform(32, is_training=True, auto_augment=None if text == TRIVIAL else text)
    except (AssertionError, KeyError, ValueError):
        return False
    return True


def has_device(name: str) -> bool:
    """Whether this machine has a device, such as `cpu`, `cuda` or `cuda:1`."""
    try:
        device = torch.device(name)
    except RuntimeError:
        return False
    if device.type == "cpu":
        return True
    accelerator = torch.accelerator.current_accelerator()
    found = accelerator is not None and accelerator.type == device.type
    return found and (device.index or 0) < torch.accelerator.device_count()


RATE = (lambda value: 0 <= value <= 1, "must be in 0 .. 1")
POSITIVE = (lambda value: 0 < value < math.inf, "must be > 0 and finite")
NOT_NEGATIVE = (lambda value: 0 <= value < math.inf, "must be >= 0 and finite")
# Passed to the model's constructor, which has their rules; --seed is also the seed of the depths.
DEPTH = tuple(name for name in DEPTH_OPTIONS if name != "depth_seed")
WARMUP_EPOCHS = 5
AUGMENTING = ("resize", "scale", "hflip", "color_jitter", "aa", "reprob")  # which --no-aug turns off
TRIVIAL = "trivial"  # value of --aa for TrivialAugmentWide, which timm does not have
# Splits that timm knows; with --dataset, it would take any other word for the test set.
SPLITS = ("train", "training", "val", "valid", "validation", "eval", "evaluation", "test")
# Rules for the value of a single option: a test and the message if it fails.
RULES: dict[str, tuple[Callable[..., bool], str]] = {
    **dict.fromkeys(["hflip", "reprob", "smoothing"], RATE),
    **dict.fromkeys(["epochs", "grad_accum_steps", "lr", "clip_grad", "temperature", "resize"], POSITIVE),
    **dict.fromkeys(["warmup_epochs", "min_lr", "weight_decay"], NOT_NEGATIVE),
    **dict.fromkeys(["mixup", "cutmix", "color_jitter", "aug_repeats"], NOT_NEGATIVE),
    **dict.fromkeys(["model", "teacher"], (is_registered, "must be a registered model")),
    "device": (has_device, "must be a device of this machine"),
    "scale": (lambda value: 0 < value[0] <= value[1] <= 1, "must be two shares, 0 < low <= high <= 1"),
    "model_ema_decay": (lambda value: 0 < value < 1, "must be > 0 and < 1"),
    "opt": (
        lambda value: value.lower() in list_optimizers(exclude_filters=["adahessian"]),  # needs second derivatives
        "must be an optimiser of timm other than adahessian",
    ),
    "aa": (is_policy, f"must be {TRIVIAL}, or a policy of timm such as rand-m9-mstd0.5-inc1"),
    "teacher_checkpoint": (lambda value: Path(value).is_file(), "must be a file"),
    "seed": (lambda value: 0 <= value < 1 << 15, "must be in 0 .. 32767"),
}


def _near_model(name: str) -> str:
    return near(name, timm.list_models())


def other_devices(_: str) -> str:
    """The devices that there are, as the end of a message."""
    accelerator = torch.accelerator.current_accelerator()
    found = ["cpu"] + [f"{accelerator}:{index}" for index in range(torch.accelerator.device_count()) if accelerator]
    return f"; torch {torch.__version__} finds {', '.join(found)}"


def _without_splits(data: Path) -> str:
    """What to do with a folder of classes that has no splits, as the end of a message; empty for other folders."""
    folders = [path.name for path in data.iterdir() if path.is_dir()] if data.is_dir() else []
    if not folders or set(SPLITS).intersection(folders):
        return ""
    return '; for one folder of classes, see "Split your images" in docs/images.md'


HINTS = {"model": _near_model, "teacher": _near_model, "device": other_devices}
"""Functions of the value that add to the message of a rule."""


def key_value(text: str) -> tuple[str, object]:
    """Parses `key=value`; the value is a Python literal if it parses as one, else a string."""
    key, equals, value = text.partition("=")
    if not (key.isidentifier() and equals):
        raise argparse.ArgumentTypeError(f"{text!r}: must be key=value")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def depths(text: str) -> tuple[int, ...]:
    """Parses MIN-MAX, the smallest and the largest number of passes; the model checks them."""
    if not re.fullmatch(r"\d{1,6}-\d{1,6}", text):
        raise argparse.ArgumentTypeError(f"{text}: must be MIN-MAX, such as 1-6")
    return tuple(map(int, text.split("-")))


class HelpWithDefaults(argparse.RawDescriptionHelpFormatter):
    """Appends its default to an option's help, unless the help speaks of a default or there is none."""

    def _get_help_string(self, action: argparse.Action) -> str:
        value = action.default
        nothing = value is None or value is False or value in ("", [], argparse.SUPPRESS)
        return action.help if nothing or "default" in action.help else f"{action.help} (default: %(default)s)"


class OfTimm(Removed):
    """An option of timm's train.py, which is another one here."""

    reason = "is an option of timm's train.py; here,"


OF_TIMM = {
    "--pretrained": "give --model-kwargs pretrained=True",
    "--initial-checkpoint": "give --model-kwargs checkpoint_path=FILE",
    "--drop": "give --model-kwargs drop_rate=RATE",
    "--drop-path": "give --model-kwargs drop_path_rate=RATE",
    "--num-classes": "the classes of the data say it",
    "--amp-dtype": "give --amp bfloat16 or --amp float16",
}
"""What to do instead of each."""


def parser(description: str) -> argparse.ArgumentParser:
    """The command line of train_image.py."""
    command_line = argparse.ArgumentParser(
        usage="%(prog)s DATA --model MODEL --output DIR [options]",
        description=description,
        formatter_class=HelpWithDefaults,
    )
    for add_group in (_data, _model, add_depth, _augmentation, _optimisation, _run):
        add_group(command_line)
    for option, instead in OF_TIMM.items():
        command_line.add_argument(option, action=OfTimm, instead=instead)
    return command_line


def _data(command_line: argparse.ArgumentParser) -> None:
    add = command_line.add_argument_group("data").add_argument
    add("data", metavar="DATA", help="folder that holds the splits, or the root of --dataset")
    add("--dataset", default="", help="torchvision data set, such as torch/cifar10 (default: folders or tar files)")
    add("--train-split", default="train", help="training set: a folder, or a file such as train.tar")
    add("--val-split", default="val", help="set to evaluate on after every epoch")
    add("--workers", type=int, default=2, help="loader processes; 0 loads in the training process")


def _model(command_line: argparse.ArgumentParser) -> None:
    group = command_line.add_argument_group("model")
    add_user_module(group)
    add = group.add_argument
    add("--model", required=True, help="a name that timm, timm_plugin or --user-module registers")
    # Of one key, the last value counts.
    kwargs: dict[str, Any] = dict(type=key_value, nargs="*", action="extend", default=[])
    add("--model-kwargs", **kwargs, help="key=value ... for the model's constructor; checkpoint_path=FILE fine-tunes")
    add("--img-size", type=int, help="side of the images in pixels (default: the model's)")
    add("--teacher", help="a registered model, whose soft labels replace the labels of the data (see --distillation)")
    add("--teacher-kwargs", **kwargs, help="key=value ... for the teacher's constructor (default: as in its training)")
    add("--teacher-checkpoint", help="the teacher's weights (default: the pretrained ones that timm downloads)")
    add(
        "--distillation",
        choices=["soft", "hard"],
        default="soft",
        help="hard: learn the teacher's class and the label of the data, with equal weights",
    )
    add("--temperature", type=float, default=1.0, help="divides the logits of student and teacher")


def add_depth(command_line: argparse.ArgumentParser) -> None:
    add = command_line.add_argument_group("depth, for the looped models of timm_plugin").add_argument
    add("--depth-range", type=depths, metavar="MIN-MAX", help="draw the number of passes (SReT: loops) of each update")
    add(
        "--depth-warmup-updates",
        type=int,
        metavar="UPDATES",
        help="updates over which the smallest depth that may be drawn (or that --pass-loss supervises) falls from the "
        "full one",
    )
    add("--mixed-depth", action="store_true", help="train at two depths in every update: all passes, and fewer")
    add(
        "--pass-loss",
        type=float,
        metavar="W",
        help="weight of the mean loss of the earlier passes at which a shallower model would end",
    )
    reject_options(command_line, OF_TRAINING)


def _augmentation(command_line: argparse.ArgumentParser) -> None:
    add = command_line.add_argument_group("augmentation").add_argument
    add("--no-aug", action="store_true", help="only resize and crop the centre; does not disable Mixup and CutMix")
    add("--scale", type=float, nargs=2, default=[0.08, 1.0], help="range of a random crop, as shares of the area")
    add("--resize", type=int, help="pixels of the shorter side before a random crop of --img-size; replaces --scale")
    add("--hflip", type=float, default=0.5, help="rate of horizontal flips")
    add("--color-jitter", type=float, default=0.4, help="strength of color jitter; --aa replaces it")
    add("--aa", help=f"policy of timm, such as rand-m9-mstd0.5-inc1, or {TRIVIAL} for torchvision's TrivialAugmentWide")
    add("--aug-repeats", type=int, default=0, help="copies of an image per batch, spread over the processes; 0 is off")
    add("--reprob", type=float, default=0.0, help="rate of random erasing")
    add("--mixup", type=float, default=0.0, help="alpha of Mixup; 0 is off")
    add("--cutmix", type=float, default=0.0, help="alpha of CutMix; 0 is off")
    add("--smoothing", type=float, default=0.1, help="label smoothing")
    add("--crop-pct", type=float, help="share of the side that evaluation keeps (default: the model's)")


def _optimisation(command_line: argparse.ArgumentParser) -> None:
    add = command_line.add_argument_group("optimisation").add_argument
    add("--epochs", type=int, default=300, help="how often training sees all images (with --aug-repeats N: an Nth)")
    add("--warmup-epochs", type=float, default=WARMUP_EPOCHS, help="how many of --epochs warm up; may be a fraction")
    add(
        "--warmup-prefix",
        action="store_true",
        help="begin the cosine after the warm-up, at --lr (default: at the first update; the rate drops to it)",
    )
    add("--batch-size", type=int, default=128, help="images per batch and process")
    add("--grad-accum-steps", type=int, default=1, help="batches per update")
    add("--opt", default="adamw", help="an optimiser of timm")
    add("--lr", type=float, default=1e-3, help="peak learning rate")
    add("--min-lr", type=float, default=0.0, help="learning rate at the end")
    add("--weight-decay", type=float, default=0.05, help="weight decay of all matrices but positions and signals")
    add("--clip-grad", type=float, help="maximum norm of the gradient (default: no clipping)")
    add("--model-ema-decay", type=float, help="keep an average of the weights with this decay (default: none)")
    add("--amp", choices=["bfloat16", "float16"], help="mixed precision (default: float32)")


def _run(command_line: argparse.ArgumentParser) -> None:
    add = command_line.add_argument_group("run").add_argument
    add("--output", required=True, metavar="DIR", help="output folder")
    add("--resume", action="store_true", help="resume the run in --output, if there is one")
    add("--seed", type=int, default=1, help="random seed")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, or an accelerator such as cuda")
    add(
        "--compile", action="store_true", help="torch.compile the model, or each stored block of a model of timm_plugin"
    )


class OptionError(ValueError):
    """An option has an invalid value, or does not fit another option, the model or the data."""


def reject(option: str, value: object, rule: str) -> NoReturn:
    """Raises an OptionError that names the option, its value and the rule."""
    given = "" if value is True else f" {value}"  # a switch has no value
    raise OptionError(f"--{option.replace('_', '-')}{given}: {rule}")


def reject_given(args: argparse.Namespace, names: Sequence[str], rule: str) -> None:
    """Raises an OptionError for the first of these options that does not have its default."""
    for name in names:
        if getattr(args, name) != parser("").get_default(name):
            reject(name, getattr(args, name), rule)


def check(args: argparse.Namespace) -> None:
    """Checks everything that can be checked without loading data or building the model.

    Raises:
        OptionError: names the option, its value and the rule.
    """
    for name, (holds, rule) in RULES.items():
        value = getattr(args, name)
        if value is not None and not holds(value):
            reject(name, value, rule + HINTS.get(name, lambda _: "")(value))
    for name, readable in OPTIONS.items():  # from the run, once it is over
        if (value := getattr(args, name, None)) is not None and not readable.holds(value):
            reject(name, value, readable.text)
    for name in ("model_kwargs", "teacher_kwargs"):
        given = dict(getattr(args, name))
        if "img_size" in given:
            reject(name, "img_size", "must be given by --img-size, which also sets the size of the images")
        unfit = (("features_only", bool), ("global_pool", lambda pool: pool == ""), ("num_classes", lambda _: True))
        for argument, wrong in unfit:
            if argument in given and wrong(given[argument]):
                reject(name, f"{argument}={given[argument]}", "must not be given, as each image has one class of DATA")
    for name in ("train_split", "val_split"):
        split = getattr(args, name)
        if args.dataset and split not in SPLITS:
            reject(name, split, f"must be one of {', '.join(SPLITS)} with --dataset")
        if not args.dataset and not (Path(args.data) / split).exists():
            reject(name, split, f"must be a folder or a .tar file in {args.data}{_without_splits(Path(args.data))}")
    if args.model.partition(".")[0] not in MODELS and not args.user_module:
        reject_given(args, DEPTH, "needs a looped model of timm_plugin")
    if not args.teacher:
        reject_given(args, ["teacher_kwargs", "teacher_checkpoint", "distillation", "temperature"], "needs --teacher")
    if args.distillation == "hard" and args.temperature != 1:
        reject("temperature", args.temperature, "must be 1 with --distillation hard, which has no softmax")
    if args.teacher and args.distillation == "soft" and args.smoothing:
        reject_given(args, ["smoothing"], "must be 0 with --teacher, which learns no labels of the data")
    if args.no_aug:
        acting = [name for name in AUGMENTING if getattr(args, name)]
        reject_given(args, acting, "must not be given with --no-aug")
    if args.warmup_epochs >= args.epochs:
        default = " (its default)" if args.warmup_epochs == WARMUP_EPOCHS else ""
        rule = f"must be < --epochs {args.epochs}, for example --warmup-epochs {args.epochs / 10}"
        reject("warmup_epochs", f"{args.warmup_epochs}{default}", rule)
    if args.min_lr > args.lr:
        reject("min_lr", args.min_lr, f"must be <= --lr {args.lr}")
    if args.batch_size % 2 and (args.mixup or args.cutmix):
        reject("batch_size", args.batch_size, "must be even with Mixup or CutMix")
    if Path(args.output).exists() and not Path(args.output).is_dir():
        reject("output", args.output, "must be a folder, not a file")
    if not args.resume and (Path(args.output) / "last.pth.tar").exists():
        reject("output", args.output, "holds a run; add --resume to continue it")
