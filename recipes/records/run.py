"""Carries out rows of a paper's table: the program behind recipes/PAPER/TABLE.sh.

    recipes/PAPER/TABLE.sh ROW [flags]   one row; flags go on to the trainer
    recipes/PAPER/TABLE.sh all [flags]   every row, in the table's order
    recipes/PAPER/TABLE.sh list          what the rows are
    recipes/PAPER/TABLE.sh folder ROW    where the row's run lies, or will

Settings, all from the environment:
  SCALE      smoke (default), small, paper, or what else the table has
  SEED       random seed of the run (default 1); SEEDS="1 2 3" runs each
  SETTINGS   paper (default), release or code: whose settings of scale paper, where they differ
  OUT        where everything is written (default: out/ beside recipes/)
  RESULTS    the table that the run is appended to (default: results.csv of the paper; of scale smoke under OUT)
  DRY_RUN    1 prints the commands instead of running them
  PRECISION  bf16, fp16 or fp32 (default: the table's)
  PAIR       source and target language on Multi30k, two of cs, de, en and fr (default "de en")
  TESTS      its test sets, each decoded and recorded by itself (default test_2016_flickr; there are test_2017_flickr,
             test_2017_mscoco and test_2018_flickr)
  THREADS    processor threads (default: all)
  MICRO_BATCH                 what a process takes at once at scale paper; updates gather the table's batch from as many
  GPUS, NODES, NODE_RANK, MASTER_ADDR, MASTER_PORT    as of torchrun, at scale paper; the same command on every node

The commands are those that recipes/commands/KIND.sh prints. A run's folder keeps them (cmd.sh), the environment
(env.json), the training's log (train.log) and the outcome (metrics.json). A finished run is skipped, an interrupted one
goes on where it stopped.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rows import BELOW_PAPER, KINDS, RECIPES, SWITCHES, Run, Settings, Table, TableError, read

PRECISIONS = ("bf16", "fp16", "fp32")
# Of Multi30k, on which translation models are trained below scale paper.
LANGUAGES, PAIR = ("cs", "de", "en", "fr"), ("de", "en")
TESTS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")
# fairseq's log goes to a file; the terminal gets these of its lines, and all that are not its own.
FAIRSEQ_LINE = re.compile(r"^[-0-9: ,]+\| (INFO|WARNING) \| ")
SHOWN_LINE = re.compile(r" \| (train_inner|train|valid) \||num\. shared|done training")
INTERRUPTED = (2, 130, 143)  # a usage error or an interruption is no result


def whole(environment: Mapping[str, str], name: str, default: int | None, least: int = 1, most: int = 1 << 30):
    """A whole number of the environment.

    Raises:
        TableError: it is something else.
    """
    text = environment.get(name, "")
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        limit = f" of at least {least}" if most == 1 << 30 else f" from {least} to {most}"
        raise TableError(f"{name}={text}: must be a whole number{limit}")
    return int(text)


def one_of(environment: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    """A name of the environment.

    Raises:
        TableError: it is another one.
    """
    found = environment.get(name) or default
    if found not in allowed:
        raise TableError(f"{name}={found}: must be {', '.join(allowed[:-1])} or {allowed[-1]}")
    return found


def corpus_of(environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The language pair and the test sets of Multi30k.

    Raises:
        TableError: they are others.
    """
    pair = tuple((environment.get("PAIR") or " ".join(PAIR)).split())
    if len(pair) != 2 or len({*pair} & {*LANGUAGES}) != 2:
        raise TableError(f"PAIR={' '.join(pair)}: must be two of {', '.join(LANGUAGES)}")
    tests = tuple((environment.get("TESTS") or TESTS[0]).split())
    for test in tests:
        one_of({"TESTS": test}, "TESTS", TESTS, TESTS[0])
    return {"pair": pair, "tests": tests}


@dataclass(frozen=True)
class Call:
    """What was asked for: the settings of the environment, checked."""

    scale: str
    seeds: list[int]
    switch: str
    out: Path
    results: str
    dry: bool
    precision: str
    threads: int
    micro_batch: int | None
    gpus: int
    nodes: int
    node_rank: int
    master: tuple[str, int]
    data_root: str
    pair: tuple[str, ...]
    tests: tuple[str, ...]
    flags: list[str]

    @property
    def processes(self) -> int:
        return self.gpus * self.nodes

    def label(self, kind: str) -> str:
        """The scale as runs are recorded under it: other settings and a part of the images are told."""
        parts = [self.scale] + [self.switch] * (self.switch != "paper")
        if kind == "images" and self.data_root and self.scale not in ("smoke", "paper"):
            parts.append("5000")
        return "-".join([*parts, *(self.pair if self.pair != PAIR else ())])


