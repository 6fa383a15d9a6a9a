"""Runs fairseq's real commands in their own processes and reads their logs.

The helpers use one small translation model (``ARCH``, ``MODEL``); further flags come last and override it.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN, REPAIRS = REPOSITORY / "fairseq_plugin", REPOSITORY / "fairseq_repairs"
SCRIPTS = Path(sys.executable).parent
PROGRAMS = ("eval-lm", "generate", "interactive", "preprocess", "train", "validate", "hydra-train")  # of fairseq
STAND_INS = ("python", "torchrun", *(f"fairseq-{name}" for name in PROGRAMS))
# For each of fairseq's commands. A data worker, fairseq's default, takes as long to start as a small model to train.
HOST = ("--user-dir", PLUGIN, "--cpu", "--num-workers", "0")
WORKER = ("--num-workers", "1")
# Variables that launchers set, and the one that fairseq sets in a process that has used data workers.
NOT_INHERITED = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHONWARNINGS")
TIMEOUT_SECONDS = 600

ARCH = "ringformer_tiny"
MODEL = [
    *("--encoder-layers", "2", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64"),
    *("--decoder-layers", "2", "--decoder-embed-dim", "32", "--decoder-ffn-embed-dim", "64"),
    *("--encoder-attention-heads", "2", "--decoder-attention-heads", "2"),
]
OPTIMISER = ["--optimizer", "adam", "--lr", "0.001", "--criterion", "label_smoothed_cross_entropy"]
WITHOUT_DROPOUT = ("--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0")


def is_official() -> bool:
    """Whether fairseq is the official release (0.12.2), not fairseq-fixed."""
    try:
        return version("fairseq").startswith("0.12.2")
    except PackageNotFoundError:
        return False


# fairseq 0.12.2's encoder layer has parameters that never get a gradient, which the default backend rejects.
BACKEND = ("--ddp-backend", "legacy_ddp") if is_official() else ()


def stand_ins() -> Path:
    """A folder with `python`, `torchrun` and fairseq's commands, which run in forks of one warm interpreter.

    All tests of this pytest process share it.
    """
    from tests.support import warm

    return warm.stand_ins(*warm.UPSTREAM)


def search_path() -> str:
    """A PATH with the stand-ins first, then the programs of the running Python, then all others."""
    return os.pathsep.join([str(stand_ins()), str(SCRIPTS), os.environ["PATH"]])


def _program(name: str, fresh: bool = False) -> str:
    """The file of a program: a stand-in, or a program of the running Python, or one on the PATH."""
    name = "python" if name == sys.executable else name
    if name in STAND_INS and not fresh:
        return str(stand_ins() / name)
    return str(SCRIPTS / name) if (SCRIPTS / name).exists() else name


def environment() -> dict[str, str]:
    """This process's environment, with one thread."""
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return inherited | {"OMP_NUM_THREADS": "1"}


def run(*command, stdin: str = "", fails: bool = False, env: dict[str, str] | None = None, fresh: bool = False) -> str:
    """Runs a command and returns what it wrote to stdout and stderr.

    Python and fairseq's commands run in forks of an interpreter that has imported fairseq and timm.

    Args:
        command: the program and its arguments.
        stdin: text for its standard input.
        fails: whether the command must fail; otherwise it must succeed.
        env: additional environment variables.
        fresh: start a new interpreter instead of a fork.
    """
    started = {"PYTHON_EXEC": _program("python")} if command[0] == "torchrun" else {}  # that torchrun starts
    command = [_program(str(command[0]), fresh), *map(str, command[1:])]
    settings = {"env": environment() | started | (env or {}), "timeout": TIMEOUT_SECONDS}
    streams = {"input": stdin, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, **streams, **settings)
    assert (done.returncode != 0) == fails, f"exit {done.returncode}: {' '.join(command)}\n{done.stdout[-6000:]}"
    return done.stdout


def python(*arguments, **options) -> str:
    """Runs Python with the repository on its path."""
    return run(sys.executable, *arguments, **{**options, "env": {"PYTHONPATH": str(REPOSITORY)}})


def preprocess(*flags, **options) -> str:
    """Runs fairseq-preprocess with the plugin."""
    return run("fairseq-preprocess", "--user-dir", PLUGIN, *flags, **options)


def train_command(data: Path, save_dir: Path, *flags) -> list:
    """The arguments of fairseq-train for the small model, with one log line per update."""
    return [
        *(data, *HOST, "--task", "translation", "--arch", ARCH, *MODEL, *OPTIMISER),
        *("--save-dir", save_dir, "--log-format", "json", "--log-interval", "1", "--seed", "7", *flags),
    ]


def train(data: Path, save_dir: Path, *flags, **options) -> str:
    """Runs fairseq-train."""
    return run("fairseq-train", *train_command(data, save_dir, *flags), **options)


def launch(processes: int, *program, **options) -> str:
    """Runs a program in several processes started by torchrun."""
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    return run("torchrun", "--nproc_per_node", processes, *meeting, *program, **options)


def torchrun(processes: int, *arguments, **options) -> str:
    """Runs fairseq-train in several processes."""
    return launch(processes, "-m", "fairseq_cli.train", *arguments, **options)


def two_nodes(*program, **options) -> list[str]:
    """Runs a program under torchrun on two nodes, both on this machine, and returns the output of each.

    Args:
        program: the program that torchrun starts, in one process per node.
        options: as of `run`, for both nodes.
    """
    from fairseq_repairs.parallel import free_port

    meeting = ("--master_addr", "127.0.0.1", "--master_port", free_port())

    def node(rank: int) -> str:
        sizes = ("--nnodes", "2", "--nproc_per_node", "1", "--node_rank", rank)
        return run("torchrun", *sizes, *meeting, *program, **options)

    stand_ins()  # before there are threads
    with ThreadPoolExecutor() as pool:
        return list(pool.map(node, range(2)))


def generate(data: Path, checkpoint: Path, *flags, **options) -> str:
    """Runs fairseq-generate on the test set."""
    return run("fairseq-generate", data, *HOST, "--path", checkpoint, *flags, **options)


def interactive(data: Path, checkpoint: Path, lines: list, *flags) -> str:
    """Runs fairseq-interactive on these lines."""
    typed = "".join(f"{line}\n" for line in lines)
    return run("fairseq-interactive", data, *HOST, "--path", checkpoint, *flags, stdin=typed)


def logged(output: str, stage: str = "train_inner") -> list[dict[str, float]]:
    """The numbers in each log line of a stage ("train_inner", "train", "valid"), in order."""
    lines = re.findall(rf"\| {stage} \| (\{{.*\}})", output)
    return [{name: float(value) for name, value in json.loads(line).items()} for line in lines]


def hypotheses(output: str) -> dict[int, list[str]]:
    """The translations of each sentence, best first, by the sentence's number in the corpus."""
    found: dict[int, list[str]] = {}
    for number, text in re.findall(r"^H-(\d+)\t\S+\t?(.*)$", output, flags=re.MULTILINE):
        found.setdefault(int(number), []).append(text)
    return found
