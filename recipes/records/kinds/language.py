"""Rows of language models: prepare the text, train, evaluate at every context length, score.

All scales are in tables.toml.
"""

from collections.abc import Iterator
from shlex import split

from pydantic import PositiveInt

from kinds.base import Job, Kind, Stage
from recurrence.comparison.runs import Command

TASK = "--user-dir {root}/fairseq_plugin --task language_modeling"
TRAIN = (
    TASK
    + """ --log-format json --tokens-per-sample {my.text} --sample-break-mode none {update}
--max-update {my.updates} --no-epoch-checkpoints --keep-interval-updates 1 --save-interval-updates {save}
--log-interval {log}"""
)
EVALUATE = f"""fairseq-eval-lm {{binary}} {TASK} --path {{job.folder}}/checkpoints/checkpoint_{{my.checkpoint}}.pt
--gen-subset {{subset}} --tokens-per-sample {{context}} --sample-break-mode none"""
FLOPS = """flops.py --symbols {my.symbols} --text {my.text} --texts {texts} --
--arch {job.arch} --max-update {my.updates}"""


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
        yield job.prepare(self.data, *split(self.data_settings))
        values = dict(binary=job.out / self.bin, save=self.save or max(1, self.updates // 4))
        values["log"] = self.log or max(1, self.updates // 20)
        yield self.fairseq_train(job, TRAIN.replace("{update}", self.update), *job.flags, **values)
        if self.data == "ilr/prepare":
            pieces = job.out / "ilr" / "raw" / "bpe.model"
            yield "training", Command.of("cp", pieces, job.folder / "checkpoints" / "sentencepiece.bpe.model")
        *others, last = [self.tested] if isinstance(self.tested, str) else self.tested
        contexts = [int(length * self.text) for length in self.lengths]
        for name, subset, context in [(one, one, self.text) for one in others] + [(n, last, n) for n in contexts]:
            words = self.words(job, EVALUATE, subset=subset, context=context, **values)
            evaluated = Command.of(*words, *split(self.evaluate), output=job.folder / f"eval-{name}.log")
            yield f"evaluation-{name}", evaluated
        pieces = {one: job.out / self.pieces.replace("SET", one) for one in (*others, last)}
        more = [word for one in others for word in ("--also", f"{one}={pieces[one]}")]
        if self.flops:
            texts, output = job.micro_batch * job.accumulate * job.gpus, "flops.json"
            yield "counting", self.scoring(job, FLOPS, *job.flags, output=output, texts=texts)[1]
            more += ["--more", job.folder / output]
        score = "perplexity.py {job.folder} --pieces {pieces} --contexts"
        yield self.scoring(job, score, *contexts, *more, pieces=pieces[last])
