"""Select a subset of ImageNet from a list of files.

    python imagenet_small.py LIST IMAGENET OUTPUT

LIST is a JSON file, {"train": {CLASS: [FILE, ...], ...}, "val": {...}}. OUTPUT/train/CLASS and OUTPUT/val/CLASS receive
symbolic links to the images in the same folders of IMAGENET.
"""

import argparse
from pathlib import Path

from recurrence.files import read_json


def pick(listed: dict[str, dict[str, list[str]]], imagenet: Path, output: Path) -> dict[str, int]:
    """Links every listed image and returns the number of images per split.

    Raises:
        ValueError: if the splits have different classes, or a class or a file is not the name of one.
        FileNotFoundError: if an image is missing.
    """
    for split in ("train", "val"):
        if not isinstance(listed.get(split), dict):
            raise ValueError(f"{split}: must list the files of each class")
        for name, files in listed[split].items():
            for one in (name, *files) if isinstance(files, list) else (None,):
                if (
                    not isinstance(one, str) or one in ("", ".", "..") or Path(one).name != one
                ):  # which could lead anywhere
                    raise ValueError(f"{split}: {name}: {one!r}: must be the name of a file of that class")
    if listed["train"].keys() != listed["val"].keys():
        raise ValueError("train and val list different classes: must be the same")
    for split in ("train", "val"):
        for name, files in listed[split].items():
            folder = output / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for file in files:
                link = folder / file
                link.unlink(missing_ok=True)
                link.symlink_to((imagenet / split / name / file).resolve(strict=True))
    return {split: sum(map(len, listed[split].values())) for split in ("train", "val")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, help="JSON file")
    parser.add_argument("imagenet", type=Path, help="folder of train/CLASS and val/CLASS")
    parser.add_argument("output", type=Path, help="folder to write")
    args = parser.parse_args()
    try:
        listed = read_json(args.list, dict)
        counts = pick(listed, args.imagenet, args.output)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    images = ", ".join(f"{split}: {count} images" for split, count in counts.items())
    print(f"{len(listed['train'])} classes, {images}")


if __name__ == "__main__":
    main()
