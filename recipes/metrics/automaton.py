"""Print how many rows of a cellular automaton a model gets wholly right after each number of steps, as JSON.

    python automaton.py --path checkpoint_last.pt --steps 4 6 8 --cells 24 48 > scores.json

A model whose passes are steps runs as many passes as steps are asked for, also more than in training. Every other model
runs as trained and reads the number of steps; numbers that its text cannot ask for are left out.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from arguments import parser, print_scores
from fairseq import checkpoint_utils

from fairseq_plugin.elastic import at_depths
from fairseq_plugin.tasks.automaton import AutomatonTask, question


def load(path: str) -> tuple[torch.nn.Module, AutomatonTask]:
    """A trained model, in eval mode, and its task.

    Raises:
        OSError: if there is no such checkpoint.
        ValueError: if it was trained on another task.
    """
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path])
    if not isinstance(task, AutomatonTask):
        raise ValueError(f"--path={path}: must be a model trained with --task automaton")
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), task


def reachable(task: AutomatonTask, steps: Sequence[int]) -> list[int]:
    """Those numbers of steps for which the model can be asked. Raises ValueError if there are none."""
    found = [step for step in steps if step >= 1 and (task.cfg.pass_steps or step <= task.cfg.steps)]
    if not found:
        most = "" if task.cfg.pass_steps else f" and <= {task.cfg.steps}"
        raise ValueError(f"--steps {' '.join(map(str, steps))}: one must be >= 1{most}")
    return found


@torch.no_grad()
def predicted(model: torch.nn.Module, task: AutomatonTask, rows: np.ndarray, steps: int) -> np.ndarray:
    """The rows (texts, cells) that many steps later, as the model predicts them."""
    depths = {"decoder": steps} if task.cfg.pass_steps else {}
    device, found = next(model.parameters()).device, []
    with at_depths(model, depths):
        for part in question(rows, 1 if task.cfg.pass_steps else steps).split(256):
            logits = model(part.to(device))[0]
            found.append(logits[:, 1:].argmax(-1).cpu().numpy())
    return np.concatenate(found)


def exact_match(
    model: torch.nn.Module, task: AutomatonTask, steps: list[int], cells: int, texts: int
) -> dict[int, float]:
    """The percentage of random rows that are wholly right, for each number of steps; `task.cfg.seed` draws the rows."""
    steps = reachable(task, steps)
    rows = task.draw(np.random.default_rng([task.cfg.seed, *b"test"]), texts, cells, max(steps))
    right = {step: (predicted(model, task, rows[0], step) == rows[step]).all(1) for step in steps}
    return {step: round(100 * float(rows_right.mean()), 2) for step, rows_right in right.items()}


def measured(args: argparse.Namespace) -> dict[str, float]:
    """The percentages of all rows and numbers of steps."""
    scores, (model, task) = {}, load(args.path)
    for cells in args.cells:
        suffix = "" if cells == args.cells[0] else f"_of_{cells}"
        found = exact_match(model, task, args.steps, cells, args.texts)
        scores |= {f"exact_match_at_{step}{suffix}": value for step, value in found.items()}
    return scores


def main() -> None:
    command_line = parser(__doc__)
    add = command_line.add_argument
    add("--path", required=True, help="checkpoint")
    add("--steps", type=int, nargs="+", default=[1, 2, 4, 6, 8, 10, 12, 16, 24, 48], help="default: %(default)s")
    add("--cells", type=int, nargs="+", default=[24], help="of a row; all but the first are named in the scores")
    add("--texts", type=int, default=1000, help="rows (default: %(default)s)")
    print_scores(command_line, measured)


if __name__ == "__main__":
    main()
