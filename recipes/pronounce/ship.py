"""Write a trained model as a folder that `from_pretrained` reads, with weights in float16.

    python ship.py RUN/average.pt --data DATA/bin --folder FOLDER

DATA/bin has the dictionaries. Paths of the machine and the state of the training are left out.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch

from fairseq_plugin.average import average_checkpoints
from fairseq_repairs.files import atomic_write
from recurrence.files import named_errors


def without_paths(value: Any) -> Any:
    """A configuration in which absolute paths are empty texts."""
    if isinstance(value, dict):
        return {key: without_paths(entry) for key, entry in value.items()}
    if isinstance(value, argparse.Namespace):
        return argparse.Namespace(**without_paths(vars(value)))
    return "" if isinstance(value, str) and value.startswith("/") else value


def shipped(path: Path) -> dict[str, Any]:
    """What a shipped checkpoint keeps of one.

    Raises:
        ValueError, OSError: if it is not an intact checkpoint.
    """
    state = average_checkpoints([path])
    model = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state["model"].items()}
    kept = {"optimizer_history": state["optimizer_history"], "extra_state": {"train_iterator": {"epoch": 1}}}
    return {"cfg": without_paths(state["cfg"]), "model": model, **kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    try:
        state = shipped(args.checkpoint)
        args.folder.mkdir(parents=True, exist_ok=True)
        for dictionary in sorted(args.data.glob("dict.*.txt")):
            shutil.copyfile(dictionary, args.folder / dictionary.name)
        with named_errors(args.folder / "model.pt"), atomic_write(args.folder / "model.pt") as file:
            torch.save(state, file)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
