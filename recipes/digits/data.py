"""Write scikit-learn's handwritten digits, images of 8 x 8 pixels that come with the package, as folders of PNG files.

    python data.py FOLDER

The last 360 of the 1,797 images are held out. The images are ordered by writer, so most of the held-out digits are by
people whose handwriting is not in the training set.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

HELD_OUT = 360
BRIGHTEST = 16  # pixel values of the data set are 0 to 16


def write(folder: Path) -> dict[str, int]:
    """Writes FOLDER/{train,val}/DIGIT/NUMBER.png for each image; returns the number of images per split."""
    images, labels = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 8, 8) * (255 / BRIGHTEST)).round().astype(np.uint8)
    counts = {"train": len(labels) - HELD_OUT, "val": HELD_OUT}
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        home = folder / ("train" if number < counts["train"] else "val") / str(label)
        home.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(home / f"{number:04}.png")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    try:
        counts = write(parser.parse_args().folder)
    except OSError as error:
        parser.error(str(error))
    for split, count in counts.items():
        print(f"{split}: {count} images")


if __name__ == "__main__":
    main()
