"""Hold out every tenth training image of each class of CIFAR-10, to choose settings without the test images.

    python hold_out.py FOLDER OTHER

Reads the folder as the task pixel_classification does, and writes OTHER/train/CLASS/NUMBER.png and, held out,
OTHER/test/CLASS/NUMBER.png.
"""

import argparse
from collections import Counter
from pathlib import Path

from fairseq_plugin.tasks.pixel_classification import load_images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("other", type=Path)
    args = parser.parse_args()
    try:
        images, seen = load_images(args.folder, "train"), Counter()
        for image, label in images:
            split = "train" if seen[label] % 10 else "test"
            folder = args.other / split / images.classes[label]
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{seen[label]}.png")
            seen[label] += 1
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
