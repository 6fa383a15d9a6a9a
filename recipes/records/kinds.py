"""The settings in tables.toml that commands/KIND.sh reads, checked by pydantic: one model for each kind of table."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationInfo, model_validator

SCALES = ("smoke", "small", "long", "paper")
SWITCHES = ("body", "release", "code")  # settings of the paper's body, or of the published code, where they differ
OVERRIDES = ("smaller", *SCALES[:-1])  # settings below scale paper: at all scales, or at one
PARTS = (*OVERRIDES, *SWITCHES)


class Kind(BaseModel):
    """What all kinds have in common.

    Attributes:
        at_paper: what scale paper requires, where the scripts have settings of their own for the smaller scales.
        batches: whether an update needs a batch size, in sequences (batch) or in tokens.
        default_scales: at which a row can run, unless its settings say otherwise.
        micro_batch: the most that a process takes at once; a larger batch is accumulated.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    at_paper: ClassVar[tuple[str, ...]] = ()
    batches: ClassVar[bool] = True
    default_scales: ClassVar[tuple[str, ...]] = ("smoke", "small", "paper")

    scales: list[Literal[SCALES]] = []
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    batch: PositiveInt | None = None
    tokens: PositiveInt | None = None
    micro_batch: PositiveInt = 128
    train: str = ""

    @model_validator(mode="after")
    def complete(self, info: ValidationInfo) -> "Kind":
        """Rejects settings that lack what their scale requires; the context names the scale."""
        if self.at_paper and info.context["scale"] != "paper":
            return self
        missing = [name for name in self.at_paper if name not in self.model_fields_set]
        if missing:
            raise ValueError(f"missing key {missing[0]!r}")
        if self.batches and (self.batch is None) == (self.tokens is None):
            raise ValueError("must have either 'batch' or 'tokens'")
        return self


class Translation(Kind):
    at_paper = ("data", "languages", "tests", "micro_batch", "train", "search", "symbols", "pairs")

    data: str = ""
    languages: str = ""
    tests: dict[str, str] = {}
    symbols: PositiveInt | None = None
    pairs: PositiveInt | None = None  # sentence pairs of the training set at scale paper
    set: str = ""  # of a data set that has several
    average: str = ""
    search: str = ""
    search_of: dict[str, str] = {}
    vocabulary: str = ""
    compounds: bool = False
    tokenize: str = ""
    scored: Literal["", "loss"] = ""
    width: PositiveInt | None = None
    wide: PositiveInt | None = None
    decode: str = ""


class Transduction(Kind):
    data: str
    set: str = ""
    score: Literal["", "pronunciation"] = ""
    languages: str
    tests: dict[str, str]
    symbols: PositiveInt
    updates: PositiveInt
    save: PositiveInt
    log: PositiveInt
    average: str
    search: str


class Images(Kind):
    at_paper = ("data", "batch", "train")

    data: str = ""
    classes: PositiveInt = 1000
    divisor: PositiveInt = 1
    repeats: PositiveInt | None = None
    held_out: Literal[True] | None = None


class Text(Kind):
    """What language models and the plugin's own tasks have in common."""

    updates: PositiveInt
    symbols: PositiveInt
    data: str = ""
    data_settings: str = ""
    bin: str = ""
    text: PositiveInt | None = None
    checkpoint: str = ""
    save: PositiveInt | None = None
    log: PositiveInt | None = None


class Language(Text):
    data: str
    bin: str
    text: PositiveInt
    pieces: str = ""
    lengths: list[float] = []
    evaluate: str = ""
    tested: str | list[str] = ""
    flops: bool = False


class Sequence(Text):
    task: str
    log: PositiveInt
    positions: PositiveInt | None = None
    classes: PositiveInt | None = None
    subset: str = ""
    score: str = ""  # options of metrics/automaton.py, which then scores instead of metrics/answers.py


class Speech(Kind):
    data: str
    bin: str
    updates: PositiveInt
    symbols: PositiveInt
    trained: str
    valid: str
    tests: dict[str, str]
    search: str
    save: PositiveInt
    keep: PositiveInt
    data_settings: str = ""
    short: PositiveInt | None = None


class Count(Kind):
    """Nothing is trained, and scale smoke is the same as scale paper."""

    batches = False
    default_scales = ("smoke", "paper")

    count: Literal["images", "training", "speed"]
    throughput: PositiveInt | None = None
    classes: PositiveInt | None = None
    symbols: PositiveInt | None = None
    text: PositiveInt | None = None
    updates: PositiveInt | None = None
    positions: PositiveInt | None = None
    beside: str = ""
    rounds: PositiveInt | None = None


KINDS: dict[str, type[Kind]] = {
    "translation": Translation,
    "transduction": Transduction,
    "images": Images,
    "language": Language,
    "sequence": Sequence,
    "speech": Speech,
    "count": Count,
}
