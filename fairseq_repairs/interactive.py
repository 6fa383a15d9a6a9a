"""fairseq-interactive and the hub interface: one translation per line, and warnings about unreadable text."""

import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from fairseq.token_generation_constraints import pack_constraints
from fairseq.tokenizer import tokenize_line
from torch import Tensor

from fairseq_repairs.files import bounded_lines
from fairseq_repairs.replace import after, before, in_groups, instead

logger = logging.getLogger(__name__)
TRANSLATING = FairseqTask, MultilingualTranslationTask, TranslationMultiSimpleEpochTask  # each defines inference_step
OF_TEXT = {"src_tokens", "src_lengths", "prev_output_tokens"}  # the inputs of a model that translates text


@before("fairseq_cli.interactive", "main")
def warn_of_unused_prefix(cfg: Any, **kwargs) -> None:
    """Says that `--prefix-size` has no effect: the prefix is the beginning of a reference, and here there is none."""
    if in_groups(cfg).generation.prefix_size > 0:
        logger.warning(
            "--prefix-size: has no effect in fairseq-interactive, which has no references: a multilingual model of "
            "speech chooses the language itself; in the hub interface, predict(..., tgt_lang=...) gives it"
        )


@before("fairseq_cli.interactive", "main")
def reject_soft_alignments(cfg: Any, **kwargs) -> None:
    """Rejects `--print-alignment soft`, of which fairseq-interactive would print the shares as if they were links."""
    if in_groups(cfg).generation.print_alignment == "soft":
        raise ValueError("--print-alignment soft: must be hard; only fairseq-generate prints soft alignments")


@instead("fairseq_cli.interactive", "buffered_read")
def read_every_line(_: Callable, input: str, buffer_size: int) -> Iterator[list[str]]:
    """Reads bytes that are not UTF-8 as U+FFFD, a line with a lone carriage return as one, and no endless line.

    fairseq exits at the first such byte, and the remaining lines are lost; a carriage return shifts the answers.

    Raises:
        ValueError: a line is too long; a file without line breaks would fill the memory.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace", newline="\n")
    typed = input == "-"
    with nullcontext(sys.stdin) if typed else open(input, encoding="utf-8", errors="replace", newline="\n") as file:
        lines = map(str.strip, bounded_lines(file, "standard input" if typed else f"--input={input}"))
        yield from iter(lambda: list(islice(lines, buffer_size)), [])


@instead("fairseq_cli.interactive", "make_batches")
def answer_every_line(
    batch: Callable, lines: list[str], cfg: Any, task: FairseqTask, max_positions: Any, encode_fn: Callable
) -> Iterator[Any]:
    """Lets fairseq-interactive answer an unreadable line with a warning and an empty translation.

    fairseq exits at a line that is too long or names an unreadable audio file, and the remaining lines are lost. A
    language model reads such a line as an empty prompt. With `--truncate-source`, which fairseq reads only in other
    commands (issue 4507), the beginning of a long line is translated.
    """
    from fairseq_cli.interactive import Batch  # not above: when first imported, it configures logging

    if cfg.generation.lm_path:
        raise ValueError("--lm-path: fairseq-interactive reads no language model; use fairseq-generate")
    task.dataset_to_epoch_iter.clear()  # fairseq would keep all lines
    most, option = _limit(cfg, task, max_positions)
    if getattr(cfg.task, "truncate_source", False) and most is not None:
        encode_fn = _truncated(encode_fn, most - 1)  # and the end of the sentence
    if isinstance(task, LanguageModelingTask):  # an empty prompt is valid
        prompts = [line if _is_readable(line, task, most, option, encode_fn) else "" for line in lines]
        yield from batch(prompts, cfg, task, max_positions, encode_fn)
        return
    # With --constraints, words that the translation must contain follow the source after a tab.
    texts = [line.split("\t")[0] for line in lines] if cfg.generation.constraints else lines
    readable = [i for i, text in enumerate(texts) if _is_readable(text, task, most, option, encode_fn)]
    if readable:
        for part in batch([lines[i] for i in readable], cfg, task, max_positions, encode_fn):
            task.sources = [encode_fn(texts[readable[i]]) for i in part.ids.tolist()]  # see unknown.find_source_words
            yield part._replace(ids=torch.tensor([readable[i] for i in part.ids.tolist()]))
    empty = sorted(set(range(len(lines))) - set(readable))
    if empty:
        tokens = torch.full((len(empty), 1), task.target_dictionary.eos())
        constraints = pack_constraints([[] for _ in empty]) if cfg.generation.constraints else None
        task.sources = [""] * len(empty)
        yield Batch(torch.tensor(empty), tokens, torch.ones_like(tokens[:, 0]), constraints)


@instead(TRANSLATING, "inference_step")
def keep_empty_sources_empty(step: Callable, task: FairseqTask, generator: Any, models, sample: dict, *args, **kwargs):
    """Translates an empty source into an empty target; fairseq's search makes up a translation.

    References are scored as they are (`--score-reference`), and so are sources of which the text is only a part.
    """
    tokens = sample["net_input"].get("src_tokens")
    text_only = sample["net_input"].keys() <= OF_TEXT and isinstance(tokens, Tensor) and tokens.dim() == 2
    if not text_only or tokens.is_floating_point() or isinstance(generator, SequenceScorer):
        return step(task, generator, models, sample, *args, **kwargs)
    eos, pad = task.target_dictionary.eos(), task.target_dictionary.pad()
    blank = ((tokens == eos) | (tokens == pad) | (tokens == _language_of(task, eos))).all(1).tolist()
    if all(blank):
        return [[_empty_hypothesis(eos)] for _ in blank]
    found = step(task, generator, models, sample, *args, **kwargs)
    return [[_empty_hypothesis(eos)] if empty else hypotheses for empty, hypotheses in zip(blank, found)]


def _language_of(task: FairseqTask, eos: int) -> int:
    """The symbol of a language that `--encoder-langtok` adds to a source or ends it with; `eos` if there is none."""
    if isinstance(task, MultilingualTranslationTask) and task.args.encoder_langtok:
        return task.get_encoder_langtok(task.args.source_lang, task.args.target_lang)
    if not isinstance(task, TranslationMultiSimpleEpochTask):
        return eos
    of_source, _ = task.args.langtoks["main"]
    found = task.data_manager.get_encoder_langtok(task.args.source_lang, task.args.target_lang, of_source)
    return eos if found is None else found


def _empty_hypothesis(eos: int) -> dict[str, Any]:
    """An empty hypothesis as fairseq's searches return it, the one that refines a translation in steps, too."""
    scores = dict(score=torch.tensor(0.0), positional_scores=torch.zeros(1))
    return dict(tokens=torch.tensor([eos]), attention=None, alignment=[], steps=0, history=[], **scores)


