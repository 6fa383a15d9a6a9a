"""Language models: architectures, variants, fairseq's task, and random texts."""

from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_plugin.language_model import LanguageModel
from tests.support import words
from tests.support.words import TARGET_SYMBOLS, dictionary, sentences

TASK = "language_modeling"
ARCHS = sorted(arch for arch, model in ARCH_MODEL_REGISTRY.items() if issubclass(model, LanguageModel))
FAMILY = {arch: ARCH_MODEL_REGISTRY[arch].__name__ for arch in ARCHS}
SYMBOLS, POSITIONS = TARGET_SYMBOLS, 64
PADDINGS = [(False, False), (False, True)]  # there is no source

# Flags that shrink the models of a family and keep their structure.
SIZE = ["--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "24", "--decoder-attention-heads", "2"]
TINY = {
    "IntraLayerRecurrence": [*SIZE, "--decoder-layers", "3"],
    "SharedLanguageModel": [*SIZE, "--adaptive-input-cutoff", "8,14"],
    "KausikRecurrence": [*SIZE, "--decoder-layers", "2"],
}
# Variants of each family; every invariant holds for each of them.
VARIANTS = {
    "IntraLayerRecurrence": {
        "rotary": ["--position", "rotary"],
        "alibi": ["--position", "alibi"],
        "relative": ["--position", "relative"],
        "learned": ["--position", "learned"],
        "none": ["--position", "none"],
        "injected map": ["--position", "rotary", "--inject-embedding"],
        "injected loops": ["--position", "alibi", "--block-loops", "2", "--inject-embedding"],
        "adapter": ["--position", "none", "--block-loops", "2", "--inject-embedding", "--inject-adapter"],
    },
    "SharedLanguageModel": {
        "adaptive": [],
        "one matrix": ["--adaptive-input-cutoff", "none", "--share-decoder-input-output-embed"],
        "adaptive output": ["--adaptive-input-cutoff", "none", "--adaptive-softmax-cutoff", "8"],
    },
    "KausikRecurrence": {
        "as published": [],
        "learned": ["--position", "learned"],
        "window": ["--window", "3"],
        "accumulating": ["--window", "2", "--accumulate", "--activation-fn", "relu"],
        "regular": ["--regular"],
        "regular relative": ["--regular", "--position", "relative"],
    },
}
# Variants of one architecture.
VARIANTS_OF = {"cycle_lm": {"any order": ["--decoder-order", "0,1,2,1,2,1"]}}


def variants(arch: str) -> dict[str, list[str]]:
    return {**VARIANTS[FAMILY[arch]], **VARIANTS_OF.get(arch, {})}


CASES = [(arch, flags) for arch in ARCHS for flags in variants(arch).values()]


def task(symbols: int = SYMBOLS, **values) -> LanguageModelingTask:
    """fairseq's language modeling task on a dictionary of that size."""
    config = OmegaConf.structured(LanguageModelingConfig(**{"tokens_per_sample": POSITIONS, **values}))
    return LanguageModelingTask(config, dictionary(symbols))


task_writing = task


def tiny_flags(arch: str, *flags: str) -> list[str]:
    """Flags that make an architecture small but keep several passes and, if it has them, several blocks."""
    found = list(TINY[FAMILY[arch]])
    if FAMILY[arch] == "IntraLayerRecurrence" and "--block-loops" not in flags:
        found += ["--reuse-map", "2,1,2"]
    if FAMILY[arch] == "SharedLanguageModel" and "--decoder-order" not in flags:
        stored = {"vanilla_lm": "4", "universal_lm": "1"}.get(arch, "2")
        found += ["--decoder-layers", "4", "--decoder-unique-layers", stored]
    return [*found, *flags]


# Texts


def rows(
    source_lengths: tuple[int, ...], target_lengths: tuple[int, ...], symbols: tuple[int, int] = (0, SYMBOLS)
) -> list[tuple[Tensor]]:
    """Random texts; there is no source."""
    return [(text,) for text in sentences(target_lengths, symbols[1], seed=1)]


def collate(
    texts: list[tuple[Tensor]], source_left: bool = False, target_left: bool = False, extra: int = 0
) -> tuple[Tensor]:
    """A batch (B, T)."""
    longest = max(len(text) for (text,) in texts)
    return (words.collate([text for (text,) in texts], source_left or target_left, length=longest + extra),)


def texts(lengths: tuple[int, ...] = (6, 3, 8), left_pad: bool = False) -> Tensor:
    """Random texts of those lengths, padded on either side: (B, T)."""
    return words.collate(sentences(lengths, SYMBOLS, seed=1), left_pad)
