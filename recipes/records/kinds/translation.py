"""Rows that translate: prepare the data, train, average checkpoints, decode every test set, score.

Scales (a row keeps its depth at every scale):
  smoke  64 wide, 10 updates, on Multi30k if DATA_ROOT holds it, or else on words and phonemes; only shows that it works
  small  256 wide (`width`), 4,000 updates of about 900 tokens on Multi30k: under an hour of a core at 4 + 4 passes
  long   the same, for tables that train for fewer updates at scale small
  paper  the data and the settings of the table
Below scale paper, all rows have the same width and training budget.
"""

from collections.abc import Iterator
from pathlib import Path
from shlex import split

from pydantic import PositiveInt

from kinds.base import Job, Stage
from kinds.transduction import PAIR, Data, Sequences
from recurrence.comparison.runs import Command

# Below scale paper: the training, with updates, those between two checkpoints, and of the warm-up; the search.
SMALLER = """
--encoder-embed-dim {width} --encoder-ffn-embed-dim {ffn} --encoder-attention-heads 4
--decoder-embed-dim {width} --decoder-ffn-embed-dim {ffn} --decoder-attention-heads 4
--share-all-embeddings --max-tokens 1024 --dropout 0.1 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
--optimizer adam --adam-betas '(0.9, 0.98)' --lr 1e-3 --lr-scheduler cosine --warmup-updates {warmup} --clip-norm 1.0
--max-update {updates} --no-epoch-checkpoints --save-interval-updates {save} --keep-interval-updates 5
--log-interval {log}"""
BUDGETS = {"smoke": (10, 5, 2), "small": (4000, 200, 400), "long": (4000, 200, 400)}
SEARCH = "--beam 5 --max-len-a 1.5 --max-len-b 10 --remove-bpe sentencepiece"


class Translation(Sequences):
    """Attributes:
    pairs: size of the training set at scale paper.
    search_of: flags of the search in addition, by test set.
    vocabulary: a file of the data set, which adds BLEU of its pieces.
    compounds: also score with split compounds, at scale paper.
    wide: by how much a row is wider below scale paper.
    decode: the checkpoint of another row and flags of the search; nothing is trained.
    """

    at_paper = ("data", "languages", "tests", "micro_batch", "train", "search", "symbols", "pairs")

    pairs: PositiveInt | None = None
    search_of: dict[str, str] = {}
    vocabulary: str = ""
    compounds: bool = False
    tokenize: str = "13a"
    width: PositiveInt = 256
    wide: PositiveInt = 1
    decode: str = ""

    def stages(self, job: Job) -> Iterator[Stage]:
        data = self.data_of(job)
        yield data.prepare
        model, *search = split(self.decode) or [job.folder / "average.pt"]
        if self.decode:
            search += job.flags
        else:
            updates, save, warmup = BUDGETS.get(job.scale, (0, 0, 0))
            width = self.wide * (64 if job.scale == "smoke" else self.width)
            sizes = dict(width=width, ffn=4 * width, updates=updates, save=save, log=save // 5, warmup=warmup)
            train = f"{PAIR} --log-format json {self.update if job.at_paper else SMALLER}"
            yield self.fairseq_train(job, train, *job.flags, binary=data.binary, data=data, **sizes)
            if self.scored == "loss":
                yield self.loss(job)
                return
            last = ["--num-update-checkpoints", str(min(updates // (save or 1), 5))]
            yield self.averaging(job, split(self.average) if job.at_paper else last)
            if data.pieces:  # where the hub interface looks
                yield "averaging", Command.of("cp", data.pieces, job.folder / "sentencepiece.bpe.model")
        for name in data.tests:
            common, more = (self.search, self.search_of.get(name, "")) if job.at_paper else (SEARCH, "")
            flags = split(f"--max-tokens 4096 --required-batch-size-multiple 1 {common}")
            yield self.decoding(job, data, model, name, *flags, *search, *split(more))
        flags = ["--tokenize", self.tokenize, *self.more_scores(job, data)]
        yield self.scoring(job, "score.py", *self.compared(job, data), *flags)

    def data_of(self, job: Job) -> Data:
        """The data set of the scale."""
        if job.at_paper:
            return self.prepared(job)
        if job.scale == "smoke" and not Path(job.data_root or "/nonexistent", "multi30k").is_dir():
            folder = job.out / "data" / "smoke"
            tests, pieces = {"test": ("test", folder / "raw" / "test.phonemes")}, folder / "pieces" / "bpe.model"
            return Data(job.prepare("smoke"), folder / "bin", "letters", "phonemes", tests, pieces)
        folder = job.out / "multi30k"
        tests, pieces = {"test": ("test", folder / "raw" / "test_2016_flickr.en")}, folder / "pieces-6000" / "bpe.model"
        return Data(job.prepare("multi30k/prepare", "PIECES=6000"), folder / "bin-6000", "de", "en", tests, pieces)

    def more_scores(self, job: Job, data: Data) -> list[str]:
        """Flags that add scores."""
        if not job.at_paper:
            return ["--pieces", str(data.pieces)] if self.vocabulary else []
        pieces = ["--pieces", str(data.binary.parent / self.vocabulary), "--longest", "48"] if self.vocabulary else []
        return pieces + (["--compounds", data.target] if self.compounds else [])
