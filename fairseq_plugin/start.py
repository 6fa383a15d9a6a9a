"""Begin a project: from raw text to a folder with three short scripts that prepare, train, and use a model.

Usage::

    python -m fairseq_plugin.start my-project --train train.de train.en --minutes 30
    my-project/train.sh
    echo "Ein Hund rennt." | my-project/translate.sh

The first command reads and checks the text, times updates of a few sizes on this machine, and chooses a training that
fits into the time. Everything else is done by fairseq's and sentencepiece's own commands, in scripts that give the
reason for each choice. With `--text FILE` in place of `--train`, the model is a language model, and `write.sh`
continues a text.
"""

import argparse
import math
import re
import shlex
import shutil
import string
import subprocess
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fairseq_plugin.compare import USER_DIR, parse, time_of_update
from fairseq_plugin.start_corpus import Corpus, read_corpus
from fairseq_repairs.files import LONGEST_LINE
from recurrence.files import make_folder, new_folder, write_text

SCRIPTS = Path(__file__).with_name("start_scripts")
PER_PIECE, PIECES = 500, (500, 8000)  # characters of training text for each piece; the smallest and largest number
TRAINING = 0.8  # of the time; the rest is for validation
ENOUGH = 20, 20_000  # readings of the text, or updates, that a size must get to be chosen over a smaller one
MOST_READINGS = 100
FEW_READINGS = 30, 60  # below the first, dropout is 0.1; from the second on, 0.3
FEWEST_UPDATES = 100
VALIDATIONS, SECONDS_PER_LINE = 5, 15  # of the log


@dataclass(frozen=True)
class Size:
    """A model, and its learning rate."""

    what: str
    flags: str
    rate: str


SIZES = {
    "translation": (
        Size("2 + 2 passes of width 128", "--arch ringformer_small --encoder-layers 2 --decoder-layers 2", "2e-3"),
        Size("4 + 4 passes of width 128", "--arch ringformer_small", "2e-3"),
        Size(
            "4 + 4 passes of width 256",
            "--arch ringformer_small --encoder-embed-dim 256 --encoder-ffn-embed-dim 1024",
            "1e-3",
        ),
        Size("6 + 6 passes of width 512", "--arch ringformer_base", "7e-4"),
    ),
    "language_modeling": (
        Size("4 layers of width 128, each run once", "--arch ilr_small --reuse-map 1,1,1,1 --position alibi", "3e-3"),
        Size("8 passes of width 128", "--arch ilr_small --position alibi", "3e-3"),
        Size("8 passes of width 256", "--arch ilr_small --decoder-embed-dim 256 --position alibi", "2e-3"),
    ),
}


class Template(string.Template):
    """A text with %{names}."""

    delimiter = "%"


def filled(name: str, **values: object) -> str:
    """One of the scripts."""
    return Template((SCRIPTS / name).read_text(encoding="utf-8")).substitute(values)


def start(args: argparse.Namespace) -> None:
    """Writes the project.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the text is of no use, as in :func:`fairseq_plugin.start_corpus.read_corpus`, or the time too short.
    """
    languages = check(args)
    corpus = read_corpus(args.train or args.text, args.valid, args.test)
    for note in corpus.notes:
        say(note)
    pieces, reason = choose_pieces(corpus)
    with new_folder(args.project) as folder:
        write_corpus(folder, corpus, languages)
        say("Cutting the text into pieces, and numbering them ...")
        prepare(folder, languages, pieces)
        say("Timing updates ...")
        plan = choose(folder, Plan("translation" if languages else "language_modeling", args.minutes))
        reasons = [reason, *plan.reasons]
        write_scripts(folder, languages, plan, reasons)
    for reason in reasons:
        say(f"* {reason}")
    say(f"Next: {shlex.quote(str(args.project / 'train.sh'))}")


