"""Put the scores of several test sets together: their mean, and the BLEU of each.

python mean_score.py NAME=scores.json... > scores.json

Of a single set the scores stay as they are.
"""

import json
import sys
from pathlib import Path
from statistics import mean


def merged(sets: dict[str, dict]) -> dict:
    """Scores as those of one set, with `bleu_NAME` for each where there are several.

    Args:
        sets: what score.py wrote, by the name of the set.
    """
    if len(sets) == 1:
        return next(iter(sets.values()))
    found = dict(next(iter(sets.values())))
    found["sentences"] = sum(scores["sentences"] for scores in sets.values())
    for metric in ("bleu", "chrf", "exact_match"):
        found[metric] = round(mean(scores[metric] for scores in sets.values()), 2)
    return found | {f"bleu_{name}": scores["bleu"] for name, scores in sets.items()}


def main() -> None:
    if len(sys.argv) < 2 or not all("=" in argument for argument in sys.argv[1:]):
        sys.exit(__doc__)
    pairs = (argument.split("=", 1) for argument in sys.argv[1:])
    print(json.dumps(merged({name: json.loads(Path(path).read_text()) for name, path in pairs}), indent=2))


if __name__ == "__main__":
    main()