def call_of(environment: Mapping[str, str], flags: list[str]) -> Call:
    """Reads the environment.

    Raises:
        TableError: names the setting, its value and the rule.
    """
    seeds = (environment.get("SEEDS") or environment.get("SEED") or "1").split()
    nodes = whole(environment, "NODES", 1)
    call = Call(
        scale=one_of(environment, "SCALE", (*BELOW_PAPER, "paper"), "smoke"),
        seeds=[whole({"SEED": seed}, "SEED", 1, least=0, most=32767) for seed in seeds],
        switch=one_of(environment, "SETTINGS", ("paper", *SWITCHES), "paper"),
        out=Path(environment.get("OUT") or RECIPES.parent / "out").absolute(),
        results=environment.get("RESULTS", ""),
        dry=one_of(environment, "DRY_RUN", ("0", "1"), "0") == "1",
        precision=one_of(environment, "PRECISION", ("", *PRECISIONS), ""),
        threads=whole(environment, "THREADS", None)
        or whole(environment, "OMP_NUM_THREADS", None)
        or len(os.sched_getaffinity(0)),
        micro_batch=whole(environment, "MICRO_BATCH", None),
        gpus=whole(environment, "GPUS", 1),
        nodes=nodes,
        node_rank=whole(environment, "NODE_RANK", 0, least=0, most=nodes - 1),
        master=(environment.get("MASTER_ADDR") or "localhost", whole(environment, "MASTER_PORT", 29500, most=65535)),
        data_root=environment.get("DATA_ROOT", ""),
        **corpus_of(environment),
        flags=flags,
    )
    if call.scale != "paper" and call.processes > 1:
        raise TableError(
            f"GPUS={call.gpus}, NODES={call.nodes}: must be 1 at scale {call.scale}, which is one process's"
        )
    if call.scale != "paper" and call.switch != "paper":
        raise TableError(f"SETTINGS={call.switch}: differs at scale paper alone")
    return call


def check(call: Call, run: Run) -> None:
    """Refuses a scale or settings that the row does not have.

    Raises:
        TableError: names them, and what there is.
    """
    for name, value, allowed in (("SCALE", call.scale, run.scales), ("SETTINGS", call.switch, run.switches)):
        if value not in allowed:
            raise TableError(f"{name}={value}: must be one of {', '.join(allowed)} for {run.table.name}, {run.name}")
    if (call.pair, call.tests) != (PAIR, TESTS[:1]) and (call.scale == "paper" or run.table.kind != "translation"):
        given = f"PAIR={' '.join(call.pair)}, TESTS={' '.join(call.tests)}"
        raise TableError(f"{given}: are for translation below scale paper, on Multi30k")
    settings = run.settings(call.scale, call.switch)
    gathered(call, run, settings.keys)


