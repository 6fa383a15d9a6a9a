"""Admin: residual sums `f(x) + omega * x`, with omegas initialised from one run of the stack.

Source: Liu et al. (arXiv:2004.08249), section 4; Takase & Kiyono (arXiv:2104.06022), whose code it follows.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from recurrence.loop import Loop
from recurrence.parts import Sum


class Admin(Sum):
    """The residual sum of one sublayer in one pass: `f(x) + omega * x`, with omega (C,) all 1 until it is profiled.

    omega is `weight + offset`, and profiling writes the offset: an optimizer may have copied the weights before the
    first batch and would overwrite them with its copy. The weight's gradient is that of omega.

    Differs from the published code under weight decay, which pulls omega to its offset, there to 0. The release
    has none.
    """

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("offset", torch.zeros(()))

    @property
    def omega(self) -> Tensor:
        """(C,)."""
        return self.weight + self.offset

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x: the stream, y: the branch, both (B, T, C) -> (B, T, C)."""
        return torch.addcmul(y, x, self.omega)

    def factors(self) -> tuple[Tensor, float]:
        return self.omega.detach(), 1.0


def attach(loop: Loop, width: int) -> None:
    """Replaces every residual sum of every pass by one with its own vector.

    Raises:
        ValueError: if the loop is pre-norm, or its sums already have coefficients.
    """
    if any(block.pre_norm for block in loop.blocks):
        raise ValueError("admin: conflicts with pre_norm")
    if any(getattr(block, "residuals", None) for block in loop.blocks):
        raise ValueError("admin: conflicts with residual sums that have coefficients")
    for own in loop.own:
        own.residuals = nn.ModuleList(Admin(width) for _ in own.residuals)


def admins(stack: nn.Module) -> list[Admin]:
    """The sums of a stack in order of execution."""
    return [module for module in stack.modules() if isinstance(module, Admin)]


def profile(stacks: Iterable[nn.Module], run: Callable[[], object]) -> None:
    """Sets the omegas of new stacks during one run; each omega is used as soon as it is set.

    A stack starts with s = 1. Each sum gets omega = s, then s becomes sqrt(Var(omega x) + Var(f(x))), with population
    variances over all elements, including padding, in at least float32.

    Args:
        stacks: loops with :class:`Admin` sums.
        run: runs every sum of every stack once, with dropout as in training.
    """
    with ExitStack() as hooks, torch.no_grad():
        for stack in stacks:
            measure = _Measure()
            for module in admins(stack):
                hooks.enter_context(module.register_forward_pre_hook(measure))
        run()


class _Measure:
    """Forward pre-hook of a sum that sets its omega."""

    def __init__(self):
        self.scale = torch.ones(())

    def __call__(self, module: Admin, inputs: tuple[Tensor, Tensor]) -> None:
        module.offset.copy_(self.scale - 1)
        x, y = (value.to(torch.promote_types(value.dtype, torch.float32)) for value in inputs)
        self.scale = ((module.omega * x).var(correction=0) + y.var(correction=0)).sqrt()


def read(stacks: Iterable[nn.Module]) -> Tensor:
    """The profiled omegas, one per sum: (sums,) in float32, 1 if not profiled."""
    return torch.stack([module.offset.float() + 1 for stack in stacks for module in admins(stack)])


def write(stacks: Iterable[nn.Module], scalars: Tensor) -> None:
    """The inverse of :func:`read`."""
    modules = [module for stack in stacks for module in admins(stack)]
    for module, scalar in zip(modules, scalars, strict=True):
        module.offset.copy_(scalar - 1)


def folded(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of a module, with omega in place of the weight; the offset, which omega contains, stays."""
    omegas = {
        f"{name}.weight".lstrip("."): child.omega.detach()
        for name, child in module.named_modules()
        if isinstance(child, Admin)
    }
    return {**module.state_dict(), **omegas}
