"""Write the tables of recipes/README.md: every row of every table that has a script, and what has been run of it.

    python overview.py [--check | --smoke OUT]

Rows come from the scripts (`SCRIPT list`), our parameters from the models themselves, built without memory for their
weights, results from the results.csv of each paper: of the largest scale that has one, the first metric. Runs of scale
smoke show that a row works and have no result; smoke.csv lists them.
"""

import argparse
import csv
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
from results import read

RECIPES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(RECIPES.parent))
PAPERS = {
    "ringformer": "RingFormer",
    "sret": "SReT",
    "kausik": "Kausik",
    "takase": "Takase & Kiyono",
    "ilr": "Intra-Layer Recurrence",
}
# Where a table has a folder of its own.
APART = {"takase": ["librispeech"]}
TITLES = ("table", "row", "script", "registered name", "parameters", "paper's", "state", "result", "paper's")
BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"
SCALES = ("paper", "long", "small")


class Row(NamedTuple):
    """A line of `SCRIPT list`."""

    table: str
    row: str
    arch: str
    parameters: str
    value: str
    flags: list[str]


def scripts(paper: str) -> list[Path]:
    """The scripts of a paper's tables, in their order."""
    found = [path for folder in (paper, *APART.get(paper, ())) for path in sorted((RECIPES / folder).glob("*.sh"))]
    return [path for path in found if path.read_text(encoding="utf-8").endswith('\ntable "$@"\n')]


def rows(script: Path) -> list[Row]:
    """What a script lists."""
    output = subprocess.run(["bash", script, "list"], capture_output=True, text=True, check=True).stdout
    lines = (line.split("\t") for line in output.splitlines())
    return [Row(*line[:5], [re.sub(r"\\(.)", r"\1", flag) for flag in line[5].split()]) for line in lines]


# Parameters


def model_options(arch: str, flags: list[str]) -> dict:
    """Options of a model as values."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return vars(parser.parse_known_args(flags)[0])


def translation_parameters(row: Row) -> int:
    """RingFormer and SReT: of the stacks. Takase: all, with 32,768 joint symbols in one matrix or 32,000 a language."""
    from fairseq_plugin.modules.build import build_architecture, numbered_dictionary
    from recurrence.count import stored

    options = model_options(row.arch, row.flags)
    apart = "share_decoder_input_output_embed" in options
    symbols = numbered_dictionary(32_000 if apart else 32_768)
    if row.table.startswith("Takase"):
        return stored(build_architecture(row.arch, symbols, symbols, **{"share_all_embeddings": not apart, **options}))
    model = build_architecture(row.arch, symbols, symbols, **options)
    return stored(model.encoder.loop) + stored(model.decoder.loop)


def speech_parameters(row: Row) -> int:
    """All, with the 10,000 symbols of the host's recipe for LibriSpeech, in one matrix."""
    from fairseq_plugin.catalogue import FILTERBANK, LIBRISPEECH
    from fairseq_plugin.modules.build import build_architecture, numbered_dictionary
    from recurrence.count import stored

    options = model_options(row.arch, row.flags) | FILTERBANK | {"share_decoder_input_output_embed": True}
    return stored(build_architecture(row.arch, None, numbered_dictionary(LIBRISPEECH), **options))


def language_parameters(row: Row) -> int:
    """All, with the symbols of the paper's corpus."""
    from fairseq_plugin.catalogue import SYMBOLS, WIKITEXT_103
    from fairseq_plugin.modules.build import build_language_model, numbered_dictionary
    from recurrence.count import stored

    symbols = numbered_dictionary(SYMBOLS.get(row.arch, WIKITEXT_103))
    positions = 256 if row.arch == "recurrent_lm" else 1024
    return stored(build_language_model(row.arch, symbols, positions, **model_options(row.arch, row.flags)))


def image_parameters(row: Row) -> int:
    """All, with the classes that the row names."""
    import timm
    from timm.utils import ParseKwargs

    import timm_plugin  # noqa: F401  (registers the models)
    from recurrence.count import stored

    parser = argparse.ArgumentParser()
    parser.add_argument("values", nargs="*", action=ParseKwargs)
    values = [flag for flag in row.flags if re.match(r"\w+=", flag)]
    return stored(timm.create_model(row.arch, **vars(parser.parse_args(values))["values"]))


