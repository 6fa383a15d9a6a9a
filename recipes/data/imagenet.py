"""Unpack the archives of ImageNet 2012 in a folder into FOLDER/train/CLASS and FOLDER/val/CLASS.

    python imagenet.py FOLDER [--as-it-is]

torchvision parses the archives and checks their published MD5 sums (torchvision.datasets.imagenet.ARCHIVE_META), unless
--as-it-is disables the check. Leftovers of an interrupted call are removed; a split that is already there is kept.
"""

import argparse
import shutil
from pathlib import Path

from torchvision.datasets import imagenet


def unpack(folder: Path) -> None:
    """Unpacks both splits; the development kit says which class each validation image belongs to.

    Raises:
        RuntimeError: if an archive is missing or is not the published one.
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
    parser.add_argument("--as-it-is", action="store_true", help="do not check MD5 sums")
    args = parser.parse_args()
    if args.as_it_is:
        imagenet.ARCHIVE_META.update({part: (name, None) for part, (name, _) in imagenet.ARCHIVE_META.items()})
    try:
        unpack(args.folder)
    except (OSError, RuntimeError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
