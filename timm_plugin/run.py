"""Runs a script of timm's repository on the models of this plugin.

    python -m timm_plugin.run validate.py IMAGES --model sret_t --checkpoint model_best.pth.tar

runs `python validate.py ...` with the plugin imported and timm repaired (:mod:`timm_plugin.repairs`). train.py can
also import the plugin with its option --device-modules; validate.py, inference.py, benchmark.py, onnx_export.py and
bulk_runner.py have no such option.
"""

import runpy
import sys
from pathlib import Path

from recurrence import gemm
from timm_plugin import repairs


def main() -> None:
    """Runs the script that the command line names, with the arguments that follow it."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    script = Path(sys.argv[1])
    if not script.is_file():
        sys.exit(f"{script}: no such file; must be a script of a checkout of timm, such as validate.py")
    gemm.bound_caches()
    repairs.apply()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(script.resolve().parent))  # as Python does for a script
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