def parameters(row: Row) -> int:
    """Trainable parameters of a row's model, each stored tensor once."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    from fairseq_plugin.models.speech import SpeechToText
    from fairseq_plugin.modules.language_model import RecurrentLanguageModel

    counted: Callable[[Row], int] = image_parameters
    if row.arch in ARCH_MODEL_REGISTRY:
        counted = translation_parameters
        if issubclass(ARCH_MODEL_REGISTRY[row.arch], RecurrentLanguageModel):
            counted = language_parameters
        elif issubclass(ARCH_MODEL_REGISTRY[row.arch], SpeechToText):
            counted = speech_parameters
    with torch.device("meta"):
        return counted(row)


# Results


def result(row: Row, recorded: list[dict]) -> tuple[str, str] | None:
    """The largest scale at which a row has been run, and its first metric's mean; None where it has not."""
    runs = [run for run in recorded if run["table"] == row.table and run["row"] == row.row]
    for scale in SCALES:
        of_scale = [run for run in runs if run["scale"].split("-")[0] == scale]
        if of_scale:
            metric = of_scale[0]["metric"]
            values = [float(run["value"]) for run in of_scale if run["metric"] == metric and run["value"]]
            text = f"{mean(values):.{4 if 'nats' in metric else 2}f} {metric}" if values else "failed"
            return of_scale[0]["scale"], text
    return None


def smoked() -> set[tuple[str, str]]:
    """Table and row of what has been run at scale smoke."""
    with (RECIPES / "smoke.csv").open(encoding="utf-8", newline="") as file:
        return {(line["table"], line["row"]) for line in csv.DictReader(file)}


def runs(paper: str, folder: Path) -> list[dict]:
    """All runs of a paper's tables that are recorded under a folder, recipes/ or OUT."""
    results = [folder / name / "results.csv" for name in (paper, *APART.get(paper, ()))]
    return [run for path in results if path.exists() for run in read(path)]


def add_smoke(out: Path) -> None:
    """Adds the runs of scale smoke that succeeded, from the results that they left under OUT, to smoke.csv."""
    seen = smoked()
    with (RECIPES / "smoke.csv").open("a", encoding="utf-8", newline="") as file:
        for paper in PAPERS:
            for run in runs(paper, out):
                key = run["table"], run["row"]
                if run["scale"].split("-")[0] == "smoke" and run["value"] and key not in seen:
                    csv.writer(file, lineterminator="\n").writerow(key)
                    seen.add(key)


def line(script: Path, row: Row, recorded: list[dict], smoke: set[tuple[str, str]]) -> str:
    """One row of the Markdown table."""
    found = result(row, recorded)
    state = found[0] if found else "smoke" if (row.table, row.row) in smoke else "not run"
    cells = [row.table, f"`{row.row}`", f"`{script.relative_to(RECIPES)}`", f"`{row.arch}`", f"{parameters(row):,}"]
    cells += [row.parameters, state, found[1] if found else "", row.value]
    return "| " + " | ".join("" if cell == "-" else cell for cell in cells) + " |"


def overview() -> str:
    """The tables of all papers."""
    lines, smoke = [], smoked()
    for paper, title in PAPERS.items():
        recorded = runs(paper, RECIPES)
        lines += [f"### {title}", "", "| " + " | ".join(TITLES) + " |", "|---" * len(TITLES) + "|"]
        lines += [line(script, row, recorded, smoke) for script in scripts(paper) for row in rows(script)]
        lines += [""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the tables are not up to date")
    parser.add_argument("--smoke", type=Path, metavar="OUT", help="first add the runs of scale smoke under this folder")
    arguments = parser.parse_args()
    if arguments.smoke:
        add_smoke(arguments.smoke)
    target = RECIPES / "README.md"
    text = target.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    fresh = f"{before}{BEGIN}\n{overview()}{END}{rest.split(END)[1]}"
    if not arguments.check:
        target.write_text(fresh, encoding="utf-8")
    elif fresh != text:
        print(f"{target}: not up to date; run python recipes/records/overview.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
