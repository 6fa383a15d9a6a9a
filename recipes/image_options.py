"""The options of train_image.py, under timm's names where timm's train.py has them, and the rules that they keep."""

import argparse
import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import timm
import torch
from timm.optim import list_optimizers

import timm_plugin
from recurrence.elastic import DISTRIBUTIONS


def devices() -> set[str]:
    """The kinds of device that this machine has."""
    accelerator = torch.accelerator.current_accelerator()
    return {"cpu"} | ({accelerator.type} if accelerator else set())


RATE = (lambda value: 0 <= value <= 1, "must be in 0 .. 1")
POSITIVE = (lambda value: value > 0, "must be > 0")
NOT_NEGATIVE = (lambda value: value >= 0, "must be >= 0")
MODEL = (timm.is_model, "must be a registered model")
DEPTH = ("depth_range", "depth_distribution", "pass_loss", "backprop_passes")  # also of the models' constructors
TRIVIAL = "trivial"  # --aa: TrivialAugmentWide, which timm does not have
# Rules for one option by itself, wherever it is given.
RULES: dict[str, tuple[Callable[..., bool], str]] = {
    **dict.fromkeys(["hflip", "reprob", "smoothing"], RATE),
    **dict.fromkeys(["epochs", "batch_size", "grad_accum_steps", "lr", "clip_grad"], POSITIVE),
    **dict.fromkeys(["temperature", "img_size", "resize"], POSITIVE),
    **dict.fromkeys(["workers", "mixup", "cutmix", "weight_decay", "color_jitter", "warmup_epochs"], NOT_NEGATIVE),
    **dict.fromkeys(["min_lr", "aug_repeats"], NOT_NEGATIVE),
    **dict.fromkeys(["model", "teacher"], MODEL),
    **dict.fromkeys(["pass_loss", "backprop_passes"], POSITIVE),
    "scale": (lambda value: 0 < value[0] <= value[1] <= 1, "must be two shares, 0 < low <= high <= 1"),
    "crop_pct": (lambda value: 0 < value <= 1, "must be > 0 and <= 1"),
    "model_ema_decay": (lambda value: 0 < value < 1, "must be > 0 and < 1"),
    "opt": (lambda value: value.lower() in list_optimizers(), "must be an optimiser of timm"),
    "dataset": (lambda value: not value or value.lower().startswith("torch/"), "must be torch/NAME"),
    "device": (lambda value: value.partition(":")[0] in devices(), "must be a device of this machine"),
    "teacher_checkpoint": (lambda value: Path(value).is_file(), "must be a file"),
    "seed": (lambda value: 0 <= value < 1 << 15, "must be in 0 .. 32767"),
}


def key_value(text: str) -> tuple[str, object]:
    """A pair of `key=value`, the value read as a Python literal where it is one."""
    key, equals, value = text.partition("=")
    if not (key.isidentifier() and equals):
        raise argparse.ArgumentTypeError(f"{text!r}: must be key=value")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def depths(text: str) -> tuple[int, int]:
    """Two numbers of passes, written MIN-MAX."""
    ends = tuple(map(int, text.split("-"))) if re.fullmatch(r"\d+-\d+", text) else (0, 0)
    if not 1 <= ends[0] < ends[1]:
        raise argparse.ArgumentTypeError(f"{text}: must be MIN-MAX with 1 <= MIN < MAX, such as 1-6")
    return ends


