"""Convert checkpoints: a looped vision transformer to timm's own unshared one, or any image model to ONNX.

Usage::

    python -m timm_plugin.convert unshare looped.pth.tar FOLDER
    python -m timm_plugin.convert onnx RUN model.onnx [--int8]

FOLDER is a saved model in timm's format: its name, options and weights. `timm.create_model("local-dir:FOLDER",
pretrained=True)` builds it without this package. The input is such a folder, the folder of a run (its best epoch), a
training checkpoint, or a file of weights, for which ``--model`` and ``--model-kwargs`` name the model. For the file of
ONNX see :mod:`timm_plugin.onnx`.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import timm
from safetensors import SafetensorError
from timm.models import save_for_hf
from torch import nn

from recurrence.files import atomic_write, make_folder, new_folder
from recurrence.weights import command
from timm_plugin import repairs
from timm_plugin._compat import SAVES_OPTIONS
from timm_plugin.checkpoints import PREPROCESSING, load
from timm_plugin.conversion import to_timm
from timm_plugin.training.options import key_value
from timm_plugin.training.user_module import add_user_module

logger = logging.getLogger("timm_plugin.convert")
KEPT = (*PREPROCESSING, "crop_mode", "num_classes", "label_names", "label_descriptions")


def save(model: nn.Module, source: nn.Module, folder: Path) -> None:
    """Writes a model in timm's format, with the preprocessing and the classes' names of its source; atomic."""
    model.pretrained_cfg = {**model.pretrained_cfg, **{name: source.pretrained_cfg.get(name) for name in KEPT}}
    with new_folder(folder) as part:
        try:
            save_for_hf(model, part, safe_serialization=True)
        except SafetensorError as error:  # of a full disk
            raise OSError(f"{folder}: cannot be written: {error}") from None


def save_onnx(source: nn.Module, path: Path, int8: bool) -> None:
    """Writes a model as a file of ONNX; atomic. Raises ValueError, saying what is not installed."""
    try:
        from timm_plugin import onnx  # imported here because nothing else needs onnx and onnxruntime
    except ImportError as error:
        raise ValueError(f"{error}: pip install onnx onnxscript onnxruntime") from None
    made = onnx.export(source, int8)
    make_folder(path.parent)
    with atomic_write(path, "wb") as file:
        file.write(made.SerializeToString())


def main(arguments: Sequence[str] | None = None) -> None:
    repairs.apply()
    parser, commands = command.build("python -m timm_plugin.convert", __doc__.split("\n")[0], "timm")
    as_onnx = command.add_paths(commands.add_parser("onnx", help="any model, for onnxruntime"))
    as_onnx.add_argument("--int8", action="store_true", help="store matrices and convolutions in eight bits")
    for kind in commands.choices["unshare"], as_onnx:
        kind.add_argument("--model", metavar="NAME", help="the model of IN, if IN does not name it")
        kind.add_argument("--model-kwargs", nargs="*", default=[], type=key_value, metavar="K=V", help="its options")
        add_user_module(kind)
    args = parser.parse_args(arguments)
    unshares = args.command == "unshare"
    try:
        if unshares and not SAVES_OPTIONS:
            raise ValueError(f"timm {timm.__version__}: must be 1.0.31 or later, which saves a model's options")
        if not args.input.exists():
            raise ValueError(f"IN={args.input}: no such file")
        if args.output.exists():
            raise ValueError(f"OUT={args.output}: must not exist yet")
        source = load(args.input, args.model, **dict(args.model_kwargs))
        before = command.stored_bytes(source.state_dict().values())
        if unshares:
            save(to_timm(source), source, args.output)
        else:
            save_onnx(source, args.output, args.int8)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    hint = f': timm.create_model("local-dir:{args.output}", pretrained=True)' if unshares else ""
    once = not unshares or all(loop.passes == len(loop.blocks) for loop in source.loops())
    logger.info("wrote %s%s", args.output, hint)
    logger.info(command.sizes(before, args.output, once))


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.INFO, force=True)
    main()
