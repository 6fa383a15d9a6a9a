"""How many passes a training update runs, and which of them learn. :mod:`recurrence.elastic` sets it up and checks it.

Source: Huginn (arXiv:2502.05171), section 3.3: depths from a log-normal Poisson distribution, gradients through the
last passes only. Scalable depth by uniform draws: LayerDrop (arXiv:1909.11556), section 3, for unshared layers. The
warm-up: LayerSkip (arXiv:2404.16710), the gradual curriculum of its early-exit loss. Late loops: small language models
trained under a limit of time, such as those of https://github.com/openai/parameter-golf.

Differs from Huginn: depths are clipped to a range.
"""

from dataclasses import dataclass, field

import numpy as np

DISTRIBUTIONS = ("uniform", "poisson")
SIGMA = 0.5  # of Huginn's log-normal


@dataclass(frozen=True)
class Draw:
    """How many passes an update runs: a function of seed and update number, so that all ranks and resumed runs agree.

    Args:
        depths: the numbers of passes to draw from, ascending.
        distribution: "uniform", or "poisson": Huginn's log-normal Poisson, rounded to the nearest of the depths.
        mean: mean of the log-normal Poisson before rounding; Huginn's mean recurrence r + 1.
        seed: seed of the training.
        unit: number of passes that the log-normal Poisson counts as one.
        stream: draws of different streams are independent.
    """

    depths: tuple[int, ...]
    distribution: str = "uniform"
    mean: int = 1
    seed: int = 0
    unit: int = 1
    stream: int = 0

    def __call__(self, update: int, smallest: int = 1) -> int:
        """The depth of an update, of those that are at least `smallest` (the largest one if there are none)."""
        depths = [depth for depth in self.depths if depth >= smallest] or self.depths[-1:]
        rng = np.random.default_rng((self.seed % 2**64, update, self.stream))
        if self.distribution == "uniform":
            return depths[int(rng.random() * len(depths))]
        # The mean of a log-normal is exp(mu + sigma^2 / 2).
        rate = (self.mean / self.unit - 1) * rng.lognormal(-(SIGMA**2) / 2, SIGMA)
        drawn = self.unit * (1 + rng.poisson(rate))
        return min(depths, key=lambda depth: abs(depth - drawn))


@dataclass
class TrainingDepth:
    """The depth of a loop in training.

    Args:
        passes: the number of passes of the loop.
        draw: update number -> how many passes it runs; None for all.
        backprop_passes: number of last passes with gradients; None for all.
        warmup: updates during which the smallest depth falls linearly from all passes.
        mixed: each update trains at all passes and at the drawn depth, see :func:`recurrence.elastic.branches`.
        loop_after: number of updates in which each block runs once, before its loops begin.
    """

    passes: int
    draw: Draw | None = None
    backprop_passes: int | None = None
    warmup: int = 0
    mixed: bool = False
    loop_after: int = 0
    updates: int | None = field(default=None, init=False)  # how many updates there were

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of passes that may be drawn, ascending; all passes if none is drawn."""
        return (self.passes,) if self.draw is None else self.draw.depths

    @property
    def drawn(self) -> int:
        """How many passes this update runs, once the loops have begun.

        Raises:
            RuntimeError: if the depth changes and `updates` is not set.
        """
        if self.loop_after:
            self._known_updates()
        return self.passes if self.draw is None else self.draw(self._known_updates(), self.smallest)

    @property
    def smallest(self) -> int:
        """The smallest depth that this update may draw or supervise: all passes at first, fewer during the warm-up.

        Raises:
            RuntimeError: if there is a warm-up and `updates` is not set.
        """
        smallest = 1 if self.draw is None else self.draw.depths[0]
        if not self.warmup:
            return smallest
        return self.passes - int((self.passes - smallest) * min(1.0, self._known_updates() / self.warmup))

    def constant_passes(self, running: int) -> int:
        """How many of the `running` passes come before those that training backpropagates through."""
        return 0 if self.backprop_passes is None else max(0, running - self.backprop_passes)

    def _known_updates(self) -> int:
        if self.updates is None:
            raise RuntimeError("the depth changes in training: call model.set_num_updates(update) before each update")
        return self.updates
