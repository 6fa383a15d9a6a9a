"""Loss and accuracy of a language model on a subset of its task, with their standard errors, as JSON.

    python answers.py DATA --path checkpoint_best.pt --subset valid --batch 128 > scores.json
    python answers.py --path checkpoint_last.pt --subset test --batch 64 > scores.json      (copying, which has no data)

Every text is read once, whole; the loss is the mean over all tokens that have a target, in nats. Standard errors are
of texts: the standard deviation of the texts' means divided by the root of their number. Kausik's published code
divides the standard deviation of 80 batch means by the root of 80 times the batch; that figure, too small by the root
of the batch, is given as `loss_error_published`, for batches drawn from the texts.
"""

import argparse
import json
import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils, utils

import fairseq_plugin  # noqa: F401  (registers models and tasks)

BATCHES = 80  # which the published code draws


def texts(model, task, subset: str, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of each batch the sum of the losses of each text, its right answers, and how many it asks for."""
    task.load_dataset(subset)
    dataset = task.dataset(subset)
    batches = task.get_batch_iterator(dataset, max_sentences=batch, required_batch_size_multiple=1)
    device = next(model.parameters()).device
    for sample in batches.next_epoch_itr(shuffle=False):
        sample = utils.move_to_cuda(sample, device) if device.type == "cuda" else sample
        logits, target = model(**sample["net_input"])[0].float(), sample["target"]
        pad = task.target_dictionary.pad()
        losses = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=pad, reduction="none")
        right = logits.argmax(-1).eq(target)
        yield tuple(each.sum(1).cpu().double().numpy() for each in (losses, right, target.ne(pad)))


def error(means: np.ndarray) -> float:
    """Standard error of the mean of independent values."""
    return float(means.std(ddof=1) / math.sqrt(len(means)))


def published_error(means: np.ndarray, batch: int) -> float:
    """What Kausik's code makes of the texts of batches: too small, see above."""
    drawn = np.random.default_rng(0).choice(means, (BATCHES, batch))
    return float(drawn.mean(1).std() / math.sqrt(BATCHES * batch))


def scores(losses: np.ndarray, right: np.ndarray, asked: np.ndarray, batch: int) -> dict[str, float]:
    """All figures, of the texts' sums."""
    return {
        "loss": round(losses.sum() / asked.sum(), 4),
        "loss_error": round(error(losses / asked), 6),
        "loss_error_published": round(published_error(losses / asked, batch), 6),
        "accuracy": round(100 * right.sum() / asked.sum(), 3),
        "accuracy_error": round(100 * error(right / asked), 4),
        "texts": len(asked),
        "symbols": int(asked.sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="folder of the task's data")
    parser.add_argument("--path", required=True, help="checkpoint")
    parser.add_argument("--subset", default="valid", help="default: valid")
    parser.add_argument("--batch", type=int, required=True, help="texts at a time, and in the published error")
    arguments = parser.parse_args()
    data = {"data": arguments.data} if arguments.data else {}
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([arguments.path], arg_overrides=data)
    model = model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    with torch.no_grad():
        found = [np.concatenate(each) for each in zip(*texts(model, task, arguments.subset, arguments.batch))]
    print(json.dumps(scores(*found, arguments.batch), indent=2))


if __name__ == "__main__":
    main()
