"""The last validation of a training in nats a token, without label smoothing, from the host's log as JSON lines.

python last_loss.py train.log > scores.json
"""

import json
import math
import sys
from pathlib import Path

from recurrence.analysis.logs import curve


def main() -> None:
    try:
        *_, (updates, loss) = curve(Path(sys.argv[1]), "updates", "valid_nll_loss")
    except ValueError as error:
        sys.exit(str(error))
    print(json.dumps({"loss": round(loss * math.log(2), 4), "updates": int(updates)}, indent=2))


if __name__ == "__main__":
    main()
