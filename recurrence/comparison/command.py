"""The command line that both comparisons share: its options, and what it does with them."""

import argparse
import contextlib
import dataclasses
import itertools
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recurrence.comparison.controls import Controls
from recurrence.comparison.rows import DEFAULT, ROWS, TIMED, Length, Row, Score
from recurrence.comparison.runs import Command, Run, Runner, Step, Values, ended_by_signals, locked

LOGS = "ROW/seedN/train.log and score.log in the folder of --output"
NEEDS = "needs pandas, scipy, matplotlib and tabulate: pip install 'recurrent-transformers[compare]'"


class Comparison(ABC):
    """A looped model, its controls, and how they are trained and scored.

    Attributes:
        length: in what the length of a training is counted, "updates" or "epochs".
        diverged: what the log of a training that diverged contains.
        controls: the command lines of the rows.
    """

    length: str
    diverged: re.Pattern
    controls: Controls

    @property
    @abstractmethod
    def score(self) -> Score:
        """Name and direction of the score."""

    @property
    def imports(self) -> Sequence[str]:
        """Modules that all commands import, if they may start as forks; none of them may look at the command."""
        return ()

    @abstractmethod
    def row(self, name: str, words: Sequence[str]) -> Row:
        """The row of this name, with the model of a command line."""

    @abstractmethod
    def steps(self, row: Row, seed: int, folder: Path, length: Length | None = None) -> list[Step]:
        """The steps of a run; the first one trains, and the less the `validation` in its result, the better.

        Args:
            row: what to train.
            seed: of the training.
            folder: of the run.
            length: of the training; None for that of the flags.
        """

    @abstractmethod
    def seconds(self, row: Row) -> float:
        """How long a training takes on this machine, by a few updates; infinite if its length is not given."""

    def rows(self, names: Sequence[str]) -> list[Row]:
        """The rows of these names; those with the same flags are the same model, which is counted once.

        Raises:
            ValueError: if one cannot be derived, naming the option that prevents it.
        """
        flags = self.controls.flags(names)
        rows: list[Row] = []
        for name in names:
            same = next((row for row in rows if row.flags == tuple(flags[name])), None)
            rows.append(dataclasses.replace(same, name=name) if same else self.row(name, flags[name]))
        return rows


def python_step(name: str, words: Sequence[Any], flags: Sequence[Any], read: Callable[[Path, str], Values]) -> Step:
    """A step that runs a module of Python: its name and its arguments are the words; see :class:`Step`."""
    command = Command.of(sys.executable, "-m", *words)
    return Step(name, (command,), f"{name}.log", tuple(map(str, flags)), read)


def add_options(parser: argparse.ArgumentParser, output: bool = True) -> argparse._ArgumentGroup:
    """Adds the options of a comparison to a trainer's parser; `output`: also --output, where the trainer has none."""
    group = parser.add_argument_group("comparison")
    if output:
        group.add_argument("--output", required=True, metavar="DIR", help="folder of the runs and the report")
    group.add_argument("--seeds", type=_seeds, default=(1,), metavar="N,N", help="seeds of every row (default: 1)")
    rows = f"beside looped (default: {','.join(DEFAULT[1:])})"
    group.add_argument("--rows", type=_rows, default=DEFAULT, metavar="ROW,ROW", help=rows)
    tried = "in place of --lr: each row tries these with the first seed, and trains at the one that validates best"
    group.add_argument("--rates", type=_rates, default=(), metavar="LR,LR", help=tried)
    group.add_argument("--jobs", type=_jobs, default=1, metavar="N", help="runs at once, which share the cores")
    plan = "train nothing: print rows, sizes and commands, and how long they take, timed by a few updates of each row"
    group.add_argument("--dry-run", action="store_true", help=plan)
    return group


def _seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(map(int, text.split(","))) if re.fullmatch(r"\d+(,\d+)*", text) else ()
    if not seeds or len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"{text}: must be different whole numbers, such as 1,2,3")
    return seeds


def _rows(text: str) -> tuple[str, ...]:
    names = {"looped", *text.split(",")}
    if unknown := sorted(names - set(ROWS)):
        raise argparse.ArgumentTypeError(f"{unknown[0]}: must be one of {', '.join(ROWS)}")
    names |= {TIMED[name] for name in names & TIMED.keys()}  # the untimed row, whose speed gives the length
    return tuple(name for name in ROWS if name in names)


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(map(float, text.split(",")))
    except ValueError:
        rates = ()
    if not rates or len({rate for rate in rates if 0 < rate < math.inf}) < len(rates):
        raise argparse.ArgumentTypeError(f"{text}: must be different positive numbers, such as 1e-3,2e-3")
    return rates


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number >= 1")
    return int(text)


