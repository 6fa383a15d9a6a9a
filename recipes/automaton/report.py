"""Print the results of the automaton demo and draw a picture of the truth and of what both models say.

python report.py FOLDER --texts 500
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("metrics", "records")]

from automaton import exact_match, load, predicted, reachable  # noqa: E402
from collect import training  # noqa: E402

from fairseq_plugin.tasks.automaton import AutomatonTask  # noqa: E402
from recurrence import count  # noqa: E402
from recurrence.loop import named_loops  # noqa: E402

STEPS = (4, 6, 8, 10, 12, 24, 48)
TRAINED = {"once": "1 to 12", "looped": "1 to 6"}
LONG = 48  # cells of the second table, and cells and steps of the picture
SHOWN = (0, 6, 12)  # steps in the terminal
CELLS = {0: "·", 1: "█"}  # everything else, an answer that is no cell or none at all, is a question mark
# Of white and black cells, of the same where they are wrong, and of what cannot be asked.
COLOURS = np.array([(255, 255, 255), (40, 40, 40), (252, 190, 170), (215, 48, 39), (225, 225, 225)], np.uint8)

Models = dict[str, tuple[torch.nn.Module, AutomatonTask]]


def history(model: torch.nn.Module, task: AutomatonTask, first: np.ndarray, steps: int) -> np.ndarray:
    """A row (cells,) and what a model says of those that follow, (steps + 1, cells); -1 where it cannot be asked."""
    known = reachable(task, range(1, steps + 1))
    later = [predicted(model, task, first[None], step)[0] for step in known]
    missing = [np.full_like(first, -1)] * (steps - len(known))
    return np.stack([first, *later, *missing])


def table(models: Models, cells: int, texts: int) -> list[str]:
    """The exact matches of rows of so many cells, one line per model."""
    lines = [f"  {'steps':30}" + "".join(f"{step:>8}" for step in STEPS)]
    for name, (model, task) in models.items():
        found = exact_match(model, task, list(STEPS), cells, texts)
        percents = [f"{found[step]:.0f} %" if step in found else "-" for step in STEPS]
        lines.append(f"  {f'{name:10} (trained on {TRAINED[name]})':30}" + "".join(f"{one:>8}" for one in percents))
    return lines


def draw(histories: dict[str, np.ndarray], path: Path) -> None:
    """Draws the rows of each history, one step below the other; cells that differ from the first history are red."""
    from matplotlib.figure import Figure

    truth, *_ = histories.values()
    figure = Figure(figsize=(8, 3.2), dpi=100, layout="constrained")
    axes = figure.subplots(1, len(histories), sharey=True)
    for axis, (name, rows) in zip(axes, histories.items(), strict=True):
        kinds = np.where(rows < 0, 4, (rows == 1) + 2 * (rows != truth))
        axis.imshow(COLOURS[kinds], interpolation="nearest")
        axis.set(title=name, xticks=[], yticks=range(0, len(rows), 12))
        if "looped" in name:
            axis.axhline(6.5, color="tab:blue", linewidth=1)  # training ends here
    axes[0].set_ylabel("steps")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds the runs `once` and `looped`")
    parser.add_argument("--texts", type=int, required=True, help="rows for the table")
    args = parser.parse_args()
    try:
        models = {name: load(str(args.folder / name / "checkpoints" / "checkpoint_last.pt")) for name in TRAINED}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    model, task = models["looped"]
    stored = count.stored(model)
    (loop,) = named_loops(model).values()
    unshared = stored + (LONG - 1) * count.stored(loop.blocks[0])  # with a block for each of so many passes
    seconds = ", ".join(f"{name} {training(args.folder / name)['wall_s']} s" for name in models)
    print(f"\nRows of {task.cfg.cells} cells that are wholly right; {stored:,} stored parameters each")
    print(*table(models, task.cfg.cells, args.texts), sep="\n")
    print(f"Rows of {LONG} cells; training had none")
    print(*table(models, LONG, args.texts), sep="\n")
    print(
        f"\nTraining took: {seconds}. looped runs one block once per step; a model with a block of its own for each of"
    )
    print(f"{LONG} steps would store {unshared:,} parameters.")
    truth = task.draw(np.random.default_rng(7), 1, LONG, LONG)[:, 0]
    histories = {"truth": truth} | {name: history(*one, truth[0], LONG) for name, one in models.items()}
    print("\nA row, and the same some steps later:")
    for step in SHOWN:
        for name, rows in histories.items():
            wrong = int((rows[step] != truth[step]).sum())
            verdict = f"{wrong} cells wrong" if wrong else ""
            place = f"step {step}" if name == "truth" else ""
            print(f"  {place:8} {name:7} {''.join(CELLS.get(cell, '?') for cell in rows[step])}  {verdict}")
    picture = args.folder / "automaton.png"
    titles = {name: f"{name}, trained on {TRAINED[name]}" for name in models}
    draw({titles.get(name, name): rows for name, rows in histories.items()}, picture)
    print(f"\nPicture (wrong cells are red): {picture}")
    print(f"Checkpoints and logs: {args.folder}")


if __name__ == "__main__":
    main()
