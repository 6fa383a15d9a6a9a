"""Compare a looped image model with unshared ones of equal storage, operations and training time.

Usage::

    python -m timm_plugin.compare IMAGES --output DIR --seeds 1,2,3 --model ringformer_vit [timm_plugin.train's options]

The options describe the looped model; the other rows are derived from it. timm_plugin.train trains all rows with every
seed; the score is the accuracy on --val-split after the last epoch. What has finished is not repeated: the same command
continues an interrupted comparison.
"""

import argparse
import itertools
import json
import re
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import timm
import torch
from timm import utils
from torch import nn

from recurrence import count
from recurrence.comparison.command import Comparison, add_options, compare, python_step, with_rate, without
from recurrence.comparison.controls import Controls
from recurrence.comparison.rows import Length, Row, Score, counted
from recurrence.comparison.runs import Step, Values
from timm_plugin import MODELS, repairs
from timm_plugin._config import ImageConfig
from timm_plugin._model import ImageModel
from timm_plugin.checkpoints import names_source
from timm_plugin.train import Trainer
from timm_plugin.training import options
from timm_plugin.training.build import build

UPSTREAM = ("pandas", "timm.data", "timm.models", "timm.optim", "timm.scheduler", "timm.task", "torchvision")
WARM_UP, TIMED = 2, 5  # batches
BY_TRAINER = ("img_size", "num_classes")  # which the trainer sets


