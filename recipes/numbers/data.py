"""Generate a small translation task: English number words and the German words for the same number.

    python data.py FOLDER --limit 100000 --train 20000 --valid 500 --test 1000

German names the units before the tens ("twenty-one" is "einundzwanzig") and writes a number as one word. The three sets
are disjoint, so no number of the test set occurs in training.
"""

import argparse
import random
from pathlib import Path

from num2words import num2words


def split(limit: int, sizes: dict[str, int], seed: int) -> dict[str, list[int]]:
    """Disjoint random sets of numbers from 0 to limit - 1.

    Raises:
        ValueError: if a set is empty, or the sizes exceed the limit.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"--{name} {size}: must be >= 1")
    wanted = sum(sizes.values())
    if wanted > limit:
        raise ValueError(f"--limit {limit}: must be >= {wanted}, the total of the three sets")
    numbers = iter(random.Random(seed).sample(range(limit), wanted))
    return {name: [next(numbers) for _ in range(size)] for name, size in sizes.items()}


def write(folder: Path, sets: dict[str, list[int]]) -> None:
    """Writes FOLDER/SET.LANGUAGE for each set and language, one number per line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, numbers in sets.items():
        for language in ("en", "de"):
            lines = (num2words(number, lang=language) + "\n" for number in numbers)
            (folder / f"{name}.{language}").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, required=True, help="use numbers below this one")
    for name in ("train", "valid", "test"):
        parser.add_argument(f"--{name}", type=int, required=True, help=f"numbers in {name}")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in ("train", "valid", "test")}
    try:
        write(args.folder, split(args.limit, sizes, args.seed))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
