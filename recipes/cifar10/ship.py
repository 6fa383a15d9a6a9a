"""Write the weights of a model that timm_plugin.train has trained, as a package ships them: float16, safetensors.

python ship.py RUN/last.pth.tar timm_plugin/weights/sret_nano.cifar10.safetensors
"""

import argparse
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from timm_plugin.checkpoints import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("weights", type=Path)
    args = parser.parse_args()
    try:
        weights = load(args.checkpoint).half().state_dict()
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, args.weights, {"format": "pt"})
    except (OSError, SafetensorError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
