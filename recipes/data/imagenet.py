"""Unpack the archives of ImageNet 2012 that lie in a folder into FOLDER/train/CLASS and FOLDER/val/CLASS.

    python imagenet.py FOLDER [--as-it-is]

The parsing is torchvision's own, which also compares the archives with their published MD5 sums
(torchvision.datasets.imagenet.ARCHIVE_META) unless --as-it-is takes them unseen. What an interrupted call left is
removed, a split that is there is left as it is.
"""

import argparse
import shutil
from pathlib import Path

from torchvision.datasets import imagenet


def unpack(folder: Path) -> None:
    """Unpack both splits; the validation images are sorted into classes by the development kit.

    Raises:
        RuntimeError: an archive is missing or not the published one.
    """
    imagenet.parse_devkit_archive(folder)
    for split, parse in (("val", imagenet.parse_val_archive), ("train", imagenet.parse_train_archive)):
        if (folder / split).exists():
            continue
        unfinished = folder / f"{split}.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        parse(folder, folder=unfinished.name)
        unfinished.rename(folder / split)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--as-it-is", action="store_true", help="compare no checksums")
    given = parser.parse_args()
    if given.as_it_is:
        imagenet.ARCHIVE_META.update({part: (name, None) for part, (name, _) in imagenet.ARCHIVE_META.items()})
    try:
        unpack(given.folder)
    except RuntimeError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
