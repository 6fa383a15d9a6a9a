"""Keep the pairs of a parallel corpus whose two sides are neither empty, too long nor of too different lengths.

    python clean.py INPUT OUTPUT SOURCE TARGET [--longest 175] [--ratio 1.5] [--along INPUT OUTPUT]

Reads INPUT.SOURCE and INPUT.TARGET, writes OUTPUT.SOURCE and OUTPUT.TARGET. A length is a number of words. --along
keeps the same pairs of a second corpus, such as the text before it was tokenized.

The limits are those of Moses' clean-corpus-n. Differs from it: blanks are left as they are.
"""

import argparse
from contextlib import ExitStack


def fits(source: str, target: str, longest: float, ratio: float) -> bool:
    """Whether both sides have 1 to `longest` words, and neither has more than `ratio` times as many as the other."""
    lengths = sorted((len(source.split()), len(target.split())))
    return lengths[0] > 0 and lengths[1] <= longest and lengths[1] <= ratio * lengths[0]


def clean(inputs: list[str], outputs: list[str], languages: list[str], longest: float, ratio: float) -> tuple[int, int]:
    """Write the pairs that are kept, the first input decides which, and return how many are kept and dropped.

    Raises:
        ValueError: the files have different numbers of lines.
    """
    kept = dropped = 0
    with ExitStack() as stack:

        def opened(prefixes: list[str], mode: str) -> list:
            names = [f"{prefix}.{language}" for prefix in prefixes for language in languages]
            return [stack.enter_context(open(name, mode, encoding="utf-8", newline="\n")) for name in names]

        sources, targets = opened(inputs, "r"), opened(outputs, "w")
        for row in zip(*sources, strict=True):
            if not fits(row[0], row[1], longest, ratio):
                dropped += 1
                continue
            kept += 1
            for file, line in zip(targets, row):
                file.write(line)
    return kept, dropped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="prefix of the files to read")
    parser.add_argument("output", help="prefix of the files to write")
    parser.add_argument("source", help="language of the source, such as de")
    parser.add_argument("target", help="language of the target, such as en")
    parser.add_argument(
        "--longest", type=float, default=float("inf"), help="words of the longest sentence (default: any)"
    )
    parser.add_argument("--ratio", type=float, default=float("inf"), help="largest ratio of the lengths (default: any)")
    parser.add_argument("--along", nargs=2, default=[], metavar=("INPUT", "OUTPUT"), help="prefixes of a second corpus")
    given = parser.parse_args()
    inputs, outputs = [given.input, *given.along[:1]], [given.output, *given.along[1:]]
    languages = [given.source, given.target]
    kept, dropped = clean(inputs, outputs, languages, given.longest, given.ratio)
    print(f"{given.output}: {kept} pairs kept, {dropped} dropped")


if __name__ == "__main__":
    main()
