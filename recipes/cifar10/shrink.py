"""Shrink the images of CIFAR-10 to SIZE x SIZE pixels, each the mean of the pixels that it covers.

    python shrink.py FOLDER SMALLER --size 16

Reads the folder as the task pixel_classification does, and writes SMALLER/train/CLASS/NUMBER.png and
SMALLER/test/CLASS/NUMBER.png.
"""

import argparse
from pathlib import Path

from PIL import Image

from fairseq_plugin.tasks.pixel_classification import load_images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("smaller", type=Path)
    parser.add_argument("--size", type=int, required=True, help="height and width in pixels")
    args = parser.parse_args()
    try:
        for split in ("train", "test"):
            images = load_images(args.folder, split)
            folders = [args.smaller / split / name for name in images.classes]
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            for number, (image, label) in enumerate(images):
                image.resize((args.size, args.size), Image.Resampling.BOX).save(folders[label] / f"{number}.png")
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
