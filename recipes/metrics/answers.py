"""Print the loss and the accuracy of a language model on one subset of its task, with standard errors, as JSON.

    python answers.py DATA --path checkpoint_best.pt --subset valid --batch 128 > scores.json
    python answers.py --path checkpoint_last.pt --subset test --batch 64 > scores.json      (copying, which has no data)

Each text is read once, in full. The loss is in nats, averaged over all tokens that have a target. Standard errors are
over texts: the standard deviation of the per-text means divided by the square root of the number of texts.

`loss_error_published` follows Kausik's published code instead: it draws 80 batches of texts and divides the standard
deviation of their means by the square root of 80 times the batch size, which is too small by the square root of the
batch size.
"""

import argparse
import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from arguments import parser, print_scores
from fairseq import checkpoint_utils, utils

import fairseq_plugin  # noqa: F401  (registers models and tasks)

PUBLISHED_BATCHES = 80  # that the published code draws


def text_sums(model, task, subset: str, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each batch, three sums per text: the losses, the correct predictions and the targets."""
    task.load_dataset(subset)
    batches = task.get_batch_iterator(task.dataset(subset), max_sentences=batch, required_batch_size_multiple=1)
    device = next(model.parameters()).device
    pad = task.target_dictionary.pad()
    for sample in batches.next_epoch_itr(shuffle=False):
        sample = utils.move_to_cuda(sample, device) if device.type == "cuda" else sample
        logits, target = model(**sample["net_input"])[0].float(), sample["target"]
        losses = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=pad, reduction="none")
        known = target.ne(pad)
        correct = logits.argmax(-1).eq(target) & known
        yield tuple(values.sum(1).cpu().double().numpy() for values in (losses, correct, known))


def published_error(means: np.ndarray, batch: int) -> float:
    """The standard error by the formula of Kausik's code, which is too small (see the top of this file)."""
    drawn = np.random.default_rng(0).choice(means, (PUBLISHED_BATCHES, batch))
    return float(drawn.mean(1).std() / math.sqrt(PUBLISHED_BATCHES * batch))


def scores(losses: np.ndarray, correct: np.ndarray, targets: np.ndarray, batch: int) -> dict[str, float]:
    """All scores, from the sums of each text: losses, correct predictions and targets, (texts,) each."""
    return {
        "loss": round(losses.sum() / targets.sum(), 4),
        "loss_error": round(pd.Series(losses / targets).sem(), 6),
        "loss_error_published": round(published_error(losses / targets, batch), 6),
        "accuracy": round(100 * correct.sum() / targets.sum(), 3),
        "accuracy_error": round(100 * pd.Series(correct / targets).sem(), 4),
        "texts": len(targets),
        "symbols": int(targets.sum()),
    }


@torch.no_grad()
def measured(args: argparse.Namespace) -> dict[str, float]:
    """All scores of a checkpoint."""
    overrides = {"data": args.data} if args.data else {}
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([args.path], arg_overrides=overrides)
    model = model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    sums = [np.concatenate(parts) for parts in zip(*text_sums(model, task, args.subset, args.batch))]
    return scores(*sums, args.batch)


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("data", nargs="?", help="the task's data folder")
    command_line.add_argument("--path", required=True, help="checkpoint")
    command_line.add_argument("--subset", default="valid", help="default: valid")
    command_line.add_argument("--batch", type=int, required=True, help="texts per batch, also for the published error")
    print_scores(command_line, measured)


if __name__ == "__main__":
    main()
