"""Rows of language models: prepare the text, train, evaluate at every context length, score.

All scales are in tables.toml.
"""

from collections.abc import Iterator

from pydantic import PositiveInt

from kinds.base import ROOT, Job, Kind, Stage, scoring, words
from recurrence.comparison.runs import Command

TASK = ["--user-dir", ROOT / "fairseq_plugin", "--task", "language_modeling"]
WHOLE = ["--sample-break-mode", "none"]


class Text(Kind):
    """What language models and the plugin's own tasks have in common."""

    updates: PositiveInt
    symbols: PositiveInt
    data: str = ""
    data_settings: str = ""
    bin: str = ""
    text: PositiveInt | None = None
    checkpoint: str = "best"
    save: PositiveInt | None = None
    log: PositiveInt | None = None


class Language(Text):
    """Attributes:
    text: length of a text in training.
    lengths: context lengths of the evaluation, as multiples of `text`.
    tested: sets, of which the last is evaluated at every context length, the others at the length of training.
    pieces: file of the pieces of a set, SET in its name.
    """

    data: str
    bin: str
    text: PositiveInt
    pieces: str = ""
    lengths: list[float] = [1]
    evaluate: str = ""
    tested: str | list[str] = "test"
    flops: bool = False

    def stages(self, job: Job) -> Iterator[Stage]:
        yield job.prepare(self.data, *words(self.data_settings))
        binary, save = job.out / self.bin, self.save or max(1, self.updates // 4)
        log = self.log or max(1, self.updates // 20)
        flags = [*TASK, "--log-format", "json", "--tokens-per-sample", self.text, *WHOLE, *self.update(job)]
        flags += ["--max-update", self.updates, "--no-epoch-checkpoints", "--keep-interval-updates", 1]
        flags += ["--save-interval-updates", save, "--log-interval", log]
        yield self.fairseq_train(job, *flags, *job.flags, data=binary)
        if self.data == "ilr/prepare":
            pieces = job.out / "ilr" / "raw" / "bpe.model"
            yield "training", Command.of("cp", pieces, job.checkpoints / "sentencepiece.bpe.model")
        *others, last = [self.tested] if isinstance(self.tested, str) else self.tested
        contexts = [int(length * self.text) for length in self.lengths]
        for name, subset, context in [(one, one, self.text) for one in others] + [(n, last, n) for n in contexts]:
            flags = ["--path", job.checkpoints / f"checkpoint_{self.checkpoint}.pt", "--gen-subset", subset]
            flags += ["--tokens-per-sample", context, *WHOLE, *words(self.evaluate)]
            found = job.folder / f"eval-{name}.log"
            yield f"evaluation-{name}", Command.of("fairseq-eval-lm", binary, *TASK, *flags, output=found)
        pieces = {one: job.out / self.pieces.replace("SET", one) for one in (*others, last)}
        more = [word for one in others for word in ("--also", f"{one}={pieces[one]}")]
        if self.flops:
            sizes = ["--symbols", self.symbols, "--text", self.text, "--updates", self.updates]
            sizes += ["--texts", job.micro_batch * job.accumulate * job.gpus]
            _, counts = scoring(job, "flops", *sizes, "--", "--arch", job.arch, *job.flags)
            yield "counting", Command(counts.words, job.folder / "flops.json")
            more += ["--more", job.folder / "flops.json"]
        yield scoring(job, "perplexity", job.folder, "--pieces", pieces[last], "--contexts", *contexts, *more)
