"""Print how far word error rates are below a baseline's, with 95 % intervals by paired bootstrap, as JSON.

    python significance_speech.py BASE=test.log NAME=test.log... > significance.json

Each file is the log of fairseq-generate --scoring wer on the same test set. The utterances are resampled, by scipy, and
both systems are compared on the same ones (Bisani & Ney, 2004). The intervals compare single training runs; they say
nothing about differences between seeds.
"""

import argparse
import json
import re
from pathlib import Path

import editdistance
import numpy as np
from arguments import distinct, named_file
from scipy.stats import bootstrap
from score import best_hypotheses, in_order

REFERENCE = re.compile(r"^T-(\d+)\t(.*)$", re.M)


def read(log: Path) -> tuple[list[str], list[str]]:
    """The references and the best hypotheses of all utterances.

    Raises:
        ValueError: if the log has no references, or an utterance has no hypothesis.
    """
    references = {int(number): text for number, text in REFERENCE.findall(log.read_text(encoding="utf-8"))}
    if not references:
        raise ValueError(f"{log}: has no references; it must be a log of fairseq-generate --scoring wer")
    return in_order(references, len(references)), in_order(best_hypotheses(log), len(references))


def word_edits(references: list[str], hypotheses: list[str]) -> np.ndarray:
    """The number of word edits of each utterance, (utterances,), as fairseq counts them."""
    pairs = zip(references, hypotheses, strict=True)
    return np.array([editdistance.eval(reference.split(), ours.split()) for reference, ours in pairs])


def lead(base: np.ndarray, ours: np.ndarray, words: np.ndarray, axis: int = -1) -> np.ndarray:
    """How many points the word error rate is below the baseline's; all arguments are per utterance."""
    return 100 * (base.sum(axis) - ours.sum(axis)) / words.sum(axis)


def compare(logs: dict[str, Path], samples: int) -> dict[str, dict]:
    """The word error rate of each system in %, and for all but the first, the baseline, the lead in points.

    Raises:
        ValueError: if two logs have different references.
    """
    found = {name: read(log) for name, log in logs.items()}
    references = next(iter(found.values()))[0]
    words = np.array([len(reference.split()) for reference in references])
    results, base = {}, None
    for name, (others, hypotheses) in found.items():
        if others != references:
            raise ValueError(f"{name}: {logs[name]} is of another test set than the baseline's log")
        edits = word_edits(references, hypotheses)
        results[name] = {"wer": round(float(100 * edits.sum() / words.sum()), 2)}
        if base is None:
            base = edits
            continue
        drawn = bootstrap(
            (base, edits, words), lead, paired=True, n_resamples=samples, method="percentile", random_state=0
        ).confidence_interval
        results[name] |= {
            "lead": round(float(lead(base, edits, words)), 2),
            "interval": [round(float(drawn.low), 2), round(float(drawn.high), 2)],
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=named_file, nargs="+", metavar="NAME=LOG", help="the baseline comes first")
    parser.add_argument("--samples", type=int, default=2000, help="number of resampled test sets (default 2000)")
    args = parser.parse_args()
    if len(args.logs) < 2:
        parser.error("needs a baseline and at least one other system")
    try:
        results = compare(distinct(args.logs), args.samples)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
