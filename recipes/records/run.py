#!/usr/bin/env python
"""Runs rows of a paper's table: the program behind recipes/PAPER/TABLE.sh.

    recipes/PAPER/TABLE.sh ROW [flags]   one row, by its name or its architecture's; flags are passed on to the trainer
    recipes/PAPER/TABLE.sh all [flags]   every row, in the table's order
    recipes/PAPER/TABLE.sh list          the rows: name, architecture, the paper's name and numbers, flags
    recipes/PAPER/TABLE.sh folder ROW    the folder of the row's run

Two flags are the recipe's own, as SCALE and SEED: --scale NAME, --seed NUMBER. Settings from the environment:
  SCALE      smoke (default), small, long or paper; a table need not have all of them
  SEED       random seed of the run (default 1); SEEDS="1 2 3" runs each
  SETTINGS   whose settings to use at scale paper, where they differ: paper (default), body (those of the paper's body,
             where the default follows its appendix), release (those that the authors' release recommends) or code
             (those that their programs set)
  OUT        folder of all output (default: out/ beside recipes/)
  RESULTS    table to append the results to (default: results.csv of the paper; for scale smoke, under OUT)
  DRY_RUN    1 prints the commands instead of running them
  PRECISION  bf16, fp16 or fp32 (default: the table's); images: only at scale paper
  DATA_ROOT  folder that already holds the corpora (default: they are downloaded)
  THREADS    processor threads (default: OMP_NUM_THREADS, or else all)
  GPUS       processes of a training at scale paper, each on one GPU, started by torchrun
  MICRO_BATCH   batch of one process, where the table has that of an update, as at scale paper; gradients are
             accumulated up to it

The folder of a run keeps its commands (cmd.sh), the training's environment (env.json) and log (train.log), and the
outcome (metrics.json). Finished runs are skipped, interrupted ones resume at their last unfinished stage.
"""

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import collect
import later
import results_csv
from commands import Stages, parse_training, recorded_command, required_rows, run_folder, script, stages
from progress import show
from request import Request, check, read_request
from rows import RECIPES, Run, Table, TableError, read

from recurrence.comparison import runs as running
from recurrence.comparison.runs import Runner, Step, ended_by_signals, locked

KEPT = ("checkpoints/checkpoint*.pt", "*.pth.tar")  # of a training, from which the next call resumes it
OF_A_PROCESS = re.compile(r"--(?:batch-size|max-tokens) (\d+) --update-freq")  # how much a process reads at once
NO_RESULT = (2, 129, 130, 143)  # statuses of a usage error and of an interruption, which are not recorded as failures


class StageFailed(Exception):
    """A command of a stage failed.

    Args:
        status: as the shell reports it: 128 plus the number of the signal that ended the command, if one did.
    """

    def __init__(self, stage: str, status: int):
        super().__init__(f"{stage}: failed with status {status}")
        self.stage, self.status = stage, status


def run_row(request: Request, run: Run, seed: int) -> None:
    """Runs a row, after the rows that it requires.

    Raises:
        StageFailed: a command failed.
        TableError: a setting is invalid.
    """
    check_unfinished(request, run, [seed])
    for name in required_rows(run, run.settings(request.scale, request.settings)):
        run_row(request.model_copy(update={"flags": []}), run.table.runs[name], seed)
    found, folder = stages(request, run, seed), run_folder(request, run, seed)
    if request.dry_run == "1":
        print(script(found), end="")
        return
    with locked(folder / ".lock"):
        if (folder / "metrics.json").exists():
            if request.flags or request.precision:
                check_begun(folder, recorded_command(request, run, seed), found)
            print(f"== {folder}: finished before by `{begun_by(folder)}` (remove it to run it again)", file=sys.stderr)
        else:
            run_recorded(request, run, seed, found, folder)


def check_unfinished(request: Request, run: Run, seeds: Iterable[int]) -> None:
    """Rejects settings that a row does not have; a finished run without flags is only read, however it was trained.

    Raises:
        TableError: names the setting and the values it may have.
    """
    if request.flags or not all((run_folder(request, run, seed) / "metrics.json").exists() for seed in seeds):
        check(request, run)


def check_begun(folder: Path, command: str, found: Stages) -> None:
    """Refuses to continue a run that a different command began, or one with another batch in a process.

    Raises:
        TableError: names the folder and the other command, or the batch.
    """
    patterns, begun = [*KEPT, *(f"{stage}.json" for stage in found)], begun_by(folder)
    if not begun or not any(path for pattern in patterns for path in folder.glob(pattern)):
        return
    if "recipes/" in begun and begun != command:
        raise TableError(f"{folder}: holds a run of `{begun}`; use its flags, or remove the folder")
    if (folder / "training.json").exists():
        return
    before, now = (OF_A_PROCESS.search(text) for text in ((folder / "cmd.sh").read_text("utf-8"), script(found)))
    if before and now and before[1] != now[1]:  # its place in the epoch counts batches
        raise TableError(f"MICRO_BATCH={now[1]}: {folder} was begun with {before[1]}: set MICRO_BATCH={before[1]}")


def begun_by(folder: Path) -> str:
    """The command that began the run of a folder; empty if it is not known."""
    script = folder / "cmd.sh"
    return script.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") if script.exists() else ""


