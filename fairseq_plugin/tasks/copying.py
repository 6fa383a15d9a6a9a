"""Copying and selective copying: recalling tokens after a long stretch of noise.

Source: Kausik, recurrent transformers, text of July 2025, "Block recurrence with accumulate" and Tables 5 and 6, after
Gu & Dao (arXiv:2312.00752). A text has 16 tokens to memorise, 4,096 tokens of noise and 16 query tokens, at which the
memorised ones must be repeated in order: 4,128 tokens (the paper's text says 4,028). In selective copying, the tokens
to memorise are scattered among the noise. The alphabet has 16 symbols: noise (0), 14 to memorise, and the query (15).
Only the last 16 positions have targets.

`--start-noise 32` is the paper's curriculum. Training starts with this much noise and doubles it up to `--noise`
whenever the validation loss is below `--next-below`. The scheduler's learning rate is multiplied by 1 - L / 2M, where L
is the current length and M the full length, and at full length also by 1 - exp(-validation loss). Noise changes between
epochs; validation has as much noise as training, and the subset `test` always has all of it. Of several validation
subsets, the loss of the first one counts.

Differs from the published code, which multiplies the rate again at each doubling and never raises it at full length,
and whose window is half the noise if that is less than 32. It validates every 100 updates, and doubles the noise no
more often; here an epoch decides.
"""

import math
from argparse import Namespace
from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II
from torch import Tensor

from fairseq_plugin.build import unpadded_dictionary
from fairseq_plugin.options import flag, option
from fairseq_plugin.tasks.answers import AnswerDataset, AnswerTask


@dataclass
class CopyingConfig(FairseqDataclass):
    """Options of the task; the lengths, the symbols and `next_below` are the paper's, without its curriculum."""

    noise: int = option(4096, "tokens of noise in a text")
    # fairseq's parser does not support `int | None`.
    start_noise: Optional[int] = option(  # noqa: UP045
        None, "curriculum: begin with this much noise and double it (paper: 32)"
    )
    next_below: float = option(0.3, "curriculum: double the noise when the validation loss, in nats, is below this")
    memorise: int = option(16, "tokens to copy in a text")
    symbols: int = option(16, "symbols of the alphabet: noise, the query, and those to copy")
    selective: bool = option(False, "scatter the tokens to copy among the noise instead of putting them first")
    train_texts: int = option(1600, "training texts per epoch, drawn again for each epoch")
    valid_texts: int = option(640, "texts of every other subset, drawn once")
    seed: int = II("common.seed")


