"""Word error rates of finished runs of fairseq-generate --scoring wer, as JSON.

    python score_speech.py RUN DATA SET... > scores.json

Reads RUN/SET.log and DATA/SET.tsv, and demands a hypothesis for every utterance of the set: an error rate of fewer is
not a score. fairseq counts edits of words over words said.
"""

import argparse
import json
import re
from pathlib import Path

from score import best_hypotheses, in_order


def error_rate(log: Path, manifest: Path) -> float:
    """Word error rate in %.

    Raises:
        ValueError: an utterance has no hypothesis, or fairseq printed no rate.
    """
    utterances = len(manifest.read_text(encoding="utf-8").splitlines()) - 1
    in_order(best_hypotheses(log), utterances)
    found = re.findall(r"^Generate .*: WER: ([\d.]+)$", log.read_text(encoding="utf-8"), re.M)
    if len(found) != 1:
        raise ValueError(f"{log}: {len(found)} word error rates: must be one")
    return float(found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("sets", nargs="+")
    arguments = parser.parse_args()
    rates = {
        f"wer_{name}": error_rate(arguments.run / f"{name}.log", arguments.data / f"{name}.tsv")
        for name in arguments.sets
    }
    print(json.dumps(rates, indent=2))


if __name__ == "__main__":
    main()
