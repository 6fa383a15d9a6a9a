"""A cellular automaton: the text is a row of cells, the answer at every cell is its value some steps later.

Source: elementary cellular automata and the numbers of their rules: Wolfram, "Statistical mechanics of cellular
automata" (Reviews of Modern Physics 55, 1983). Here they are one-sided, for causal models: a cell's next value follows
from the two cells to its left and from itself; left of the row, all cells are 0.

With `--parity`, a cell's value after t steps is the parity of itself and the t cells to its left; from `--cells` - 1
steps on, of all cells so far.

A text begins with one token that says how many steps to go, drawn for each text. With `--pass-steps`, passes are steps:
the first token is the same for all texts, which have a target for each pass, the row after as many steps. The criterion
answer_cross_entropy uses the target of the passes that ran.
"""

from argparse import Namespace
from dataclasses import dataclass

import numpy as np
import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II
from torch import Tensor

from fairseq_plugin.build import unpadded_dictionary
from fairseq_plugin.elastic import depth_ranges, flags_in_errors
from fairseq_plugin.options import flag, option
from fairseq_plugin.tasks.answers import AnswerCrossEntropy, AnswerDataset, AnswerTask
from recurrence.loop import named_loops

START = 2  # the first symbol after the two values of a cell; START + t - 1 asks for t steps


@dataclass
class AutomatonConfig(FairseqDataclass):
    """Options of the task."""

    rule: int = option(110, "the rule's number, 0 to 255")
    parity: bool = option(False, "instead of the rule: after t steps, the parity of the last t + 1 cells")
    cells: int = option(24, "cells of a row")
    steps: int = option(12, "the largest number of steps")
    pass_steps: bool = option(False, "the target is the row after as many steps as passes run")
    train_texts: int = option(6400, "training rows per epoch, drawn again for each epoch")
    valid_texts: int = option(1000, "rows of every other subset, drawn once")
    seed: int = II("common.seed")


@register_task("automaton", dataclass=AutomatonConfig)
class AutomatonTask(AnswerTask):
    """Draws rows and runs the automaton; rejects options by name."""

    def __init__(self, cfg: AutomatonConfig, **kwargs):
        super().__init__(cfg, **kwargs)
        check(cfg)
        self.args = Namespace(tokens_per_sample=1 + cfg.cells)
        self.symbols = self.answers = unpadded_dictionary(START + cfg.steps)

    def build_model(self, cfg, from_checkpoint: bool = False):
        """Raises ValueError if, with `--pass-steps`, the model has more passes than there are steps."""
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint:
            self._check_passes(max((len(loop.order) for loop in named_loops(model).values()), default=0))
        return model

    def build_criterion(self, cfg, *from_checkpoint: bool, **named: bool):  # which fairseq 0.12.2 does not have
        """Raises ValueError if, with `--pass-steps`, it draws more passes than steps or cannot choose a target."""
        criterion = super().build_criterion(cfg, *from_checkpoint, **named)
        if self.cfg.pass_steps and not isinstance(criterion, AnswerCrossEntropy):
            raise ValueError(f"--criterion={cfg._name}: must be answer_cross_entropy with --pass-steps")
        if getattr(cfg, "depth_range", None):
            with flags_in_errors():
                self._check_passes(max(map(max, depth_ranges(cfg.depth_range, sides=1))))
        return criterion

    def _check_passes(self, most: int) -> None:
        if self.cfg.pass_steps and most > self.cfg.steps:
            raise ValueError(f"--steps={self.cfg.steps}: must be >= {most}, the largest number of passes")

    def load_dataset(self, split: str, **unused) -> None:
        """Draws the rows of a subset; only training rows change with the epoch."""
        self.datasets[split] = AutomatonDataset(self, split)

    def draw(self, random: np.random.Generator, texts: int, cells: int, steps: int) -> np.ndarray:
        """Random rows and those that follow, (steps + 1, texts, cells)."""
        rows = [random.integers(2, size=(texts, cells))]
        for _ in range(steps):
            rows.append(rows[0] ^ left(rows[-1]) if self.cfg.parity else after(rows[-1], self.cfg.rule))
        return np.stack(rows)


class AutomatonDataset(AnswerDataset):
    """Rows drawn with a seed from `common.seed`, the subset and, in training, the epoch."""

    def __init__(self, task: AutomatonTask, split: str):
        texts = task.cfg.train_texts if split == "train" else task.cfg.valid_texts
        super().__init__(texts, 1 + task.cfg.cells, task.answers.pad(), self.row)
        self.task, self.split = task, split
        self.set_epoch(1)

    def set_epoch(self, epoch: int) -> None:
        """Draws the rows of an epoch of training; fairseq calls this before each epoch."""
        cfg = self.task.cfg
        random = np.random.default_rng([cfg.seed, epoch if self.split == "train" else 0, *self.split.encode()])
        first, *later = self.task.draw(random, len(self), cfg.cells, cfg.steps)
        steps: np.ndarray = np.ones(len(self), dtype=int)
        targets = np.stack(later, axis=1)  # (texts, steps, cells)
        if not cfg.pass_steps:
            steps = random.integers(1, cfg.steps + 1, len(self))
            targets = targets[np.arange(len(self)), steps - 1]
        self.sources = question(first, steps)
        self.targets = torch.from_numpy(np.insert(targets, 0, self.pad, axis=-1))

    def row(self, index: int) -> tuple[Tensor, Tensor]:
        """The text of an index, (T,), and its target, (T,), or (steps, T) with `--pass-steps`."""
        return self.sources[index], self.targets[index]


def question(rows: np.ndarray, steps: np.ndarray | int) -> Tensor:
    """The texts that ask for the rows (texts, cells) that many steps later, (texts, 1 + cells)."""
    return torch.from_numpy(np.column_stack([np.full(len(rows), START + steps - 1), rows]))


def left(rows: np.ndarray) -> np.ndarray:
    """The left neighbour of each cell, (..., cells)."""
    return np.insert(rows, 0, 0, axis=-1)[..., :-1]


def after(rows: np.ndarray, rule: int) -> np.ndarray:
    """The rows (..., cells) one step later."""
    return rule >> (4 * left(left(rows)) + 2 * left(rows) + rows) & 1


def check(cfg: AutomatonConfig) -> None:
    """Raises ValueError, naming the option, if a value breaks its rule."""
    if not 0 <= cfg.rule <= 255:
        raise ValueError(f"--rule={cfg.rule}: must be from 0 to 255")
    for name in ("cells", "steps", "train_texts", "valid_texts"):
        if cfg[name] < 1:
            raise ValueError(f"{flag(name)}={cfg[name]}: must be >= 1")