def run_recorded(request: Request, run: Run, seed: int, found: Stages, folder: Path) -> None:
    """Runs the stages and appends the outcome to the results, a failure too.

    Raises:
        StageFailed: a command failed.
        TableError: the folder holds a run with other flags.
        OSError, ValueError: the results cannot be written; nothing has run.
    """
    command = recorded_command(request, run, seed)
    check_begun(folder, command, found)
    (folder / "cmd.sh").write_text(f"# {command}\n{script(found)}", encoding="utf-8")
    if not {"training.json", "env.json"} <= {path.name for path in folder.iterdir()}:
        processes = 1 if run.table.kind == "count" else request.processes
        collect.write_environment(folder, processes)  # of the training, also if the run goes on to its score elsewhere
    home = request.out if request.scale == "smoke" else RECIPES
    results = Path(request.results or home / run.table.folder.name / "results.csv")
    results_csv.check_writable(results)  # now, not after the training
    record = {"table": run.table.name, "row": run.name, "arch": run.row.arch, "seed": seed}
    record |= {"scale": request.recorded_scale(run), "cmd": command}
    try:
        run_stages(found, running.Run(run.name, seed, folder, ()), request.out)
    except StageFailed as error:
        if error.stage != "preparation" and error.status not in NO_RESULT:
            own = [column.metric for column in run.table.columns.values() if not column.table]
            collect.failure(folder, results, record, own)
        raise
    collect.success(folder, results, record)
    print((folder / "scores.json").read_text(), end="")
    print(f"== results are in {folder}", file=sys.stderr)


def run_stages(found: Stages, run: running.Run, out: Path) -> None:
    """Runs the stages that have not finished before, in order.

    Args:
        out: folder of all runs; only one of them prepares data at a time.

    Raises:
        StageFailed: a command failed.
    """

    def finish(steps: list[Step]) -> None:
        (values,) = Runner(show=show).carry_out([replace(run, steps=tuple(steps))])
        if "failure" in values:
            raise StageFailed(values["step"], values["status"])

    log = {stage: "train.log" for stage in found if stage.startswith("training")}
    steps = [Step(stage, tuple(commands), log.get(stage)) for stage, commands in found.items()]
    if "preparation" in found:
        first, *steps = steps
        with locked(out / ".preparation.lock"):
            finish([replace(first, repeated=True)])  # the scripts of recipes/data skip what they have done
    finish(steps)


def listed(table: Table) -> Iterator[str]:
    """One line per run: its name, architecture, the paper's name for it, the paper's numbers, and its flags."""
    for name, run in table.runs.items():
        numbers = ", ".join(f"{title} {value}" for title, value in run.row.paper.items())
        yield "\t".join([name, run.row.arch, run.row.label or "not in the paper", numbers, " ".join(run.flags.split())])


def prepare_environment(threads: int) -> None:
    """Sets the environment of all commands."""
    paths = [str(RECIPES.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(paths)}
    # fairseq and timm use interfaces that newer libraries deprecate; the warnings would fill pages of every log.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning,ignore::UserWarning")


def check_machine(request: Request, table: Table) -> None:
    """Rejects a training that this machine cannot run.

    Raises:
        TableError: names the missing program, or GPUS and how many there are; without any, processes run on the CPU.
    """
    if table.kind != "images" and not shutil.which("fairseq-train"):
        raise TableError(
            "fairseq-train: not found; install the package with its extras and put its environment on PATH"
        )
    if request.gpus > 1:
        from torch.cuda import device_count  # here, as importing torch takes a second

        if 0 < device_count() < request.gpus:
            raise TableError(f"GPUS={request.gpus}: must be at most {device_count()}, the GPUs of this machine")


def carry_out(recipe: str, words: list[str]) -> None:
    """What the command line asks for.

    Raises:
        TableError: the table, the row or a setting is invalid.
        StageFailed: a command failed.
    """
    path = Path(recipe).absolute()
    tables = read(path.parent).tables
    if path.stem not in tables:
        raise TableError(f"{path.parent.name}/tables.toml: no table {path.stem!r}")
    table = tables[path.stem]
    if not words:
        raise TableError(f"usage: {recipe} ROW|all [flags], list or folder ROW; list shows the rows")
    name, *flags = words
    if name == "list":
        if flags:
            raise TableError(f"list {' '.join(flags)}: list takes no row and no flags")
        print(*listed(table), sep="\n")
        return
    row = flags.pop(0) if name == "folder" and flags else name
    request = read_request(os.environ, flags)
    runs = list(table.runs.values()) if row == "all" else [table.find(row)]
    for run in runs:
        check_unfinished(request, run, request.seeds)
    if name == "folder":
        print(run_folder(request, runs[0], request.seeds[0]))
    else:
        run_rows(request, table, runs)


def run_rows(request: Request, table: Table, runs: list[Run]) -> None:
    """Runs rows with every seed, after everything about them that can be checked.

    Raises:
        TableError: the machine lacks something, or a setting is invalid.
        StageFailed: a command failed.
    """
    if request.dry_run == "0" and table.kind != "count":
        check_machine(request, table)
    prepare_environment(request.threads)
    checked = request.dry_run == "0" and (request.flags or request.scale == "paper")
    for run in runs if checked else []:
        found = stages(request, run, request.seeds[0])
        training = parse_training(found)
        if training:
            later.check(training, found, run.settings(request.scale, request.settings).keys.get("pairs"))
    for seed in request.seeds:
        for run in runs:
            run_row(request, run, seed)


def main(arguments: list[str]) -> int:
    """Returns the status of the program: 0, 1 for invalid settings, or that of the command that failed."""
    try:
        if {"-h", "--help"} & {*arguments}:
            print(__doc__)
        else:
            carry_out(arguments[0], arguments[1:])
    except StageFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # the reader of the output has ended, as in `list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what the interpreter writes at exit
        return 128 + signal.SIGPIPE
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    ended_by_signals()
    sys.exit(main(sys.argv[1:]))