def choose_pieces(corpus: Corpus) -> tuple[int, str]:
    """How many pieces to learn, and why. Every character of the training text is a piece."""
    least, most = PIECES
    pieces = min(max(corpus.characters // PER_PIECE // 100 * 100, least), most)
    if 2 * corpus.alphabet > pieces:
        pieces = corpus.alphabet + least
        return pieces, f"{pieces:,} pieces: {least} more than there are different characters in the training text"
    return pieces, f"{pieces:,} pieces: one for {PER_PIECE} characters of training text, {least:,} to {most:,}"


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def check(args: argparse.Namespace) -> list[str]:
    """The languages of pairs. Raises ValueError for options that conflict."""
    if args.project.exists():
        raise ValueError(f"{args.project}: already exists: run its train.sh to continue it, or name another folder")
    if shutil.which("fairseq-preprocess") is None:
        raise ValueError("fairseq-preprocess: is not on the PATH: activate the environment that has fairseq")
    given = args.train or args.text
    for name in ("valid", "test"):
        paths = getattr(args, name)
        if paths and len(paths) != len(given):
            raise ValueError(f"--{name}: must be {'two files' if args.train else 'one file'}, like the training text")
    languages = [path.suffix[1:] for path in args.train]
    if languages and not (all(re.fullmatch(r"\w+", name) for name in languages) and len(set(languages)) == 2):
        given = " ".join(map(str, args.train))
        raise ValueError(f"--train {given}: the names must end in two languages, as in train.de train.en")
    for name in ("valid", "test"):
        paths = getattr(args, name)
        if languages and [path.suffix[1:] for path in paths] == languages[::-1]:
            given = " ".join(map(str, paths))
            raise ValueError(f"--{name} {given}: must be in the order of --train, {languages[0]} first")
    return languages


def write_corpus(folder: Path, corpus: Corpus, languages: Sequence[str]) -> None:
    """Writes the text, a file for each set and side."""
    make_folder(folder / "text")
    for name, rows in corpus.sets.items():
        for suffix, side in zip(languages or [""], zip(*rows)):
            write_text(folder / "text" / file_name(name, suffix), "".join(f"{line}\n" for line in side))


def file_name(set_name: str, language: str) -> str:
    """`train.de`, or `train` of a text without languages."""
    return f"{set_name}.{language}" if language else set_name


def prepare(folder: Path, languages: Sequence[str], pieces: int) -> None:
    """Writes prepare.sh and runs it. Raises ValueError with the last line that it printed, if it fails."""
    names = [file_name(name, language) for name in ("train", "valid", "test") for language in languages or [""]]
    script = filled(
        "prepare.sh",
        trained=",".join(f"text/{name}" for name in names if name.startswith("train")),
        names=" ".join(names),
        sides=f"{sides(languages)} --joined-dictionary" if languages else "--only-source",
        pieces=pieces,
        longest=LONGEST_LINE,
    )
    write_script(folder / "prepare.sh", script)
    done = subprocess.run(["bash", folder / "prepare.sh"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise ValueError(f"prepare.sh: {done.stdout.decode(errors='replace').strip().splitlines()[-1]}")


def sides(languages: Sequence[str]) -> str:
    """fairseq's options of a pair; none for a text."""
    return "--source-lang {} --target-lang {}".format(*languages) if languages else ""


@dataclass(frozen=True)
class Plan:
    """What train.sh trains, and a reason for each choice.

    Attributes:
        task: fairseq's name of it.
        minutes: the time that is given.
        size: the model.
        seconds: measured, for an update.
        batches: in a reading of the training text.
    """

    task: str
    minutes: float
    size: Size | None = None
    seconds: float = 1.0
    batches: int = 1000

    @property
    def tokens(self) -> int:
        """In a batch, at most."""
        return 4096 if torch.cuda.is_available() else 1024

    @property
    def fitting(self) -> int:
        """Updates that fit into the time."""
        return int(TRAINING * 60 * self.minutes / self.seconds)

    @property
    def updates(self) -> int:
        """As many as fit, unless they would read the text too often."""
        return max(1, min(self.fitting, MOST_READINGS * self.batches))

    @property
    def dropout(self) -> float:
        """More for a text that is read more often."""
        few, many = FEW_READINGS
        readings = self.updates / self.batches
        return 0.1 if readings < few else 0.2 if readings < many else 0.3

    @property
    def is_enough(self) -> bool:
        """Whether a model of this size gets far enough in the time."""
        readings, updates = ENOUGH
        return self.updates >= min(readings * self.batches, updates)

    @property
    def reasons(self) -> list[str]:
        """The choices, a sentence each."""
        sizes, (readings, updates), (few, many) = len(SIZES[self.task]), ENOUGH, FEW_READINGS
        gets = f"gets to {readings} readings of the text or {updates:,} updates in {self.minutes:g} minutes"
        size = f"the largest of {sizes} sizes that {gets}" if self.is_enough else f"the smallest size; none {gets}"
        length = f"{MOST_READINGS} times at most"
        if self.updates == self.fitting:
            length = (
                f"as many as fit into {TRAINING:.0%} of the time, {self.seconds:.2g} s each; the rest is for validation"
            )
        return [
            f"{self.size.what}: {size}",
            f"batches of {self.tokens:,} tokens: small ones learn more in a given time on a CPU, large ones on a GPU",
            f"rate {self.size.rate}: suits this width; it falls to 0, so that the last updates settle",
            f"dropout {self.dropout}: 0.1 for a text that is read fewer than {few} times, 0.3 from {many} times on",
            f"{self.updates:,} updates, which read the text {self.updates / self.batches:.1f} times: {length}",
        ]

    def script(self, reasons: Sequence[str]) -> str:
        """The training script; the reasons are comments at its head."""
        comments = (textwrap.fill(text, 118, initial_indent="# * ", subsequent_indent="#   ") for text in reasons)
        return filled(
            f"{self.task}.sh",
            reasons="\n".join(comments),
            model=self.size.flags,
            dropout=self.dropout,
            rate=self.size.rate,
            warmup=min(self.updates // 10, 1000),
            updates=self.updates,
            tokens=self.tokens,
            interval=math.ceil(self.updates / VALIDATIONS),
            logged=max(1, round(SECONDS_PER_LINE / self.seconds)),
        )


def choose(folder: Path, plan: Plan) -> Plan:
    """The plan with the largest size that gets far enough in the time, or with the smallest.

    Raises:
        ValueError: the time is too short even for that one.
    """
    smallest, *larger = SIZES[plan.task]
    chosen = timed(folder, replace(plan, size=smallest))
    if chosen.fitting < FEWEST_UPDATES:
        least = math.ceil(FEWEST_UPDATES * chosen.seconds / TRAINING / 60)
        short = f"time for {chosen.fitting} updates, fewer than {FEWEST_UPDATES}"
        raise ValueError(f"--minutes={plan.minutes:g}: {short}: must be at least {least}")
    for size in larger if chosen.is_enough else ():
        try:
            tried = timed(folder, replace(plan, size=size))
        except torch.cuda.OutOfMemoryError:
            break
        if not tried.is_enough:
            break
        chosen = tried
    return chosen


def timed(folder: Path, plan: Plan) -> Plan:
    """The plan with the seconds of an update of fairseq's trainer, under the options of train.sh."""
    script = plan.script([]).replace("\\\n", "").replace('"$plugin"', shlex.quote(USER_DIR))
    _, data, *words = shlex.split(re.search(r"^fairseq-train .*", script, re.M)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what fairseq says about the libraries that it uses
        seconds, batches = time_of_update(parse([str(folder / data), *words]))
    return replace(plan, seconds=seconds, batches=batches)


def write_scripts(folder: Path, languages: Sequence[str], plan: Plan, reasons: Sequence[str]) -> None:
    """Writes train.sh, the script that uses the model, and README.md."""
    use, title = "write.sh", "A language model"
    if languages:
        use, title = "translate.sh", "From {} to {}".format(*languages)
    write_script(folder / "train.sh", plan.script(reasons))
    write_script(folder / use, filled(use, sides=sides(languages)))
    arch = shlex.split(plan.size.flags)[1]
    write_text(folder / "README.md", filled("README.md", title=title, use=use, minutes=f"{plan.minutes:g}", arch=arch))


def write_script(path: Path, text: str) -> None:
    """Writes a script that can be executed."""
    write_text(path, text)
    path.chmod(0o755)


def command_line() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m fairseq_plugin.start", description=__doc__.split("\n")[0])
    parser.add_argument("project", type=Path, help="folder to create")
    texts = parser.add_mutually_exclusive_group(required=True)
    texts.add_argument(
        "--train", type=Path, nargs=2, default=[], metavar=("SOURCE", "TARGET"), help="sentences and their translations"
    )
    texts.add_argument("--text", type=Path, nargs=1, default=[], metavar="FILE", help="text for a language model")
    held = "the same for %s (default: lines of the training text are held out)"
    parser.add_argument("--valid", type=Path, nargs="+", default=[], metavar="FILE", help=held % "validation")
    parser.add_argument("--test", type=Path, nargs="+", default=[], metavar="FILE", help=held % "the final score")
    parser.add_argument("--minutes", type=minutes, default=30.0, help="time for training (default: 30)")
    return parser


def minutes(text: str) -> float:
    """A positive number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number > 0")
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line()
    args = parser.parse_args(arguments)
    try:
        start(args)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
