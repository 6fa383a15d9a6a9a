"""`--replace-unk`: the aligned source word in place of an unknown one, or its entry in a dictionary."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from fairseq.tokenizer import tokenize_line
from torch import Tensor

from fairseq_repairs.files import MOST_BYTES, require_regular
from fairseq_repairs.interactive import TRANSLATING
from fairseq_repairs.replace import after, instead


class Alignment(list):
    """A hypothesis' alignment, with the source word that each of its symbols attends to most."""

    words: list[str]


@instead(utils, "load_align_dict")
def load_dictionary(load: Callable, replace_unk: str | None) -> dict[str, str] | None:
    """Lets `--replace-unk` do without a dictionary: fairseq takes it for a file named "@@ " (issue 3533).

    Raises:
        ValueError: if a line is not an entry, or the path is not a file (a pipe may have no end) or too large.
    """
    require_regular(replace_unk or "", MOST_BYTES)
    try:
        return load("" if replace_unk == "@@ " else replace_unk)
    except (IndexError, UnicodeDecodeError):
        raise ValueError(
            f"--replace-unk {replace_unk}: each line must have a word and its translation, in UTF-8"
        ) from None


@instead(BaseFairseqModel, "prepare_for_inference_")
def attend_for_unknown_words(prepare: Callable, model: BaseFairseqModel, cfg: Any) -> None:
    """Lets models return attention with `--replace-unk`; fairseq asks only with `--print-alignment` (issue 686)."""
    model.replaces_unknown_words = getattr(cfg.generation, "replace_unk", None) is not None
    if model.replaces_unknown_words and not cfg.generation.print_alignment:
        cfg = SimpleNamespace(generation=copy.deepcopy(cfg.generation))
        cfg.generation.print_alignment = "hard"
    prepare(model, cfg)


@after(TRANSLATING, "inference_step")
def find_source_words(found: list, task: FairseqTask, generator: Any, models: Any, sample: dict, *args, **kwargs):
    """Notes for each symbol of a hypothesis the source word that it attends to most.

    The word is as the text has it, even if the source dictionary does not know it. The text is the line in
    fairseq-interactive; fairseq-generate knows it only from raw data.
    """
    if not (models and getattr(models[0], "replaces_unknown_words", False) and task.source_dictionary is not None):
        return
    for number, (tokens, hypotheses) in enumerate(zip(sample["net_input"]["src_tokens"], found)):
        words, places = _source(task, tokens, _text(task, sample, number))
        for hypothesis in hypotheses:
            attention = hypothesis.get("attention")  # (S, T)
            if words and attention is not None and attention.numel():
                hypothesis["alignment"] = Alignment(hypothesis["alignment"])
                hypothesis["alignment"].words = [words[i] for i in attention[places].argmax(0).tolist()]


def _text(task: FairseqTask, sample: dict, number: int) -> str:
    """A source as it was read; nothing where that is not known, as in the hub interface."""
    if "id" not in sample:
        return task.sources[number]  # see interactive.answer_every_line
    sides = [getattr(data, "src", None) for data in task.datasets.values()]
    read = getattr(sides[0], "get_original_text", None) if len(sides) == 1 else None
    return read(int(sample["id"][number])) if read else ""


def _source(task: FairseqTask, tokens: Tensor, text: str) -> tuple[list[str], Tensor]:
    """The words of a source and their places in a batch's row; of a task that adds symbols, those of its dictionary."""
    words: Dictionary = task.source_dictionary
    places = ((tokens != words.pad()) & (tokens != words.eos())).nonzero()[:, 0]
    said = tokenize_line(text)[: len(places)]
    return (said if len(said) == len(places) else [words[token] for token in tokens[places]]), places


@instead(utils, "post_process_prediction")
def replace_unknown_words(
    process: Callable,
    hypo_tokens: Tensor,
    src_str: str,
    alignment: Any,
    align_dict: dict[str, str] | None,
    tgt_dict: Dictionary,
    remove_bpe: str | None = None,
    extra_symbols_to_ignore: set[int] | None = None,
) -> tuple[Tensor, str, Any]:
    """Replaces unknown words before segments are joined; fairseq fails for want of an alignment (issues 686, 832)."""
    if align_dict is None or not isinstance(alignment, Alignment):
        return process(hypo_tokens, src_str, alignment, None, tgt_dict, remove_bpe, extra_symbols_to_ignore)
    ignored = {tgt_dict.bos(), tgt_dict.eos(), *(extra_symbols_to_ignore or ())}
    pairs = [pair for pair in zip(hypo_tokens.tolist(), alignment.words) if pair[0] not in ignored]
    said = [align_dict.get(word, word) if token == tgt_dict.unk() else tgt_dict[token] for token, word in pairs]
    text = post_process(" ".join(said), remove_bpe)
    return tgt_dict.encode_line(text, add_if_not_exist=True), text, alignment
