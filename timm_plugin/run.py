"""Runs a script of timm's repository on the models of this plugin.

    python -m timm_plugin.run validate.py IMAGES --model sret_t --checkpoint model_best.pth.tar

runs `python validate.py ...` with the plugin imported and timm repaired (:mod:`timm_plugin.repairs`). train.py can
also import the plugin with its option --device-modules; validate.py, inference.py, benchmark.py, onnx_export.py and
bulk_runner.py have no such option.

A script in a checkout of timm uses the checkout's timm, as it does by itself. Where a script takes `--model-kwargs`,
`--img-size` also sets the size of a model of this plugin, which takes images of one size.
"""

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import timm

from recurrence.private_torch import bound_caches
from timm_plugin import MODELS, repairs


def main() -> None:
    """Runs the script that the command line names, with the arguments that follow it."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    script = Path(sys.argv[1])
    if not script.is_file():
        sys.exit(f"{script}: no such file; must be a script of a checkout of timm, such as validate.py")
    folder = script.resolve().parent
    _use_timm_of(folder)
    bound_caches()
    repairs.apply()
    sized = "--model-kwargs" in script.read_text(encoding="utf-8")  # onnx_export.py has no such option
    sys.argv = [sys.argv[1], *(with_img_size(sys.argv[2:]) if sized else sys.argv[2:])]
    sys.path.insert(0, str(folder))  # as Python does for a script
    runpy.run_path(str(script), run_name="__main__")


def _use_timm_of(folder: Path) -> None:
    """Starts this program anew if the folder has a timm of its own, for this plugin has imported another."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if not (folder / "timm" / "__init__.py").is_file() or Path(timm.__file__).parent == folder / "timm":
        return
    if given[0] == str(folder):
        sys.exit(f"{folder}/timm: not imported, as timm is imported from {Path(timm.__file__).parent}")
    path = os.pathsep.join([str(folder), *filter(None, given)])
    command = [sys.executable, "-m", "timm_plugin.run", *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})


def with_img_size(arguments: Sequence[str]) -> list[str]:
    """The arguments of a script, with --img-size as an argument of the model, too, if it is one of this plugin.

    Raises:
        SystemExit: for --test-pool with such a model: timm would leave out SReT's norm, which comes after pooling.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model", "-m")
    parser.add_argument("--img-size")
    parser.add_argument("--test-pool", action="store_true")
    parser.add_argument("--model-kwargs", nargs="*", default=[])
    known, _ = parser.parse_known_args(list(arguments))
    if str(known.model).partition(".")[0] not in MODELS:
        return list(arguments)
    if known.test_pool:
        sys.exit(f"--test-pool: must not be given with {known.model}, which pools differently")
    if known.img_size is None or any(pair.startswith("img_size=") for pair in known.model_kwargs):
        return list(arguments)
    return [*arguments, "--model-kwargs", f"img_size={known.img_size}", *known.model_kwargs]  # the last one counts


if __name__ == "__main__":
    main()