def compare(comparison: Comparison, args: argparse.Namespace) -> None:
    """Counts the rows, trains and scores what has not been, and writes the report; args: see :func:`add_options`.

    Raises:
        ValueError: naming the option and the rule, before a row is trained; or a file of --output that is damaged.
    """
    try:
        from recurrence.comparison import report
    except ModuleNotFoundError as error:
        raise ValueError(f"{error}; a comparison {NEEDS}") from None
    rows, output = comparison.rows(args.rows), Path(args.output)
    print(report.planned(rows, comparison.score), *report.warnings(rows[0]), sep="\n\n", flush=True)
    if args.dry_run:
        _show(comparison, rows, args, output)
        return
    ended_by_signals()
    with locked(output / ".lock", f"--output={output}: another comparison is running there, or a command of one"):
        with contextlib.closing(Runner(args.jobs, imports=comparison.imports)) as runner:
            runner.trainings = sum(_trainings(rows, args).values())
            rows = _tuned(comparison, rows, args, output, runner)
            results = _results(comparison, rows, args.seeds, output, runner)
        runs = report.table_of(rows, results)
        print(f"\n{report.write(output, rows, runs, comparison.score)}")
    print(f"{output}/comparison.md, {output}/comparison.svg and {output}/runs.csv contain this; the logs are {LOGS}.")
    _end_at_failures(list(results.values()))


def _show(comparison: Comparison, rows: Sequence[Row], args: argparse.Namespace, output: Path) -> None:
    """Prints the commands, and about how long they take."""
    for run in _trials(comparison, rows, args, output) or _planned(comparison, rows, args.seeds, output):
        commands = [command for step in run.steps for command in step.commands]
        print(f"\n# {run.row}, seed {run.seed}", *commands, sep="\n")
    if args.rates:
        print("\n# then each row with every seed, at its best rate")
    numbers = _trainings(rows, args)
    for name in (name for name in numbers if name in TIMED):
        fitting = f"the number of {comparison.length} that comes nearest to the time of looped"
        print(f"\n# {name}: the commands of {TIMED[name]}, with {fitting}")
    print(f"\n# {sum(numbers.values())} trainings, logged in {LOGS}\n# {_estimate(comparison, rows, numbers)}")


def _estimate(comparison: Comparison, rows: Sequence[Row], numbers: Mapping[str, int]) -> str:
    """How long these numbers of trainings of each row take on this machine."""
    minutes = {row.name: comparison.seconds(row) / 60 for row in rows if row.name in numbers and row.name not in TIMED}
    said = [f"{name} {numbers[name]} x {each:,.1f}" for name, each in minutes.items()]
    for name in (name for name in numbers if name in TIMED):
        minutes[name] = minutes["looped"]
        said.append(f"{name} {numbers[name]} x as long as looped")
    total = sum(numbers[name] * each for name, each in minutes.items())
    if math.isinf(total):
        return "they do not end: no option says how long they train"
    each = f"({', '.join(said)}), estimated from a few updates of each"
    return f"about {total:,.0f} minutes {each}; validation and scoring take more"


def _trainings(rows: Sequence[Row], args: argparse.Namespace) -> dict[str, int]:
    """How many trainings each row has, in the order of the rows; with `--rates`, one of the trials is its first."""
    tried = max(1, len(args.rates)) + len(args.seeds) - 1
    trained = [row.name for row in rows if _trained_as(row, rows) == row.name]
    return {name: len(args.seeds) if name in TIMED else tried for name in trained}


def _end_at_failures(results: Sequence[Values]) -> None:
    """Ends the program with an error if a run failed; one that diverged did not."""
    failed = sum("failure" in values and not values.get("diverged") for values in results)
    if failed:
        sys.exit(f"{failed} of {len(results)} runs failed; the same command tries them again.")


