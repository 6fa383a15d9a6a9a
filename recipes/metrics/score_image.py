"""Print the test accuracy and the computational cost of a model trained by train_image.py, as JSON.

    python score_image.py RUN > scores.json

The accuracy is measured after the last epoch; picking the best epoch on the test set would overstate it. MMAC is
millions of multiply-accumulates per image (`recurrence.count.macs`).
"""

from pathlib import Path

import torch
from arguments import parser, print_scores
from torch import nn

from recurrence.count import macs
from recurrence.files import read_table
from timm_plugin._saved import options_of
from timm_plugin.checkpoints import load, metadata_of


def model_of(run: Path) -> tuple[nn.Module, int]:
    """The model of a run, and the side of its images in pixels."""
    checkpoint = run / "last.pth.tar"
    model, args = load(checkpoint), options_of(checkpoint, metadata_of(checkpoint)["args"])
    return model, args.img_size or model.pretrained_cfg["input_size"][-1]


def scores(run: Path) -> dict:
    """Accuracy after the last epoch, cost and number of epochs."""
    epochs = read_table(run / "summary.csv")
    if not epochs:
        raise ValueError(f"{run / 'summary.csv'}: has no epoch")
    last = epochs[-1]
    model, side = model_of(run)
    cost = macs(model, torch.zeros(1, 3, side, side))
    found = {"top1": round(float(last["eval_top1"]), 2), "mmac": round(cost / 1e6, 1)}
    if "eval_smallest_depth_top1" in last:  # trained at several depths
        found["top1_smallest_depth"] = round(float(last["eval_smallest_depth_top1"]), 2)
    return {**found, "epochs": int(last["epoch"]) + 1}


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("run", type=Path, help="--output of train_image.py")
    print_scores(command_line, lambda args: scores(args.run))


if __name__ == "__main__":
    main()