def gathered(call: Call, run: Run, keys: dict) -> dict[str, int]:
    """How many a process takes at once, and how often, for the table's batch; nothing where the scale has its own.

    Raises:
        TableError: processes times what each takes does not divide it.
    """
    unit = next((name for name in ("batch", "tokens") if name in keys), "")
    if not unit or run.table.kind == "count" or (KINDS[run.table.kind].budget and call.scale != "paper"):
        return {}
    total, micro = keys[unit], call.micro_batch or keys.get("micro_batch", 128)
    if call.processes * micro > total:
        micro = total // call.processes
    if not micro or total % (call.processes * micro):
        found = f"GPUS={call.gpus}, NODES={call.nodes}, MICRO_BATCH={micro or call.micro_batch or 1}"
        what = {"batch": "batch", "tokens": "tokens"}[unit]
        raise TableError(f"{found}: their product must divide the {what} of an update, {total}")
    return {"MICRO_BATCH": micro, "ACCUMULATE": total // (call.processes * micro)}


def folder_of(call: Call, table: Table, name: str, seed: int) -> Path:
    """Where a run lies."""
    return call.out / table.paper.folder.name / table.key / call.label(table.kind) / name / f"s{seed}"


def text(key: str, value: object) -> str:
    """A setting as the shell reads it: a table as lines, flags as one word a line."""
    if key in ("search", "average", "evaluate", "share", "decode"):
        return "\n".join(shlex.split(value))
    if isinstance(value, dict):
        return "\n".join(f"{name} {one}" for name, one in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def in_place(words: list[str], folders: dict[str, Path]) -> list[str]:
    """{ROW} replaced by the folder of that row's run."""
    for name, folder in folders.items():
        words = [word.replace("{" + name + "}", str(folder)) for word in words]
    return words


def needed(run: Run, settings: Settings) -> list[str]:
    """The other runs of the table whose folders a run's flags and settings name."""
    words = " ".join([*settings.kwargs, *settings.flags, *(str(value) for value in settings.keys.values())])
    return [name for name in run.table.runs if "{" + name + "}" in words]


def stages(call: Call, run: Run, seed: int) -> dict[str, list[str]]:
    """The commands that commands/KIND.sh prints, by stage."""
    settings = run.settings(call.scale, call.switch)
    folders = {name: folder_of(call, run.table, name, seed) for name in needed(run, settings)}
    keys = {key: in_place([text(key, value)], folders)[0] for key, value in settings.keys.items()}
    if settings.keys.get("lengths"):
        keys["lengths"] = " ".join(str(int(length * settings.keys["text"])) for length in settings.keys["lengths"])
    if run.table.kind == "translation" and call.scale != "paper":
        keys |= {"languages": " ".join(call.pair), "tests": call.tests[0]}
    variables = {
        **{key.upper(): value for key, value in keys.items()},
        **{key: str(value) for key, value in gathered(call, run, settings.keys).items()},
        **{"ROOT": RECIPES.parent, "OUT": call.out, "RUN": folder_of(call, run.table, run.name, seed)},
        **{"SCALE": call.scale, "SEED": seed, "ARCH": run.row.arch, "DATA_ROOT": call.data_root},
        **{"GPUS": call.gpus, "NODES": call.nodes, "NODE_RANK": call.node_rank},
        **{"MASTER_ADDR": call.master[0], "MASTER_PORT": call.master[1]},
        "PRECISION": call.precision or settings.keys.get("precision", "bf16"),
        "KWARGS": "\n".join(in_place(settings.kwargs, folders)),
        "PATH": os.environ["PATH"],
    }
    command = ["bash", str(RECIPES / "commands" / f"{run.table.kind}.sh"), *in_place(settings.flags, folders)]
    environment = {key: str(value) for key, value in variables.items()}
    printed = subprocess.run([*command, *call.flags], env=environment, capture_output=True, text=True)
    if printed.returncode:
        raise TableError(printed.stderr.strip().removeprefix("error: "))
    found: dict[str, list[str]] = {}
    for line in printed.stdout.splitlines():
        if line.startswith("# "):
            found[line[2:]] = []
        else:
            found[next(reversed(found))].append(line)
    return found


def show(found: dict[str, list[str]]) -> str:
    """Commands as a script."""
    return "".join(f"# {stage}\n" + "".join(f"{line}\n" for line in lines) for stage, lines in found.items())


def execute(command: str, log: Path | None) -> int:
    """Runs a command, of a training with its log appended to a file; returns its status."""
    settings = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") if log else {}
    # A session of its own: whoever ends this program ends all processes of a training, torchrun's too.
    process = subprocess.Popen(["bash", "-c", command], start_new_session=True, **settings)
    try:
        if log:
            with log.open("a", encoding="utf-8") as file:
                for line in process.stdout:
                    file.write(line)
                    file.flush()
                    if not FAIRSEQ_LINE.match(line) or SHOWN_LINE.search(line):
                        print(FAIRSEQ_LINE.sub("", line), end="", flush=True)
        return process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


class Failed(Exception):
    """A command ended with this status."""

    def __init__(self, stage: str, status: int):
        self.stage, self.status = stage, 128 - status if status < 0 else status


def carry_out(found: dict[str, list[str]], folder: Path, first: bool) -> None:
    """The stages, each once: a marker in the folder says that it has finished. Only the first node does them all.

    Raises:
        Failed: a command does.
    """
    for stage, lines in found.items():
        marker = folder / f".{stage}.done"
        if marker.exists():
            print(f"== {stage}: done before", file=sys.stderr)
            continue
        if not first and stage != "preparation" and not stage.startswith("training"):
            continue
        print(f"== {stage}", file=sys.stderr)
        for line in lines:
            status = execute(line, folder / "train.log" if stage.startswith("training") else None)
            if status:
                raise Failed(stage, status)
        if stage != "preparation":  # which itself skips what is done
            marker.touch()


def command_line(call: Call, run: Run, seed: int) -> str:
    """The command as it is recorded."""
    settings = {"SCALE": call.scale, "SEED": seed, "SETTINGS": call.switch, "PRECISION": call.precision}
    shown = [f"{name}={value}" for name, value in settings.items() if value not in ("", "paper") or name == "SCALE"]
    shown += [f"PAIR={shlex.quote(' '.join(call.pair))}"] * (call.pair != PAIR)
    shown += [f"TESTS={call.tests[0]}"] * (call.tests != TESTS[:1])
    script = f"recipes/{run.table.paper.folder.name}/{run.table.key}.sh"
    return " ".join([*shown, script, shlex.join([run.name, *call.flags])])


def once(call: Call, run: Run, seed: int) -> None:
    """One run: what it needs first, its stages, its record. Of several test sets each has a record of its own.

    Raises:
        Failed: a command does.
    """
    check(call, run)
    if len(call.tests) > 1:
        for test in call.tests:
            once(replace(call, tests=(test,)), run, seed)
        return
    for name in needed(run, run.settings(call.scale, call.switch)):
        once(replace(call, flags=[]), run.table.runs[name], seed)
    found, folder = stages(call, run, seed), folder_of(call, run.table, run.name, seed)
    if call.dry:
        print(show(found), end="")
        return
    folder.mkdir(parents=True, exist_ok=True)
    other = "" if call.tests == TESTS[:1] else f"-{call.tests[0]}"
    if (folder / f"metrics{other}.json").exists():
        print(f"== {folder}: finished before (remove the folder to run it again)", file=sys.stderr)
        return
    first = call.node_rank == 0
    if first:
        import collect
        import environment

        (folder / f"cmd{other}.sh").write_text(show(found), encoding="utf-8")
        (folder / "env.json").write_text(json.dumps(environment.environment(), indent=2) + "\n", encoding="utf-8")
        home = call.out if call.scale == "smoke" else RECIPES
        results = Path(call.results or home / run.table.paper.folder.name / "results.csv")
        scale = call.label(run.table.kind) + other
        record = {"table": run.table.name, "row": run.name, "arch": run.row.arch, "scale": scale}
        record |= {"seed": seed, "cmd": command_line(call, run, seed)}
    try:
        carry_out(found, folder, first)
    except Failed as error:
        if first and error.stage != "preparation" and error.status not in INTERRUPTED:
            collect.failure(folder, results, record, [column.metric for column in run.table.columns])
        raise
    if first:
        collect.success(folder, results, record, other)
        print((folder / f"scores{other}.json").read_text(), end="")
        print(f"== everything lies in {folder}", file=sys.stderr)


def listed(table: Table) -> Iterator[str]:
    """A line for each run: its name, architecture and flags, what the paper calls it, and what the paper has of it."""
    for name, run in table.runs.items():
        cells = ", ".join(f"{title} {value}" for title, value in run.row.paper.items())
        yield "\t".join([name, run.row.arch, run.row.label or "not in the paper", cells, run.row.flags])


ENDINGS = (signal.SIGTERM, signal.SIGHUP)


def terminated(number: int, _: object) -> None:
    """Ends the program; a second signal does not keep it from ending its training first."""
    for each in ENDINGS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main(arguments: list[str]) -> int:
    script, *wanted = arguments
    for number in ENDINGS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, terminated)
    try:
        path = Path(script).absolute()
        paper = read(path.parent)
        if path.stem not in paper.tables:
            raise TableError(f"{paper.file}: no table {path.stem!r}")
        table = paper.tables[path.stem]
        if not wanted:
            raise TableError(f"usage: {script} ROW|all|list [flags], where ROW is one of: {' '.join(table.runs)}")
        name, *flags = wanted
        if name == "list":
            print(*listed(table), sep="\n")
            return 0
        call = call_of(os.environ, flags)
        if name == "folder":
            run = table.run(flags[0] if flags else "")
            check(call, run)
            print(folder_of(call, table, run.name, call.seeds[0]))
            return 0
        runs = list(table.runs.values()) if name == "all" else [table.run(name)]
        for run in runs:
            check(call, run)
        if not call.dry and table.kind not in ("images", "count") and not shutil.which("fairseq-train"):
            raise TableError(
                "fairseq-train: not found; install the package with its extras and put its environment on PATH"
            )
        paths = [str(RECIPES.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ |= {"OMP_NUM_THREADS": str(call.threads), "PYTHONPATH": os.pathsep.join(paths)}
        # fairseq and timm call interfaces that newer libraries call outdated, in a page of warnings that no reader of
        # these logs can mend.
        os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning,ignore::UserWarning")
        for seed in call.seeds:
            for run in runs:
                once(call, run, seed)
    except TableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Failed as error:
        print(f"error: {error.stage}: failed with status {error.status}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