class ImageControls(Controls):
    """Command lines of timm_plugin.train. `blocks` and `passes` are by stage.

    Args:
        looped: the looped model, as the trainer builds it.
        args: the trainer's options.
        words: its command line, without --output.
    """

    def __init__(self, looped: nn.Module, args: Namespace, words: Sequence[str]):
        self.looped, self.args, self.words = looped, args, words
        self.rest = without(words, _add_model_options)
        self.target = count.stored(looped)
        self.blocks = [len(loop.blocks) for loop in looped.loops()]
        self.passes = [loop.passes for loop in looped.loops()]
        self.half = [max(1, passes // 2) for passes in self.passes]

    def unshared(self, layers: Sequence[int], **sizes: Any) -> list[str]:
        config = self.looped.config
        wanted = {**vars(config), **config.unshared(layers), **sizes}
        model = wanted.pop("model", self.args.model)
        preset = preset_of(model)
        known = [name for name in preset.options() if name in wanted]
        changed = {name: wanted[name] for name in known if wanted[name] != getattr(preset, name)}
        kwargs = [f"{name}={value}".replace(" ", "") for name, value in changed.items() if name not in BY_TRAINER]
        return [*self.rest, "--model", model, "--model-kwargs", *kwargs]

    def more_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        return self.looped.config.more_heads(steps, hidden)

    def narrower_heads(self, steps: int, hidden: int) -> dict[str, Any]:
        return self.looped.config.narrower_heads(steps, hidden)

    def build(self, words: Sequence[str]) -> nn.Module:
        """The model of a command line, on the meta device."""
        args = options.parser("").parse_args([*words, "--output", self.args.output])
        with torch.device("meta"):
            return build("model", args, num_classes=self.args.num_classes)


@cache
def preset_of(model: str) -> ImageConfig:
    """The options that a model has by default."""
    return timm.create_model(model, device="meta").config


class ImageComparison(Comparison):
    """Rows of timm_plugin.train.

    Args:
        args: all options, as the trainer's parser gives them.
        words: the trainer's command line, without --output.
    """

    length = "epochs"
    controls: "ImageControls"
    diverged = re.compile(r"error: loss (nan|inf)")

    def __init__(self, args: Namespace, words: Sequence[str]):
        self.args, self.words = args, _added_up(words)
        options.reject_given(args, ["seed"], "is set by --seeds")
        options.reject_given(args, ["resume"], "is always on")
        if args.model.partition(".")[0] not in MODELS and not args.user_module:
            raise ValueError(f"--model={args.model}: must be a looped model of timm_plugin")
        for name, value in args.model_kwargs:
            if names_source(name):
                rule = "must not be given, because the other rows would have no such weights to start from"
                raise ValueError(f"--model-kwargs {name}={value}: {rule}")
        self.args.resume = True
        options.check(args)
        trainer = Trainer(args, utils.init_distributed_device(args))  # its errors come before the first training
        if not isinstance(trainer.model, ImageModel):
            raise ValueError(f"--model={args.model}: must be an ImageModel of timm_plugin")
        self.images = trainer.updates * args.grad_accum_steps * args.batch_size  # of an epoch
        self.controls = ImageControls(trainer.model, args, self.words)
        if self.controls.blocks == self.controls.passes:
            raise ValueError(f"--model={args.model}: runs each of its blocks once; must be a looped model")

    @property
    def score(self) -> Score:
        height, width = self.controls.looped.patch_embed.img_size
        return Score("top-1 %", True, f"an image of {height} x {width}", "inference")

    def row(self, name: str, words: Sequence[str]) -> Row:
        model = self.controls.build(words).eval()
        image = torch.zeros(1, model.in_chans, *model.patch_embed.img_size, device="meta")
        return counted(name, words, model, lambda: model(image))

    def steps(self, row: Row, seed: int, folder: Path, length: Length | None = None) -> list[Step]:
        flags = [*row.flags, *self._lasting(length)]
        train = ["timm_plugin.train", *flags, "--output", folder, "--seed", seed, "--resume"]
        own = ["--user-module", self.args.user_module] if self.args.user_module else []
        score = python_step("score", ["timm_plugin.accuracy", folder, *own], [], _scored)
        return [python_step("train", train, flags, self._trained), score]

    def _trained(self, folder: Path, _: str) -> Values:
        """Epochs, the seconds that they took, without evaluation, and the last loss on --val-split."""
        import pandas as pd

        table = pd.read_csv(folder / "summary.csv")
        seconds, loss = float(table["train_seconds"].sum()), float(table["eval_loss"].iloc[-1])
        speed = len(table) * self.images / max(seconds, 0.01)  # to which it is rounded
        return {"epochs": len(table), "seconds": seconds, "images/s": speed, "validation": loss}

    @property
    def imports(self) -> Sequence[str]:
        """On a CPU, timm, but not the plugin."""
        return UPSTREAM if self.args.device == "cpu" else ()

    def seconds(self, row: Row) -> float:
        given = [*row.flags, "--output", self.args.output]
        args = options.parser("").parse_args(given)
        trainer = Trainer(args, utils.init_distributed_device(args))
        trainer.task.train()
        ends = [time.perf_counter()]
        for number, (images, targets) in enumerate(itertools.islice(trainer.train_loader, WARM_UP + TIMED)):
            trainer.learn(images, targets, number, last=True)
            if trainer.device.type == "cuda":
                torch.cuda.synchronize(trainer.device)
            ends.append(time.perf_counter())
        taken = [end - begin for begin, end in itertools.pairwise(ends)]  # with the reading of the images
        batches = trainer.updates * args.grad_accum_steps
        return args.epochs * batches * statistics.median(taken[WARM_UP:] or taken)

    def _lasting(self, length: Length | None) -> list[str]:
        """Flags of a training of that length; its warm-up is in proportion, and so always shorter."""
        if length is None:
            return []
        warmup = self.args.warmup_epochs * length.total / self.args.epochs
        return ["--epochs", str(length.total), "--warmup-epochs", str(warmup)]


def _added_up(words: Sequence[str]) -> list[str]:
    """The words with all values of an option that adds them up in one place; of other options the last value counts."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--model-kwargs", "--teacher-kwargs"):
        parser.add_argument(option, dest=option, nargs="*", action="extend")
    given, rest = parser.parse_known_args(words)
    return rest + [word for option, values in vars(given).items() if values for word in (option, *values)]


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    """The options that describe the model; each row has its own."""
    parser.add_argument("--model")
    parser.add_argument("--model-kwargs", nargs="*")
    options.add_depth(parser)


def _scored(_: Path, log: str) -> Values:
    found = json.loads(log.strip().splitlines()[-1])
    return {"score": found["top1"], "inference": found["seconds"]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ``--help`` describes it."""
    words = with_rate(sys.argv[1:] if arguments is None else arguments)
    parser = options.parser(__doc__.split("\n")[0])
    parser.prog, parser.allow_abbrev = "python -m timm_plugin.compare", False  # rows replace options by their names
    parser.usage = "%(prog)s IMAGES --output DIR --seeds N,N,N --model MODEL [options of both]"
    add_options(parser, output=False)
    args = parser.parse_args(words)
    repairs.apply()
    try:
        comparison = ImageComparison(args, without(words, add_options))
        holds, rule = options.RULES["seed"]
        for seed in args.seeds:
            if not holds(seed):
                raise ValueError(f"--seeds {seed}: {rule}")
        for lr in args.rates or [args.lr]:
            options.check(Namespace(**{**vars(args), "lr": lr}))
        compare(comparison, args)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
