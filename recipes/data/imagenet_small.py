"""Select a subset of ImageNet from a list of files.

    python imagenet_small.py LIST IMAGENET OUTPUT

LIST is a JSON file, {"train": {CLASS: [FILE, ...], ...}, "val": {...}}. OUTPUT/train/CLASS and OUTPUT/val/CLASS receive
symbolic links to the images in the same folders of IMAGENET.
"""

import json
import sys
from pathlib import Path


def pick(listed: dict[str, dict[str, list[str]]], imagenet: Path, output: Path) -> dict[str, int]:
    """Links every listed image and returns the number of images per split.

    Raises:
        ValueError: if the splits have different classes.
        FileNotFoundError: if an image is missing.
    """
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
    path, imagenet, output = map(Path, sys.argv[1:])
    listed = json.loads(path.read_text(encoding="utf-8"))
    try:
        counts = pick(listed, imagenet, output)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    print(
        f"{len(listed['train'])} classes, " + ", ".join(f"{split}: {count} images" for split, count in counts.items())
    )


if __name__ == "__main__":
    main()
