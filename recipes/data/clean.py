"""Filter a parallel corpus: drop pairs with an empty side, an overlong side or too different lengths.

    python clean.py INPUT OUTPUT SOURCE TARGET [--longest 175] [--ratio 1.5] [--along INPUT OUTPUT]

Reads INPUT.SOURCE and INPUT.TARGET, writes OUTPUT.SOURCE and OUTPUT.TARGET. Lengths are in words. --along keeps the
same pairs of a second corpus, such as the text before tokenization.

The limits are the same as in Moses' clean-corpus-n. Differs from it: whitespace is kept unchanged.
"""

import argparse
import math
from contextlib import ExitStack
from itertools import zip_longest


def fits(source: str, target: str, longest: float, ratio: float) -> bool:
    """Whether both sides have 1 to `longest` words, and neither has more than `ratio` times as many as the other."""
    lengths = sorted((len(source.split()), len(target.split())))
    return lengths[0] > 0 and lengths[1] <= longest and lengths[1] <= ratio * lengths[0]


def clean(inputs: list[str], outputs: list[str], languages: list[str], longest: float, ratio: float) -> tuple[int, int]:
    """Writes the pairs whose sides in the first input fit, and returns how many pairs are kept and dropped.

    Raises:
        ValueError: names two files that have different numbers of lines.
    """
    kept = dropped = 0
    with ExitStack() as stack:

        def opened(prefixes: list[str], mode: str) -> list:
            names = [f"{prefix}.{language}" for prefix in prefixes for language in languages]
            return [stack.enter_context(open(name, mode, encoding="utf-8", newline="\n")) for name in names]

        sources, targets = opened(inputs, "r"), opened(outputs, "w")
        for row in zip_longest(*sources):
            if None in row:
                longer = next(file.name for file, line in zip(sources, row) if line is not None)
                raise ValueError(f"{sources[row.index(None)].name}: must have as many lines as {longer}, but has fewer")
            if not fits(row[0], row[1], longest, ratio):
                dropped += 1
                continue
            kept += 1
            for file, line in zip(targets, row):
                file.write(line)
    return kept, dropped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("input", help="prefix of the files to read")
    add("output", help="prefix of the files to write")
    add("source", help="language of the source, such as de")
    add("target", help="language of the target, such as en")
    add("--longest", type=float, default=math.inf, help="maximum number of words (default: no limit)")
    add("--ratio", type=float, default=math.inf, help="maximum ratio of the two lengths (default: no limit)")
    add("--along", nargs=2, default=[], metavar=("INPUT", "OUTPUT"), help="prefixes of a second corpus")
    args = parser.parse_args()
    inputs, outputs = [args.input, *args.along[:1]], [args.output, *args.along[1:]]
    languages = [args.source, args.target]
    try:
        kept, dropped = clean(inputs, outputs, languages, args.longest, args.ratio)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{args.output}: {kept} pairs kept, {dropped} dropped")


if __name__ == "__main__":
    main()
