"""The shell commands of a run, stage by stage, as commands/KIND.sh prints them."""

import os
import re
import shlex
import subprocess
from argparse import Namespace
from pathlib import Path

from request import Request, accumulation
from rows import RECIPES, Run, Settings, TableError

TRAINING = re.compile(r"\b(fairseq-train|fairseq_cli\.train|train_image\.py) (.*)")
# Settings that the shell reads as an array, one word a line.
ARRAYS = ("search", "average", "evaluate", "decode")


def run_folder(request: Request, run: Run, seed: int) -> Path:
    """The folder of a run."""
    table = run.table
    return request.out / table.folder.name / table.key / request.recorded_scale(run) / run.name / f"s{seed}"


def shell_value(key: str, value: object) -> str:
    """A setting of tables.toml as the text of a shell variable."""
    if key in ARRAYS:
        return "\n".join(shlex.split(value))
    if isinstance(value, dict):
        return "\n".join(f"{name} {entry}" for name, entry in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def required_rows(run: Run, settings: Settings) -> list[str]:
    """The other rows of the table that must run first, because a flag or a setting names their folder as {ROW}."""
    words = " ".join([*settings.kwargs, *settings.flags, *map(str, settings.keys.values())])
    return [name for name in run.table.runs if "{" + name + "}" in words]


def smaller_model(arch: str, divisor: int) -> list[str]:
    """The constructor's arguments of an image model for images of 64 pixels; a model of timm's own has none.

    The width is divided and rounded to a multiple of twice the number of heads (in a pyramid, of the heads of its first
    stage); isotropic models get 64 patches.
    """
    import timm

    from timm_plugin import MODELS

    if arch not in MODELS:
        return []
    config = timm.create_model(arch, device="meta").config
    step = 2 * (config.num_heads if isinstance(config.num_heads, int) else config.num_heads[0])
    width = (config.embed_dim + divisor * step // 2) // (divisor * step) * step
    return [f"embed_dim={width}", *(["patch_size=8"] if hasattr(config, "patch_size") else [])]


def shell_variables(request: Request, run: Run, settings: Settings, seed: int) -> dict[str, str]:
    """The variables of commands/KIND.sh: the row's settings with names in capitals, and what the request adds."""
    keys = {key: shell_value(key, value) for key, value in settings.keys.items()}
    if settings.keys.get("lengths"):
        keys["lengths"] = " ".join(str(int(length * settings.keys["text"])) for length in settings.keys["lengths"])
    found = {key.upper(): value for key, value in keys.items()}
    found |= accumulation(request, run, settings.keys)
    found |= {"ROOT": RECIPES.parent, "OUT": request.out, "RUN": run_folder(request, run, seed), "SEED": seed}
    found |= {"SCALE": request.scale, "ARCH": run.row.arch, "DATA_ROOT": request.data_root, "GPUS": request.gpus}
    found |= {"CIFAR10": request.cifar10, "KWARGS": "\n".join(settings.kwargs), "PATH": os.environ["PATH"]}
    if run.table.kind == "images" and request.scale != "paper" and "embed_dim=" not in " ".join(settings.kwargs):
        divisor = 8 if request.scale == "smoke" else settings.keys.get("divisor", 1)
        found["SIZE"] = "\n".join(smaller_model(run.row.arch, divisor))
    found["DRY_RUN"] = "1"  # the scripts print the commands
    found["PRECISION"] = request.precision or settings.keys.get("precision", "bf16")
    return {name: str(value) for name, value in found.items()}


def stages(request: Request, run: Run, seed: int) -> dict[str, list[str]]:
    """The commands of a run by stage.

    Raises:
        TableError: commands/KIND.sh rejects a setting.
    """
    settings = run.settings(request.scale, request.settings)
    required = {name: run.table.runs[name] for name in required_rows(run, settings)}
    plain = request.model_copy(update={"flags": []})  # as the required rows are run
    folders = {"{" + name + "}": str(run_folder(plain, other, seed)) for name, other in required.items()}

    def with_folders(text: str) -> str:
        for name, folder in folders.items():
            text = text.replace(name, folder)
        return text

    command = ["bash", str(RECIPES / "commands" / f"{run.table.kind}.sh")]
    command += [*map(with_folders, settings.flags), *request.flags]
    variables = shell_variables(request, run, settings, seed)
    environment = {name: with_folders(value) for name, value in variables.items()}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True)
    if printed.returncode:
        raise TableError(printed.stderr.strip().removeprefix("error: "))
    found: dict[str, list[str]] = {}
    for line in printed.stdout.splitlines():
        if line.startswith("# "):
            commands = found[line[2:]] = []
        else:
            commands.append(line)
    return found


def parse_training(found: dict[str, list[str]]) -> Namespace | None:
    """Lets the trainer's own parser read its flags, before anything starts; it exits where they are wrong.

    Returns:
        fairseq's options; None if it does not train.
    """
    training = None
    for trainer, words in TRAINING.findall("\n".join(found.get("training", []))):
        if trainer.endswith(".py"):
            from timm_plugin.training.options import parser

            command_line = parser("")
            command_line.allow_abbrev = False  # FIXED and recorded_scale know whole names
            command_line.parse_args(shlex.split(words))
        else:
            from fairseq import options

            command_line = options.get_training_parser()
            command_line.usage = trainer
            training = options.parse_args_and_arch(command_line, shlex.split(words))
    return training


def script(found: dict[str, list[str]]) -> str:
    """The stages as one shell script."""
    return "".join(f"# {stage}\n" + "".join(f"{line}\n" for line in lines) for stage, lines in found.items())


def recorded_command(request: Request, run: Run, seed: int) -> str:
    """The recipe's command as results.csv records it."""
    words = [f"SCALE={request.scale}", f"SEED={seed}"]
    if request.settings != "paper":
        words.append(f"SETTINGS={request.settings}")
    if request.precision:
        words.append(f"PRECISION={request.precision}")
    return " ".join([*words, run.table.script, shlex.join([run.name, *request.flags])])
