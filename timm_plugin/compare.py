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
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from timm import utils
from torch import nn

from recurrence import count
from recurrence.comparison.command import Comparison, add_options, compare, without
from recurrence.comparison.rows import Length, Row, Score, counted, widest, widest_below
from recurrence.comparison.runs import Step, Values
from timm_plugin import MODELS, repairs
from timm_plugin.checkpoints import names_source
from timm_plugin.train import Trainer
from timm_plugin.training import options
from timm_plugin.training.build import build

BY_TRAINER = ("img_size", "num_classes")  # which the trainer sets


class ImageComparison(Comparison):
    """Rows of timm_plugin.train.

    Args:
        args: all options, as the trainer's parser gives them.
        words: the trainer's command line, without --output.
    """

    length = "epochs"
    diverged = re.compile(r"error: loss (nan|inf)")

    def __init__(self, args: Namespace, words: Sequence[str]):
        self.args, self.words = args, _added_up(words)
        self.rest = without(self.words, _add_model_options)
        options.reject_given(args, ["seed"], "is set by --seeds")
        options.reject_given(args, ["resume"], "is always on")
        if args.model.partition(".")[0] not in MODELS:
            raise ValueError(f"--model={args.model}: must be a looped model of timm_plugin")
        for name, value in args.model_kwargs:
            if names_source(name):
                rule = "the other rows would have no such weights to start from"
                raise ValueError(f"--model-kwargs {name}={value}: {rule}")
        self.args.resume = True
        options.check(args)
        trainer = Trainer(args, utils.init_distributed_device(args))  # its errors come before the first training
        self.looped = trainer.model
        self.classes = args.num_classes
        self.blocks = [len(loop.blocks) for loop in self.looped.loops()]
        self.passes = [loop.passes for loop in self.looped.loops()]
        if self.blocks == self.passes:
            raise ValueError(f"--model={args.model}: runs each of its blocks once; must be a looped model")

    @property
    def score(self) -> Score:
        return Score("top-1 %", True, "an image of {} x {}".format(*self.looped.patch_embed.img_size))

    def rows(self, names: Sequence[str]) -> list[Row]:
        once, config = self._unshared(self.blocks), self.looped.config
        flags = {"looped": self.words, "once": once, "storage": once}
        if "deep" in names:
            flags["deep"] = self._unshared(self.passes)
        if "storage" in names and count.stored(self._build(once, "meta")) != count.stored(self.looped):
            flags["storage"] = self._as_large(self.blocks, config.more_heads, widest)
        if "narrow" in names:
            flags["narrow"] = self._as_large(self.passes, config.narrower_heads, widest_below)
        flags["time"] = flags["storage"]
        return [self._row(name, flags[name]) for name in names]

    def _as_large(self, blocks: Sequence[int], sizes: Callable, search: Callable) -> list[str]:
        """The flags of an unshared model that stores as much as the looped one, or as little less as can be."""

        def sized(steps: int, hidden: int) -> list[str]:
            return self._unshared(blocks, **sizes(steps, hidden))

        target = count.stored(self.looped)
        return sized(*search(lambda *given: count.stored(self._build(sized(*given), "meta")), target))

    def _unshared(self, blocks: Sequence[int], **sizes: Any) -> list[str]:
        """The flags of an unshared model, which name all of its options that differ from its preset."""
        config = self.looped.config
        wanted = {**vars(config), **config.unshared(blocks), **sizes}
        model = wanted.pop("model", self.args.model)
        preset = timm.create_model(model, device="meta").config
        known = [name for name in preset.options() if name in wanted]
        changed = {name: wanted[name] for name in known if wanted[name] != getattr(preset, name)}
        kwargs = [f"{name}={value}".replace(" ", "") for name, value in changed.items() if name not in BY_TRAINER]
        return [*self.rest, "--model", model, "--model-kwargs", *kwargs]

    def _build(self, words: Sequence[str], device: str = "cpu") -> nn.Module:
        args = options.parser("").parse_args([*words, "--output", self.args.output])
        with torch.device(device):
            return build("model", args, num_classes=self.classes)

    def _row(self, name: str, words: Sequence[str]) -> Row:
        model = self._build(words).eval()
        image = torch.zeros(1, model.in_chans, *model.patch_embed.img_size)
        return counted(name, words, model, lambda: model(image))

    def steps(self, row: Row, seed: int, folder: Path, length: Length | None = None) -> list[Step]:
        flags = [*row.flags, *self._lasting(length)]
        train = ["timm_plugin.train", *flags, "--output", folder, "--seed", seed, "--resume"]
        return [
            Step.of_module("train", train, flags, _trained),
            Step.of_module("score", ["timm_plugin.accuracy", folder], [], _scored("")),
            Step.of_module("score_8bit", ["timm_plugin.accuracy", folder, "--eight-bits"], [], _scored("_8bit")),
        ]

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
    """The options that describe the model, which each row has its own of."""
    parser.add_argument("--model")
    parser.add_argument("--model-kwargs", nargs="*")
    options.add_depth(parser)


def _trained(folder: Path, _: str) -> Values:
    """Epochs, the seconds that they took, without evaluation, and the last loss on --val-split."""
    import pandas as pd

    table = pd.read_csv(folder / "summary.csv")
    seconds, loss = float(table["train_seconds"].sum()), float(table["eval_loss"].iloc[-1])
    return {"epochs": len(table), "seconds": seconds, "validation": loss}


def _scored(suffix: str):
    def read(_: Path, log: str) -> Values:
        found = json.loads(log.strip().splitlines()[-1])
        return {f"score{suffix}": found["top1"], f"decoding{suffix}": found["seconds"]}

    return read


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ``--help`` describes it."""
    parser, words = options.parser(__doc__.split("\n")[0]), list(sys.argv[1:] if arguments is None else arguments)
    parser.prog, parser.allow_abbrev = "python -m timm_plugin.compare", False  # rows replace options by their names
    parser.usage = "%(prog)s IMAGES --output DIR --seeds N,N,N --model MODEL [options of both]"
    add_options(parser, output=False)
    args = parser.parse_args(words)
    repairs.apply()
    rates = args.rates or [args.lr]
    given = Namespace(**{**vars(args), "lr": rates[0]})
    try:
        comparison = ImageComparison(given, without(words, add_options))
        for lr, seed in itertools.product(rates, args.seeds):
            options.check(Namespace(**{**vars(given), "lr": lr, "seed": seed}))
        compare(comparison, args)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
