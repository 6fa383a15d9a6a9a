"""The commands of a run, stage by stage; the kind of its table says which (see kinds)."""

import shlex
from argparse import Namespace
from pathlib import Path

from kinds.base import Job
from request import Request, accumulation
from rows import Run, Settings

from recurrence.comparison.runs import Command

Stages = dict[str, list[Command]]


def run_folder(request: Request, run: Run, seed: int) -> Path:
    """The folder of a run."""
    table = run.table
    return request.out / table.folder.name / table.key / request.recorded_scale(run) / run.name / f"s{seed}"


def required_rows(run: Run, settings: Settings) -> list[str]:
    """The other rows of the table that must run first, because a flag or a setting names their folder as {ROW}."""
    words = " ".join([*settings.kwargs, *settings.flags, *map(str, settings.keys.values())])
    return [name for name in run.table.runs if "{" + name + "}" in words]


def stages(request: Request, run: Run, seed: int) -> Stages:
    """The commands of a run by stage."""
    settings, plain = run.settings(request.scale, request.settings), request.model_copy(update={"flags": []})
    required = [(f"{{{name}}}", run.table.runs[name]) for name in required_rows(run, settings)]
    folders = {name: str(run_folder(plain, other, seed)) for name, other in required}

    def with_folders(word: str) -> str:
        for name, folder in folders.items():
            word = word.replace(name, folder)
        return word

    batch = {"micro_batch": 0, "accumulate": 0} | accumulation(request, run, settings.keys)
    job = Job(
        arch=run.row.arch,
        kwargs=settings.kwargs,
        flags=[*settings.flags, *request.flags],
        seed=seed,
        folder=run_folder(request, run, seed),
        cifar10=request.cifar10,
        **request.model_dump(include={"scale", "gpus", "precision", "out", "data_root"}),
        **batch,
    )
    kind, found = run.kind.model_validate(settings.keys, context={"scale": request.scale}), {}
    for stage, command in kind.stages(job):
        whole = Command(tuple(map(with_folders, command.words)), command.output)
        found.setdefault(stage, []).append(whole)
    return found


def parse_training(found: Stages) -> Namespace | None:
    """Lets the trainer's own parser read its flags, before anything starts; it exits where they are wrong.

    Returns:
        fairseq's options; None if it does not train.
    """
    training = None
    for words in (list(command.words) for name, stage in found.items() if name == "training" for command in stage):
        programs = [Path(word).name for word in words]
        if "train_image.py" in programs:
            from timm_plugin.training.options import parser

            command_line = parser("")
            command_line.allow_abbrev = False  # FIXED and recorded_scale know whole names
            command_line.parse_args(words[programs.index("train_image.py") + 1 :])
        elif trainer := {"fairseq-train", "fairseq_cli.train"} & set(programs):
            from fairseq import options

            (program,), command_line = trainer, options.get_training_parser()
            command_line.usage = program
            training = options.parse_args_and_arch(command_line, words[programs.index(program) + 1 :])
    return training


def script(found: Stages) -> str:
    """The stages as one shell script."""
    return "".join(f"# {stage}\n" + "".join(f"{command}\n" for command in found[stage]) for stage in found)


def recorded_command(request: Request, run: Run, seed: int) -> str:
    """The recipe's command as results.csv records it."""
    words = [f"SCALE={request.scale}", f"SEED={seed}"]
    if request.settings != "paper":
        words.append(f"SETTINGS={request.settings}")
    if request.precision:
        words.append(f"PRECISION={request.precision}")
    return " ".join([*words, run.table.script, shlex.join([run.name, *request.flags])])
