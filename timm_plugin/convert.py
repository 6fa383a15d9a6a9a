"""Convert checkpoints: a looped vision transformer to timm's own unshared one.

Usage::

    python -m timm_plugin.convert unshare looped.pth.tar FOLDER

FOLDER is a saved model in timm's format: its name, options and weights. `timm.create_model("local-dir:FOLDER",
pretrained=True)` builds it without this package. The input is such a folder, a training checkpoint, or a file of
weights, for which ``--model`` and ``--model-kwargs`` name the model.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import timm
from timm.models import save_for_hf
from torch import nn

from recurrence.files import new_folder
from recurrence.weights import command
from timm_plugin import repairs
from timm_plugin._compat import SAVES_OPTIONS
from timm_plugin.checkpoints import PREPROCESSING, load
from timm_plugin.conversion import to_timm
from timm_plugin.training.options import key_value

logger = logging.getLogger("timm_plugin.convert")
KEPT = (*PREPROCESSING, "crop_mode", "num_classes", "label_names", "label_descriptions")


def save(model: nn.Module, source: nn.Module, folder: Path) -> None:
    """Writes a model in timm's format, with the preprocessing and the classes' names of its source; atomic."""
    model.pretrained_cfg = {**model.pretrained_cfg, **{name: source.pretrained_cfg.get(name) for name in KEPT}}
    with new_folder(folder) as part:
        save_for_hf(model, part, safe_serialization=True)


def main(arguments: Sequence[str] | None = None) -> None:
    repairs.apply()
    parser, commands = command.build("python -m timm_plugin.convert", __doc__.split("\n")[0], "timm")
    add = commands.choices["unshare"].add_argument
    add("--model", metavar="NAME", help="the model of IN, if IN does not name it")
    add("--model-kwargs", nargs="*", default=[], type=key_value, metavar="K=V", help="its options")
    args = parser.parse_args(arguments)
    try:
        if not SAVES_OPTIONS:
            raise ValueError(f"timm {timm.__version__}: must be 1.0.31 or later, which saves a model's options")
        if not args.input.exists():
            raise ValueError(f"IN={args.input}: no such file")
        if args.output.exists():
            raise ValueError(f"OUT={args.output}: must not exist yet")
        source = load(args.input, args.model, **dict(args.model_kwargs))
        save(to_timm(source), source, args.output)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    logger.info('wrote %s: timm.create_model("local-dir:%s", pretrained=True)', args.output, args.output)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.INFO, force=True)
    main()
