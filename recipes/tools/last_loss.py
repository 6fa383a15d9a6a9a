"""The last validation of a training in nats a token, without label smoothing, from the host's log as JSON lines.

python last_loss.py train.log > scores.json
"""

import json
import sys
from pathlib import Path

from curves import losses


def main() -> None:
    found = losses(Path(sys.argv[1]).read_text(encoding="utf-8"), number="nll_loss")
    if not found:
        sys.exit(f"{sys.argv[1]}: holds no validation as JSON lines (fairseq-train --log-format json)")
    print(json.dumps({"loss": round(found[max(found)], 4), "updates": max(found)}, indent=2))


if __name__ == "__main__":
    main()
