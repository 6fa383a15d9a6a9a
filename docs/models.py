"""Generates the tables of architectures in docs/models.md from the registries of both plugins.

python docs/models.py    # rewrites the tables between their marks
"""

import inspect
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import timm
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from tables import with_table
from torch import nn

import fairseq_plugin  # noqa: F401  (registers the models)
import timm_plugin
from fairseq_plugin.build import architectures, build_architecture, build_language_model, numbered_dictionary
from fairseq_plugin.language_model import LanguageModel
from fairseq_plugin.models.speech import SpeechToText
from fairseq_plugin.seq2seq import LoopedTransformer
from recurrence import count
from recurrence.causal import CausalStack

PAGE = Path(__file__).with_name("models.md")
# Number of symbols in the paper's corpus; WikiText-103's for the other language models.
SYMBOLS = {"ilr_small": 1024, "ilr_large": 32_000, "recurrent_lm": 65}
WIKITEXT_103 = 267_744
LONGEST_ORDER = 12
ARXIV = "https://arxiv.org/abs"


def translation_rows() -> Iterator[list[str]]:
    """One row per translation model, built at full size on the meta device."""
    for arch in architectures(LoopedTransformer, but=SpeechToText):
        joint = numbered_dictionary(32768)
        with torch.device("meta"):
            model = build_architecture(arch, joint, joint, share_all_embeddings=True)
        yield encoder_decoder_row(arch, model)


def speech_rows() -> Iterator[list[str]]:
    """One row per speech model, with the symbols and features of fairseq's LibriSpeech recipe."""
    sizes = dict(input_feat_per_channel=80, input_channels=1, share_decoder_input_output_embed=True)
    for arch in architectures(SpeechToText):
        with torch.device("meta"):
            model = build_architecture(arch, None, numbered_dictionary(10_000), **sizes)
        yield encoder_decoder_row(arch, model)


def encoder_decoder_row(arch: str, model: nn.Module) -> list[str]:
    """The row of an encoder-decoder."""
    args, stacks = preset(arch), (model.encoder.loop, model.decoder.loop)
    size = f"{args.encoder_embed_dim} / {args.encoder_ffn_embed_dim} / {args.encoder_attention_heads}"
    depth, blocks = " + ".join(str(len(stack.order)) for stack in stacks), " ".join(map(str, stacks[0].order))
    return [f"`{arch}`", size, depth, blocks, f"{sum(map(count.stored, stacks)):,}", *sizes(model)]


def language_rows() -> Iterator[list[str]]:
    """One row per language model, with the paper's number of symbols."""
    for arch in architectures(LanguageModel):
        args, symbols = preset(arch), SYMBOLS.get(arch, WIKITEXT_103)
        with torch.device("meta"):
            model = build_language_model(arch, numbered_dictionary(symbols))
        size = f"{args.decoder_embed_dim} / {args.decoder_ffn_embed_dim} / {args.decoder_attention_heads}"
        stack = model.decoder.stack
        blocks = " ".join(map(str, stack.loop.order)) if isinstance(stack, CausalStack) else "along the sequence"
        yield [f"`{arch}`", size, blocks, f"{count.stored(stack):,}", f"{symbols:,}", *sizes(model)]


def preset(arch: str) -> Namespace:
    """The values of an architecture's options."""
    args = Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def sizes(model: nn.Module) -> list[str]:
    """Numbers of stored parameters: of the model, and of the same model unshared."""
    return [f"{count.stored(model):,}", f"{count.unshared(model):,}"]


def image_rows() -> Iterator[list[str]]:
    """One row per image model, which is built at full size and runs on one black image."""
    for name in timm_plugin.MODELS:
        words = inspect.getdoc(timm.models.model_entrypoint(name))
        what = re.match(r".*?(?:Table|Figure|section) \d+|[^:,.]+", words)[0].replace("*", r"\*")
        classes = re.search(r"with (\d+) classes", words)
        paper = timm.get_pretrained_cfg(name).paper_ids.removeprefix("arXiv:")
        model = timm.create_model(name, num_classes=int(classes[1]) if classes else 1000).eval()
        runs = [loop.blocks[which] for loop in model.loops() for which in loop.order]
        order = "; ".join(shown(loop.order) for loop in model.loops())
        giga = count.macs(model, torch.zeros(1, *model.pretrained_cfg["input_size"])) / 1e9
        passes = str(len(runs))
        reproduces = f"{what} (not in the paper)" if "not in the paper" in words else f"[{what}]({ARXIV}/{paper})"
        yield [f"`{name}`", stages(model), passes, order, *sizes(model), f"{giga:.2f}", reproduces]


def stages(model: nn.Module) -> str:
    """Width, hidden width of the MLP and heads, each for all stages."""
    found = []
    for loop in model.loops():
        ffn = next(block.ffn for block in loop.blocks if block.ffn is not None)
        attention = loop.blocks[0].self_attn
        found.append((ffn.up.in_features, ffn.up.out_features, "none" if attention is None else attention.heads))
    return " / ".join(", ".join(map(str, column)) for column in zip(*found))


def shown(order: Sequence[int]) -> str:
    """An order; a long one is abbreviated."""
    words = list(map(str, order))
    return " ".join(words if len(words) <= LONGEST_ORDER else [*words[:4], "...", *words[-4:]])


UNSHARED = "the same unshared:"
SIDES = ("`--arch`", "width / FFN / heads", "passes", "order of the encoder", "stored in the stacks:")
TABLES = {
    "architectures": ((*SIDES, "total, 32,768 joint symbols:", UNSHARED), translation_rows),
    "speech models": ((*SIDES, "total, 10,000 symbols:", UNSHARED), speech_rows),
    "language models": (
        (*SIDES[:2], "order", "stored in the stack:", "symbols in the paper:", "total:", UNSHARED),
        language_rows,
    ),
    "image models": (
        ("name", "width / MLP / heads", "passes", "order", "stored parameters:", UNSHARED, "GMAC:", "reproduces"),
        image_rows,
    ),
}


def within(document: str, *names: str) -> str:
    """The document with these tables rewritten."""
    for name in names:
        columns, rows = TABLES[name]
        document = with_table(document, name, columns, rows())
    return document


if __name__ == "__main__":
    PAGE.write_text(within(PAGE.read_text(encoding="utf-8"), *TABLES), encoding="utf-8")
