"""Loss scaling with ``--amp``."""

from collections.abc import Callable
from typing import Any

from fairseq.optim.amp_optimizer import AMPOptimizer

from fairseq_plugin.repairs.replace import call_after, replace


def unscale_gradients_once() -> None:
    """Lets ``--amp`` divide the gradients by the loss scale once.

    fairseq unscales the gradients of the inner optimizer before it clips them, but then steps with its wrapper, for
    which torch's scaler unscales them again. Updates then become smaller and smaller as the scale grows.
    """

    def with_the_inner_optimizer(step: Callable) -> Callable:
        def step_once(self: AMPOptimizer) -> None:
            self.scaler.step(self.optimizer)
            self.scaler.update()

        return step_once

    replace(AMPOptimizer, "step", with_the_inner_optimizer)


def grow_scale_by_its_own_option() -> None:
    """Lets ``--amp-scale-window`` set after how many updates the scale doubles; fairseq takes ``--amp-init-scale``."""
    call_after(AMPOptimizer, "__init__", _set_window)


def _set_window(built: None, optimizer: AMPOptimizer, cfg: Any, *args, **kwargs) -> None:
    window = getattr(cfg.common, "amp_scale_window", None)
    if window is not None:
        optimizer.scaler.set_growth_interval(window)