@register_task("copying", dataclass=CopyingConfig)
class CopyingTask(AnswerTask):
    """Draws the texts and runs the curriculum; rejects options by name."""

    def __init__(self, cfg: CopyingConfig, **kwargs):
        super().__init__(cfg, **kwargs)
        check(cfg)
        self.args = Namespace(tokens_per_sample=cfg.noise + 2 * cfg.memorise)
        self.symbols = self.answers = unpadded_dictionary(cfg.symbols)
        self.epoch: int | None = None
        self.before_first_subset = True  # of a validation
        # Epoch -> the noise from that epoch on, and the validation loss before it.
        self.state.add_factory("course", lambda: {1: (cfg.start_noise or cfg.noise, None)})

    def load_dataset(self, split: str, **unused) -> None:
        """Creates the texts of a subset; only training texts change with the epoch."""
        self.datasets[split] = CopyingDataset(self, split)

    def noise(self, split: str, epoch: int) -> int:
        """Tokens of noise in the texts of a subset; `epoch` is the epoch of the training texts."""
        if split == "test":
            return self.cfg.noise
        return self.stage(epoch if split == "train" else self.epoch)[0]

    def stage(self, epoch: int | None) -> tuple[int, float | None]:
        """The noise in an epoch and the validation loss before it; those of the last known epoch if `epoch` is None."""
        course = self.state.course
        noise, loss = course[max(begun for begun in course if epoch is None or begun <= epoch)]
        # The course may be that of a checkpoint which was trained with other options.
        return self.cfg.noise if self.cfg.start_noise is None else min(noise, self.cfg.noise), loss

    def text(self, random: np.random.Generator, noise: int) -> tuple[Tensor, Tensor]:
        """A text and its target, each of shape (noise + 2 memorise,)."""
        count, query = self.cfg.memorise, self.cfg.symbols - 1
        tokens = random.integers(1, query, count)
        places = np.arange(count)
        if self.cfg.selective:
            places = np.sort(random.choice(noise + count, count, replace=False))
        source = np.zeros(noise + 2 * count, dtype=np.int64)
        source[places] = tokens
        source[-count:] = query
        target = np.full_like(source, self.answers.pad())
        target[-count:] = tokens
        return torch.from_numpy(source), torch.from_numpy(target)

    # The curriculum. fairseq calls these; `state.course` is saved with every checkpoint.

    def begin_epoch(self, epoch: int, model) -> None:
        """Records the epoch of training."""
        self.epoch = epoch

    def begin_valid_epoch(self, epoch: int, model) -> None:
        """Records the epoch of validation."""
        self.epoch, self.before_first_subset = epoch, True

    def post_validate(self, model, stats: dict, agg) -> None:
        """Logs the noise of this epoch, and sets that of the next one by the first validation subset."""
        loss, noise = stats["loss"] * math.log(2), self.stage(self.epoch)[0]
        stats["noise"] = noise
        if self.before_first_subset:
            following = min(2 * noise, self.cfg.noise) if loss < self.cfg.next_below else noise
            self.state.course[self.epoch + 1] = following, loss
        self.before_first_subset = False

    def optimizer_step(self, optimizer, model, update_num: int) -> None:
        """An optimizer step at the scheduler's learning rate times the curriculum's factor."""
        rate = optimizer.get_lr()
        optimizer.set_lr(rate * self.rate_factor())
        optimizer.step()
        optimizer.set_lr(rate)

    def rate_factor(self) -> float:
        """The curriculum's factor on the learning rate; 1 without a curriculum."""
        if self.cfg.start_noise is None:
            return 1.0
        noise, loss = self.stage(self.epoch)
        full = self.args.tokens_per_sample
        factor = 1 - (noise + 2 * self.cfg.memorise) / (2 * full)
        return factor if noise < self.cfg.noise or loss is None else factor * (1 - math.exp(-loss))


class CopyingDataset(AnswerDataset):
    """Texts drawn with a seed from `common.seed`, the subset, the index and, in training, the epoch."""

    def __init__(self, task: CopyingTask, split: str):
        texts = task.cfg.train_texts if split == "train" else task.cfg.valid_texts
        super().__init__(texts, task.args.tokens_per_sample, task.answers.pad(), self.draw)
        self.task, self.split, self.epoch = task, split, 1

    def set_epoch(self, epoch: int) -> None:
        """fairseq calls this before each epoch of training, and with 1 before validation."""
        self.epoch = epoch

    def draw(self, index: int) -> tuple[Tensor, Tensor]:
        """The text of an index and its target, two (T,)."""
        epoch = self.epoch if self.split == "train" else 0
        random = np.random.default_rng([self.task.cfg.seed, epoch, index, *self.split.encode()])
        return self.task.text(random, self.task.noise(self.split, self.epoch))


def check(cfg: CopyingConfig) -> None:
    """Raises ValueError, naming the option, if a value breaks its rule."""
    for name, least in (("noise", 1), ("memorise", 1), ("symbols", 4), ("train_texts", 1), ("valid_texts", 1)):
        if cfg[name] < least:
            raise ValueError(f"{flag(name)}={cfg[name]}: must be >= {least}")
    if cfg.start_noise is not None and not 1 <= cfg.start_noise <= cfg.noise:
        raise ValueError(f"--start-noise={cfg.start_noise}: must be >= 1 and <= --noise={cfg.noise}")
    if not cfg.next_below > 0:
        raise ValueError(f"--next-below={cfg.next_below}: must be > 0")
