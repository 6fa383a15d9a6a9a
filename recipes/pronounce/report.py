"""Print the results of the pronunciation demo: error rates, some words, and how to pronounce others.

python report.py RUN_FOLDER --data DATA_FOLDER
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "recipes" / folder) for folder in ("records", "metrics")]

from collect import training  # noqa: E402
from score import hypotheses_and_references  # noqa: E402

SHOWN = 20


def words(run: Path, data: Path) -> Iterator[str]:
    """The first words with the model's phonemes and, where the dictionary has others, the dictionary's."""
    letters = (data / "raw" / "valid.letters").read_text(encoding="utf-8").splitlines()
    hypotheses, references = hypotheses_and_references(run / "generate.log", data / "raw" / "valid.references")
    for spelled, ours, reference in list(zip(letters, hypotheses, references, strict=True))[:SHOWN]:
        known = reference.split("\t")
        yield f"  {spelled.replace(' ', ''):16} {ours:32} {'' if ours in known else ' or '.join(known)}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    try:
        found = json.loads((args.run / "scores.json").read_text()) | training(args.run)
        shown = list(words(args.run, args.data))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print("\nWords that were not in the training, with the model's phonemes and, where they differ, the dictionary's:")
    print(*shown, sep="\n")
    print(f"\nErrors on {found['words']:,} such words, after {found['wall_s']} s of training")
    print(f"  wrong words      {found['word_error_rate']:.1f} %")
    print(f"  wrong phonemes   {found['phoneme_error_rate']:.1f} %")
    print(f"The model stores {found['params']:,} parameters.")
    print(f"\nData: {args.data}\nCheckpoint and logs: {args.run}")
    print("\nTo pronounce words of your own, one a line:")
    checkpoint = args.run / "checkpoints" / "checkpoint_last.pt"
    # The program by its path: the demo is also run outside the environment.
    program = Path(sys.executable).with_name("fairseq-interactive")
    paths = program, args.data / "bin", ROOT / "fairseq_plugin", checkpoint
    interactive, data, plugin, checkpoint = (shlex.quote(str(path)) for path in paths)
    print(f"  echo hello | {interactive} {data} --user-dir {plugin} \\")
    print("      --source-lang letters --target-lang phonemes --bpe letters --beam 5 \\")
    print(f"      --path {checkpoint} 2>/dev/null | grep ^D")


if __name__ == "__main__":
    main()
