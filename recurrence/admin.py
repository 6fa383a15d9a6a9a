"""Admin: residual sums `f(x) + omega * x` whose omegas start at what one run of the stack measures.

Source: Liu et al. (arXiv:2004.08249), section 4; Takase & Kiyono (arXiv:2104.06022), whose code it follows.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from recurrence.loop import Loop


class Admin(nn.Module):
    """The residual sum of one sublayer in one pass: `f(x) + omega * x`, with omega (C,) all 1 until it is profiled.

    omega is `weight + offset`. Profiling writes the offset, because an optimizer may have taken its copy of the weights
    before the first batch was seen, and would write that back over them. The weight's gradient is omega's.
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


def attach(loop: Loop, width: int) -> None:
    """Gives every residual sum of every pass a vector of its own, in the place of the plain sum.

    Raises:
        ValueError: if the loop is pre-norm, or its sums have coefficients already.
    """
    if any(block.pre_norm for block in loop.blocks):
        raise ValueError("admin: does not go with pre_norm")
    if any(getattr(block, "residuals", None) for block in loop.blocks):
        raise ValueError("admin: does not go with residual sums that have coefficients")
    for own in loop.own:
        own.residuals = nn.ModuleList(Admin(width) for _ in own.residuals)


def admins(stack: nn.Module) -> list[Admin]:
    """The sums of a stack in the order of their execution; those of a pass belong to it alone."""
    return [module for module in stack.modules() if isinstance(module, Admin)]


def profile(stacks: Iterable[nn.Module], run: Callable[[], object]) -> None:
    """Sets the omegas of fresh stacks from one run of theirs, in which each is used as soon as it is set.

    With s = 1 at the beginning of a stack, each sum gets omega = s, and s becomes the root of Var(omega x) + Var(f(x)):
    population variances over all elements, those of padding included, in float32 at least.

    Args:
        stacks: each begins at s = 1.
        run: runs every sum of every stack once; with dropout, if it is to be that of training.
    """
    hooks = []
    for stack in stacks:
        measure = _Measure()
        hooks += [module.register_forward_pre_hook(measure) for module in admins(stack)]
    try:
        with torch.no_grad():
            run()
    finally:
        for hook in hooks:
            hook.remove()


class _Measure:
    """What a sum does before it adds, while it is profiled."""

    def __init__(self):
        self.scale = torch.ones(())

    def __call__(self, module: Admin, inputs: tuple[Tensor, Tensor]) -> None:
        module.offset.copy_(self.scale - 1)
        x, y = (value.to(torch.promote_types(value.dtype, torch.float32)) for value in inputs)
        self.scale = ((module.omega * x).var(correction=0) + y.var(correction=0)).sqrt()


def read(stacks: Iterable[nn.Module]) -> Tensor:
    """What was profiled, one number a sum: (sums,) in float32, 1 where nothing was."""
    return torch.stack([module.offset.float() + 1 for stack in stacks for module in admins(stack)])


def write(stacks: Iterable[nn.Module], scalars: Tensor) -> None:
    """The inverse of :func:`read`."""
    modules = [module for stack in stacks for module in admins(stack)]
    for module, scalar in zip(modules, scalars, strict=True):
        module.offset.copy_(scalar - 1)


def folded(module: nn.Module) -> dict[str, Tensor]:
    """Its state dict with the whole omegas as weights."""
    whole = {
        f"{name}.weight".lstrip("."): child.omega.detach()
        for name, child in module.named_modules()
        if isinstance(child, Admin)
    }
    return {**module.state_dict(), **whole}