def parser(description: str) -> argparse.ArgumentParser:
    """All options."""
    usage = "%(prog)s DATA --model MODEL --output DIR [options]"
    shape = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser(usage=usage, description=description, formatter_class=shape)
    add = found.add_argument_group("data").add_argument
    add("data", metavar="DATA", help="folder that holds the splits, or the root of --dataset")
    add("--dataset", default="", help="torchvision set, such as torch/cifar10 (default: folders or tar files)")
    add("--train-split", default="train", help="what to train on: a folder, or a file such as train.tar")
    add("--val-split", default="val", help="what to evaluate on after every epoch")
    add("--workers", type=int, default=2, help="loading processes; 0 loads in the trainer's own")
    add = found.add_argument_group("model").add_argument
    add("--model", required=True, help="a registered name")
    add("--model-kwargs", type=key_value, nargs="*", default=[], help="key=value ... for the model's constructor")
    add("--img-size", type=int, help="side of the images in pixels (default: the model's)")
    add("--teacher", help="a registered name: learn its soft labels alone, no label of the data (see --distillation)")
    add("--teacher-kwargs", type=key_value, nargs="*", default=[], help="key=value ... for the teacher's constructor")
    add("--teacher-checkpoint", help="its weights (default: the pretrained ones that timm downloads)")
    add("--distillation", choices=["soft", "hard"], default="soft", help="hard: its class and the label, half and half")
    add("--temperature", type=float, default=1.0, help="divides the logits of student and teacher")
    add = found.add_argument_group("depth, of the looped models of timm_plugin").add_argument
    add("--depth-range", type=depths, metavar="MIN-MAX", help="passes (of SReT: loops) that updates draw from")
    add("--depth-distribution", choices=DISTRIBUTIONS, help="poisson: Huginn's log-normal (default: uniform)")
    add("--pass-loss", type=float, metavar="W", help="weight of the mean loss of passes at which fewer would end")
    add("--backprop-passes", type=int, metavar="K", help="gradients through the last K passes alone")
    add = found.add_argument_group("augmentation").add_argument
    add("--no-aug", action="store_true", help="only resize and crop the centre; Mixup and CutMix stay")
    add("--scale", type=float, nargs=2, default=[0.08, 1.0], help="share of the area that a random crop keeps")
    add("--resize", type=int, help="pixels of the shorter side before a random crop of --img-size; replaces --scale")
    add("--hflip", type=float, default=0.5, help="rate of horizontal flips")
    add("--color-jitter", type=float, default=0.4, help="strength; --aa replaces it")
    add("--aa", help=f"policy of timm, such as rand-m9-mstd0.5-inc1, or {TRIVIAL} for torchvision's TrivialAugmentWide")
    add("--aug-repeats", type=int, default=0, help="of an image in a batch, shared out to the processes; 0 is off")
    add("--reprob", type=float, default=0.0, help="rate of random erasing")
    add("--mixup", type=float, default=0.0, help="alpha of Mixup; 0 is off")
    add("--cutmix", type=float, default=0.0, help="alpha of CutMix; 0 is off")
    add("--smoothing", type=float, default=0.1, help="label smoothing")
    add("--crop-pct", type=float, help="share of the side that evaluation keeps (default: the model's)")
    add = found.add_argument_group("optimisation").add_argument
    add("--epochs", type=int, default=300)
    add("--warmup-epochs", type=int, default=5, help="how many of the epochs warm up")
    add("--warmup-prefix", action="store_true", help="the cosine starts after them, from the peak (default: with them)")
    add("--batch-size", type=int, default=128, help="images that a process takes at once")
    add("--grad-accum-steps", type=int, default=1, help="batches an update")
    add("--opt", default="adamw", help="an optimiser of timm")
    add("--lr", type=float, default=1e-3, help="peak learning rate")
    add("--min-lr", type=float, default=0.0, help="learning rate at the end")
    add("--weight-decay", type=float, default=0.05)
    add("--clip-grad", type=float, help="largest norm of the gradient (default: no clipping)")
    add("--model-ema-decay", type=float, help="keep an average of the weights with this decay (default: none)")
    add("--amp", choices=["bfloat16", "float16"], help="mixed precision (default: float32)")
    add = found.add_argument_group("run").add_argument
    add("--output", required=True, metavar="DIR", help="folder to write")
    add("--resume", action="store_true", help="go on where the run in --output stopped, if there is one")
    add("--seed", type=int, default=1)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--compile", action="store_true", help="torch.compile the model; of those with shared blocks, each block")
    return found


class OptionError(ValueError):
    """An option that cannot be."""


def refuse(option: str, value: object, rule: str) -> NoReturn:
    """Raise an OptionError that names the option, its value and the rule."""
    raise OptionError(f"--{option.replace('_', '-')} {value}: {rule}")


def check(args: argparse.Namespace) -> None:
    """Refuse options that cannot be.

    Raises:
        OptionError: names the option, its value and the rule.
    """
    for name, (holds, rule) in RULES.items():
        value = getattr(args, name)
        if value is not None and not holds(value):
            refuse(name, value, rule)
    if args.depth_distribution and not args.depth_range:
        refuse("depth_distribution", args.depth_distribution, "needs --depth-range")
    for name in DEPTH:
        if getattr(args, name) and args.model not in timm_plugin.MODELS:
            refuse(name, getattr(args, name), f"must not be given with {args.model}, which has no loop over depth")
    for name in ("train_split", "val_split"):
        if not args.dataset and not (Path(args.data) / getattr(args, name)).exists():
            refuse(name, getattr(args, name), f"must be a folder or a .tar file in {args.data}")
    needing_a_teacher = {"teacher_kwargs": [], "teacher_checkpoint": None, "distillation": "soft", "temperature": 1}
    for name, default in needing_a_teacher.items():
        if getattr(args, name) != default and not args.teacher:
            refuse(name, getattr(args, name), "needs --teacher")
    if args.distillation == "hard" and args.temperature != 1:
        refuse("temperature", args.temperature, "must be 1 with --distillation hard, which has no softmax")
    for name in ("resize", "aa"):
        if getattr(args, name) and args.no_aug:
            refuse(name, getattr(args, name), "must not be given with --no-aug")
    if args.warmup_epochs >= args.epochs:
        refuse("warmup_epochs", args.warmup_epochs, f"must be < --epochs {args.epochs}")
    if args.batch_size % 2 and (args.mixup or args.cutmix):
        refuse("batch_size", args.batch_size, "must be even with Mixup or CutMix")
    if not args.resume and (Path(args.output) / "last.pth.tar").exists():
        refuse("output", args.output, "holds a run; add --resume to go on with it")
