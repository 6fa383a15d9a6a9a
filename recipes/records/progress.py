"""What of a training's output the terminal shows; the full log goes to a file.

    COMMAND 2>&1 | python progress.py FILE

appends the output to the file, too, for the scripts of the demos.
"""

import re
import signal
import sys
from pathlib import Path

# Of fairseq's own lines, those that match SHOWN_LINE.
FAIRSEQ_LINE = re.compile(r"^[-0-9: ,]+\| (INFO|WARNING) \| ")
MODEL_LINE = re.compile(r"^ *(\([\w-]+\): .*|\))$")  # of the printed model, below the first
SHOWN_LINE = re.compile(r" \| (train_inner|train|valid) \||num\. shared|done training")


def show(line: str) -> None:
    """Prints a line of a training's output if it is progress, or not fairseq's."""
    if SHOWN_LINE.search(line) or not (FAIRSEQ_LINE.match(line) or MODEL_LINE.match(line)):
        print(FAIRSEQ_LINE.sub("", line), end="", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the training, and that its output
    sys.stdin.reconfigure(errors="replace")
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
        for line in sys.stdin:
            file.write(line)
            file.flush()
            show(line)