def _truncated(encode: Callable[[str], str], most: int) -> Callable[[str], str]:
    """Encodes a text into so many symbols at most."""
    return lambda text: " ".join(tokenize_line(encode(text))[:most])


def _limit(cfg: Any, task: FairseqTask, max_positions: Any) -> tuple[int | None, str]:
    """The most tokens or frames of a source, None without a limit, and in brackets the option that sets it."""
    positions = _longest_source(max_positions)
    # The option helps where it sets the limit, and not the model, whose learned positions have a fixed number.
    option = " (--max-source-positions)" if _longest_source(task.max_positions()) == positions else ""
    limits = [(positions, option), (cfg.dataset.max_tokens, " (--max-tokens)")]
    return min((limit for limit in limits if (limit[0] or 0) > 0), default=(None, ""))


def _is_readable(text: str, task: FairseqTask, most: int | None, option: str, encode: Callable) -> bool:
    """Whether a text can be translated; logs a warning if not, or if most of it is unknown."""
    if not text:
        return False
    is_speech = task.source_dictionary is None
    shown = text if is_speech else _beginning(text)
    try:
        (tokens,), (length,) = task.get_interactive_tokens_and_lengths([text], encode)
    except (OSError, RuntimeError, ValueError) as error:
        named = str(error).startswith(text)  # by the error of an audio file
        logger.warning(f"{error if named else f'{shown}: {error}'}: left empty")
        return False
    if most is not None and length > most:
        unit = "frames" if is_speech else "tokens"
        logger.warning(f"{shown}: is {length} {unit} long: must be <= {most}{option}: left empty")
    warn_of_unknown_words(text, tokens, task.source_dictionary)
    return most is None or length <= most


def _beginning(text: str) -> str:
    """A text that fits into a line of the log."""
    return text if len(text) <= 80 else f"{text[:80]}..."


def _longest_source(max_positions: Any) -> int | None:
    """The source's part of a task's and models' positions; of a multilingual task, the largest of its pairs'."""
    if isinstance(max_positions, dict):
        return max(filter(None, map(_longest_source, max_positions.values())), default=None)
    return max_positions[0] if isinstance(max_positions, tuple | list) else max_positions


@instead(GeneratorHubInterface, "generate")
def pass_on_every_argument(generate: Callable, interface: GeneratorHubInterface, tokenized_sentences: Any, *args, **kw):
    """Lets `prefix_allowed_tokens_fn` and `inference_step_args` act on a single sentence; fairseq leaves them out.

    Tensors in `inference_step_args` have a row for each sentence. fairseq sorts the sentences and not the rows, so that
    a sentence gets those of another.
    """
    if isinstance(tokenized_sentences, Tensor) and tokenized_sentences.dim() == 1:
        return generate(interface, [tokenized_sentences], *args, **kw)[0]
    given = kw.get("inference_step_args") or {}
    rows = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    for name, value in rows.items():
        if len(value) != len(tokenized_sentences):
            raise ValueError(f"inference_step_args: {name}: has {len(value)} rows: must have one for each sentence")
    if not rows:
        return generate(interface, tokenized_sentences, *args, **kw)
    found = []
    for number, sentence in enumerate(tokenized_sentences):
        of_one = given | {name: value[number : number + 1] for name, value in rows.items()}
        found += generate(interface, [sentence], *args, **kw | {"inference_step_args": of_one})
    return found


@after(GeneratorHubInterface, "binarize")
def warn_in_hub_interface(tokens: Tensor, interface: GeneratorHubInterface, sentence: str) -> None:
    """Lets the hub interface warn about unsegmented sentences, as fairseq-interactive does."""
    warn_of_unknown_words(sentence, tokens, interface.src_dict)


def warn_of_unknown_words(text: str, tokens: Tensor, dictionary: Dictionary | None) -> None:
    """Warns if more than half of a sentence is unknown: a sign of unsegmented text, whose translation would be wrong.

    Args:
        text: the sentence as it was typed.
        tokens: (T,) its symbols and the end of the sentence, or frames of speech (frames, features).
        dictionary: the source dictionary; None for speech.
    """
    if dictionary is None or tokens.dim() != 1 or tokens.is_floating_point():
        return
    unknown, words = int(tokens.eq(dictionary.unk()).sum()), int(tokens.ne(dictionary.eos()).sum())
    if 2 * unknown > words:
        logger.warning(
            f"{_beginning(text)}: {unknown} of {words} symbols are unknown: segment the text as for training "
            "(--bpe sentencepiece --sentencepiece-model FILE, or bpe=..., sentencepiece_model=...)"
        )
