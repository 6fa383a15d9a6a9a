"""Rows that translate: prepare the data, train, average checkpoints, decode every test set, score.

Scales (a row keeps its depth at every scale):
  smoke  64 wide, 10 updates, on Multi30k if DATA_ROOT holds it, or else on words and phonemes; only shows that it works
  small  256 wide (`width`), 4,000 updates of about 900 tokens on Multi30k: under an hour of a core at 4 + 4 passes
  long   the same, for tables that train for fewer updates at scale small
  paper  the data and the settings of the table
Below scale paper, all rows have the same width and training budget.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt

from kinds.base import ROOT, Job, Kind, Stage, scoring, words
from recurrence.comparison.runs import Command

# Updates, those between two checkpoints, and of the warm-up.
BUDGETS = {"smoke": (10, 5, 2), "small": (4000, 200, 400), "long": (4000, 200, 400)}


@dataclass
class Data:
    """A data set: its preparation, binarized data, languages, test sets with their references, and vocabulary."""

    prepare: Stage
    binary: Path
    pair: list[str]
    references: dict[str, Path]
    pieces: Path | None = None
    subsets: dict[str, str] = field(default_factory=lambda: {"test": "test"})


class Translation(Kind):
    """Attributes:
    pairs: size of the training set at scale paper.
    search_of: flags of the search in addition, by test set.
    vocabulary: a file of the data set, which adds BLEU of its pieces.
    compounds: also score with split compounds, at scale paper.
    scored: "loss" scores a row by its last validation loss.
    wide: by how much a row is wider below scale paper.
    decode: the checkpoint of another row and flags of the search; nothing is trained.
    """

    at_paper = ("data", "languages", "tests", "micro_batch", "train", "search", "symbols", "pairs")

    data: str = ""
    languages: str = ""
    tests: dict[str, str] = {}
    symbols: PositiveInt | None = None
    pairs: PositiveInt | None = None
    set: str = ""  # of a data set that has several
    average: str = ""
    search: str = ""
    search_of: dict[str, str] = {}
    vocabulary: str = ""
    compounds: bool = False
    tokenize: str = "13a"
    scored: Literal["", "loss"] = ""
    width: PositiveInt = 256
    wide: PositiveInt = 1
    decode: str = ""

    def stages(self, job: Job) -> Iterator[Stage]:
        data = self.data_of(job)
        yield data.prepare
        pair = ["--source-lang", data.pair[0], "--target-lang", data.pair[1]]
        model, *search = words(self.decode) if self.decode else [job.folder / "average.pt"]
        search = [*self.search_at(job), *search, *(job.flags if self.decode else [])]
        if not self.decode:
            settings = [*self.settings_at(job), *job.flags]
            yield self.fairseq_train(job, *pair, "--log-format", "json", *settings, data=data.binary)
            if self.scored == "loss":
                yield scoring(job, "loss", job.folder / "train.log")
                return
            yield averaging(job, self.average_at(job))
            if not job.at_paper:  # where the hub interface looks
                yield "averaging", Command.of("cp", data.pieces, job.folder / "sentencepiece.bpe.model")
        scored = []
        for name, reference in data.references.items():
            found, more = job.folder / f"generate-{name}.log", self.search_of.get(name, "") if job.at_paper else ""
            flags = ["--path", model, *pair, "--gen-subset", data.subsets[name], "--max-tokens", 4096]
            flags += ["--required-batch-size-multiple", 1, *search, *words(more)]
            generate = ["fairseq-generate", data.binary, "--user-dir", ROOT / "fairseq_plugin", *flags]
            yield f"decoding-{name}", Command.of(*generate, output=found)
            scored.append(f"{found}={reference}")
        yield scoring(job, "score", *scored, "--tokenize", self.tokenize, *self.more_scores(job, data))

    def data_of(self, job: Job) -> Data:
        """The data set of the scale."""
        if job.at_paper:
            folder, pair = job.out / "data" / self.data / self.set, words(self.languages)
            references = {name: folder / "raw" / f"{subset}.{pair[1]}" for name, subset in self.tests.items()}
            prepare = job.prepare(self.data, *([f"SET={self.set}"] if self.set else []))
            return Data(prepare, folder / "bin", pair, references, subsets=self.tests)
        if job.scale == "smoke" and not Path(job.data_root or "/nonexistent", "multi30k").is_dir():
            folder, pair = job.out / "data" / "smoke", ["letters", "phonemes"]
            pieces, references = folder / "pieces" / "bpe.model", {"test": folder / "raw" / "test.phonemes"}
            return Data(job.prepare("smoke"), folder / "bin", pair, references, pieces)
        folder = job.out / "multi30k"
        pieces, references = folder / "pieces-6000" / "bpe.model", {"test": folder / "raw" / "test_2016_flickr.en"}
        prepare = job.prepare("multi30k/prepare", "PIECES=6000")
        return Data(prepare, folder / "bin-6000", ["de", "en"], references, pieces)

    def settings_at(self, job: Job) -> list[Any]:
        """Flags of the training, before those of the row."""
        if job.at_paper:
            return self.update(job)
        updates, save, warmup = BUDGETS[job.scale]
        width = self.wide * (64 if job.scale == "smoke" else self.width)
        flags = ["--encoder-embed-dim", width, "--encoder-ffn-embed-dim", 4 * width, "--encoder-attention-heads", 4]
        flags += ["--decoder-embed-dim", width, "--decoder-ffn-embed-dim", 4 * width, "--decoder-attention-heads", 4]
        flags += ["--share-all-embeddings", "--max-tokens", 1024, "--dropout", 0.1]
        flags += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1]
        flags += ["--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "1e-3", "--lr-scheduler", "cosine"]
        flags += ["--warmup-updates", warmup, "--clip-norm", "1.0", "--max-update", updates, "--no-epoch-checkpoints"]
        flags += ["--save-interval-updates", save, "--keep-interval-updates", 5, "--log-interval", save // 5]
        return flags

    def average_at(self, job: Job) -> list[str]:
        """Flags that choose the checkpoints to average; none, or `best`, for the best one alone."""
        if job.at_paper:
            return words(self.average)
        updates, save, _ = BUDGETS[job.scale]
        return ["--num-update-checkpoints", str(min(updates // save, 5))]

    def search_at(self, job: Job) -> list[str]:
        """Flags of the search."""
        small = "--beam 5 --max-len-a 1.5 --max-len-b 10 --remove-bpe sentencepiece"
        return words(self.search if job.at_paper else small)

    def more_scores(self, job: Job, data: Data) -> list[Any]:
        """Flags that add scores."""
        if not job.at_paper:
            return ["--pieces", data.pieces] if self.vocabulary else []
        pieces = ["--pieces", data.binary.parent / self.vocabulary, "--longest", 48] if self.vocabulary else []
        return pieces + (["--compounds", data.pair[1]] if self.compounds else [])


def averaging(job: Job, flags: list[str]) -> Stage:
    """Averages checkpoints into average.pt."""
    average = job.folder / "average.pt"
    if (flags or ["best"])[0] == "best":
        return "averaging", Command.of("cp", job.checkpoints / "checkpoint_best.pt", average)
    program = ["python", "-m", "fairseq_plugin.average", "--inputs", job.checkpoints, *flags]
    return "averaging", Command.of(*program, "--output", average)