def _trials(comparison: Comparison, rows: Sequence[Row], args: argparse.Namespace, output: Path) -> list[Run]:
    """The trainings with the first seed at every rate."""
    rates = [[_at(rate, row) for row in rows] for rate in args.rates]
    runs = [run for tried in rates for run in _planned(comparison, tried, args.seeds[:1], output)]
    return [dataclasses.replace(run, steps=run.steps[:1]) for run in runs]


def _tuned(
    comparison: Comparison, rows: list[Row], args: argparse.Namespace, output: Path, runner: Runner
) -> list[Row]:
    """The rows at the rates whose trials ended with the best validation; a timed row has that of its control."""
    if not args.rates:
        return rows
    trials = _trials(comparison, rows, args, output)
    found = runner.carry_out(trials)
    _end_at_failures(found)  # the rate of one that failed may be the best
    losses: dict[str, list[float]] = {run.row: [] for run in trials}
    for run, values in zip(trials, found):
        losses[run.row].append(math.inf if "failure" in values else values.get("validation", math.inf))
    chosen = {name: args.rates[of_row.index(min(of_row))] for name, of_row in losses.items()}
    trained = {row.name: _trained_as(row, rows) for row in rows}
    return [_at(chosen[trained[TIMED.get(row.name, row.name)]], row) for row in rows]


def _at(rate: float, row: Row) -> Row:
    return dataclasses.replace(row, flags=(*row.flags, "--lr", f"{rate:.12g}"), rate=rate)


def _results(comparison: Comparison, rows: Sequence[Row], seeds: Sequence[int], output: Path, runner: Runner):
    """The results by row and seed. Rows that are the same training share its result; timed rows wait for the others."""
    results = {}

    def train(rows: Sequence[Row], runs: Sequence[Run]) -> None:
        for run, values in zip(runs, runner.carry_out(runs)):
            results[run.row, run.seed] = values
        for row, seed in itertools.product(rows, seeds):
            results[row.name, seed] = results[_trained_as(row, rows), seed]

    train([row for row in rows if row.name not in TIMED], _planned(comparison, rows, seeds, output))
    timed, longer = [row for row in rows if row.name in TIMED], []
    for row, seed in itertools.product(timed, seeds):
        length = _length(comparison, results["looped", seed], results[TIMED[row.name], seed])
        if length is None:
            failure = f"looped or {TIMED[row.name]} failed, so its time is unknown"
            results[row.name, seed] = {"failure": failure, "diverged": True}
        elif _trained_as(row, rows) == row.name:
            longer.append(_run(comparison, row, seed, output, length))
    train(timed, longer)
    return results


def _length(comparison: Comparison, looped: Values, control: Values) -> Length | None:
    """As many updates or epochs of a control as take the time of `looped`; None if one of them has failed."""
    if "seconds" not in looped or "seconds" not in control:
        return None
    stretch = looped["seconds"] / control["seconds"]
    return Length(max(1, round(control[comparison.length] * stretch)), stretch)


def _planned(comparison: Comparison, rows: Sequence[Row], seeds: Sequence[int], output: Path) -> list[Run]:
    """All runs except the timed ones, seed by seed, so that an interrupted comparison already has pairs."""
    trained = [row for row in rows if row.name not in TIMED and _trained_as(row, rows) == row.name]
    return [_run(comparison, row, seed, output) for seed in seeds for row in trained]


def _trained_as(row: Row, rows: Sequence[Row]) -> str:
    """The first row that is the same training."""
    same = (other.name for other in rows if other.flags == row.flags and (other.name in TIMED) == (row.name in TIMED))
    return next(same)


def _run(comparison: Comparison, row: Row, seed: int, output: Path, length: Length | None = None) -> Run:
    folder = output / row.name / (f"seed{seed}" if math.isnan(row.rate) else f"seed{seed}-lr{row.rate:.12g}")
    return Run(row.name, seed, folder, tuple(comparison.steps(row, seed, folder, length)), comparison.diverged)


def with_rate(words: Sequence[str]) -> list[str]:
    """The words and, if they have `--rates`, the first of them as `--lr`, which the trainer's parser wants."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--rates", nargs="?")
    rates = parser.parse_known_args(words)[0].rates
    return [*words, "--lr", rates.partition(",")[0]] if rates else list(words)


def without(words: Sequence[str], add: Callable[[argparse.ArgumentParser], object]) -> list[str]:
    """The words of a valid command line, without abbreviations, less the options that a function adds to a parser."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add(parser)
    return parser.parse_known_args(words)[1]
