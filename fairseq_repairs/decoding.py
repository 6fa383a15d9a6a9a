"""Search: n-gram blocking, diverse beams, limits on the length, an encoder without a removed fast path."""

import logging
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from fairseq.modules import AdaptiveSoftmax, transformer_layer
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import DiverseBeamSearch, LengthConstrainedBeamSearch, LexicallyConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from torch import Tensor, nn

from fairseq_repairs.half import in_float32
from fairseq_repairs.replace import after, at_once, before, instead

logger = logging.getLogger(__name__)

# Whether the length of a source includes its end, as in fairseq's main branch.
COUNTS_END = "src_lengths" in SequenceGenerator._generate.__code__.co_consts
UNLIKELY = -1e4  # a log-probability that half precision can hold


def _no_repeat_ngram(self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Tensor:
    """Sets to -inf, in place, every next token that would complete an n-gram that the hypothesis already contains.

    Where nothing else is possible, because a prefix gives the token, it stays possible: fairseq's search fails without
    one.

    Args:
        tokens: (B x beam, at least `step + 1`) symbols so far, including the first end-of-sentence, then padding.
        lprobs: (B x beam, symbols) log-probabilities of the next token.
        bsz: B.
        beam_size: hypotheses per sentence.
        step: number of symbols so far, not counting the first end-of-sentence.
    """
    n = self.no_repeat_ngram_size
    prefix = tokens[:, 1 if n == 1 else 0 : step + 1]
    if prefix.size(1) >= n:
        ngrams = prefix.unfold(1, n, 1)  # (rows, n-grams, n)
        last_words = prefix[:, prefix.size(1) - n + 1 :]
        repeats = (ngrams[:, :, :-1] == last_words.unsqueeze(1)).all(-1)
        banned = torch.zeros_like(lprobs).scatter_add_(1, ngrams[:, :, -1], repeats.to(lprobs)) > 0
        forced = lprobs.masked_fill(banned, float("-inf")).isneginf().all(-1, keepdim=True)
        lprobs.masked_fill_(banned & ~forced, float("-inf"))
    return lprobs


@at_once
def block_repeated_ngrams() -> None:
    """Makes `--no-repeat-ngram-size` work: without its CUDA extension, fairseq compares the padding after the text.

    Works for sizes >= 1. The end-of-sentence symbol at the start of a hypothesis does not count as a repeated word.
    """
    lprobs = torch.zeros(1, 8)
    hypothesis = torch.tensor([[2, 5, 6, 5, 1, 1]])  # "5 6 5" and then padding: 6 must be banned
    block = NGramRepeatBlock(2, use_extension=False)
    block._no_repeat_ngram(hypothesis, lprobs, bsz=1, beam_size=1, step=3)
    if torch.isfinite(lprobs[0, 6]):
        NGramRepeatBlock._no_repeat_ngram = _no_repeat_ngram


def keep_overlaps_of_each_sentence(
    search: DiverseBeamSearch, step: int, lprobs, scores, prefixes=None, sentences: Any = None
) -> Any:
    """Lets `--diverse-beam-groups` look up what the groups of a sentence share by its place in the batch.

    fairseq looks it up by the sentence's number in the corpus: an IndexError, or that of another sentence.
    """
    if step == 0:
        search.sentences = sentences
    elif sentences is not None:
        sentences = (sentences[:, None] == search.sentences).int().argmax(1)
    return type(search).step(search, step, lprobs, scores, prefixes, sentences)


def match_words_of_source(search: LengthConstrainedBeamSearch, step: int, lprobs: Tensor, *args, **kwargs) -> Any:
    """Lets `--match-source-len` give as many words as the source has, in every hypothesis.

    fairseq's main branch gives one more, for the end of the source; and where a longer sentence is in the batch, some
    hypotheses miss their end and continue.
    """
    if COUNTS_END:
        search.src_lengths = search.src_lengths - 1
    last = step >= search.max_len_a * search.src_lengths + search.max_len_b
    lprobs[last] += UNLIKELY  # fairseq then makes the end certain
    return type(search).step(search, step, lprobs, *args, **kwargs)


STEPS = {DiverseBeamSearch: keep_overlaps_of_each_sentence, LengthConstrainedBeamSearch: match_words_of_source}


@before((SequenceGenerator, SequenceGeneratorWithAlignment), "generate")
def repair_steps(generator: SequenceGenerator, *args, **kwargs) -> None:
    """Replaces a search's method `step`, in the object, because TorchScript compiles that of the class."""
    search = generator.search
    for kind, step in STEPS.items():
        if isinstance(search, kind):
            search.step = partial(step, search)


@before((SequenceGenerator, SequenceGeneratorWithAlignment), "generate")
def apply_temperature_to_all_bands(search: SequenceGenerator, *args, **kwargs) -> None:
    """Lets `--temperature` act on the probabilities of an adaptive softmax.

    fairseq divides what the decoder returns, which are features there: each band is then sharpened by itself, and the
    bands keep wrong shares. The method is replaced in the object, because TorchScript compiles that of the class.
    """
    decoders = [getattr(model, "decoder", None) for model in search.model.models]
    if any(getattr(decoder, "adaptive_softmax", None) is not None for decoder in decoders):
        search.model.forward_decoder = partial(_forward_decoder, search.model)


def _forward_decoder(
    ensemble: nn.Module, tokens: Tensor, encoder_outs: Any, incremental_states: Any, temperature: float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """As fairseq's, with the temperature on the log-probabilities."""
    lprobs, attention = type(ensemble).forward_decoder(ensemble, tokens, encoder_outs, incremental_states)
    return (lprobs if temperature == 1 else (lprobs / temperature).log_softmax(-1)), attention


@before(SequenceGeneratorWithAlignment, "generate")
def reject_alignments_without_source_words(search: Any, models: Any, sample: dict, *args, **kwargs) -> None:
    """Rejects `--print-alignment` for a language model and for speech, where fairseq fails after the first search."""
    source = sample["net_input"].get("src_tokens")
    if not search.model.has_encoder() or (source is not None and source.dim() > 2):
        raise ValueError("--print-alignment: a language model and a model of speech have no source words to align")


@instead(AdaptiveSoftmax, "get_log_prob")
def score_bands_in_float32(score: Callable, softmax: AdaptiveSoftmax, *args, **kwargs) -> Tensor:
    """Gives the log-probabilities of an adaptive softmax in float32, as fairseq does those of a single matrix.

    With `--fp16`, a search also adds them up in their type, and a total of -300 has steps of 0.25.
    """
    # fairseq gives all bands the type of the head.
    with softmax.head.register_forward_hook(lambda head, inputs, output: in_float32(output)):
        return score(softmax, *args, **kwargs)


@instead(TranslationMultiSimpleEpochTask, "build_generator")
def translate_in_hub_interface(
    build: Callable, task: Any, models: Any, args: Any, *more, prefix_allowed_tokens_fn: Any = None, **kwargs
) -> Any:
    """Lets the hub interface translate with `translation_multi_simple_epoch`.

    It passes an argument that this task's function does not take (a TypeError), but finds among the options.
    """
    if prefix_allowed_tokens_fn is not None:
        given = vars(args) if isinstance(args, Namespace) else args
        args = Namespace(**given, prefix_allowed_tokens_fn=prefix_allowed_tokens_fn)
    return build(task, models, args, *more, **kwargs)


@before((SequenceGenerator, SequenceGeneratorWithAlignment), "generate")
def require_least_length_beside_longer_prefixes(search: SequenceGenerator, *args, **kwargs) -> None:
    """Lets `--min-len` act on a sentence whose prefix has ended, although another prefix of the batch is longer.

    In fairseq it acts after the longest prefix only, so that the shorter ones may end too early. The method is replaced
    in the object, because TorchScript compiles that of the class.
    """
    search._prefix_tokens = partial(_prefix_tokens, search)


def _prefix_tokens(
    search: SequenceGenerator,
    step: int,
    lprobs: Tensor,
    scores: Tensor,
    tokens: Tensor,
    prefix_tokens: Tensor,
    beam: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """As fairseq's, for prefixes (B, longest) and log-probabilities (B x beam, symbols)."""
    # An empty reference is no prefix: one hypothesis would end at once, and fairseq would wait for the others forever.
    prefix_tokens = prefix_tokens.masked_fill(prefix_tokens[:, :1].eq(search.eos), search.pad)
    forced = type(search)._prefix_tokens(search, step, lprobs, scores, tokens, prefix_tokens, beam)
    if step < search.min_len:
        ended = prefix_tokens[:, step].eq(search.pad).repeat_interleave(beam)
        forced[0][ended, search.eos] = float("-inf")
    return forced


@before((SequenceGenerator, SequenceGeneratorWithAlignment), "generate")
def warn_of_long_prefixes(
    search: SequenceGenerator, models: Any, sample: dict, *args, prefix_tokens: Tensor | None = None, **kwargs
) -> None:
    """Warns of a prefix, such as a language model's prompt, that leaves no room to continue it.

    The largest length of an output includes the prefix; fairseq cuts a longer one without a word.
    """
    source = sample["net_input"].get("src_tokens")
    if prefix_tokens is None or source is None or search.match_source_len:
        return
    given, room = int(search.max_len_a * source.size(1) + search.max_len_b), search.max_len - 1
    most, length = min(given, room), prefix_tokens.size(1)
    if length >= most:
        options = f"--max-len-a {search.max_len_a:g} --max-len-b {search.max_len_b:g}"
        logger.warning(
            f"{options if given <= room else 'the positions of the model'}: an output has at most {most} symbols, its "
            f"prefix or prompt included: a prefix of {length} symbols is {'cut' if length > most else 'not continued'}"
        )


@before(LexicallyConstrainedBeamSearch, "init_constraints")
def name_missing_constraints(search: LexicallyConstrainedBeamSearch, batch_constraints: Any, beam_size: int) -> None:
    """Says which command reads the words of `--constraints`; fairseq fails with a TypeError (issues 4332, 3210)."""
    if batch_constraints is None:
        raise ValueError(
            "--constraints: no words are given; fairseq-interactive reads them behind each source, after a tab, and "
            "the hub interface takes them packed, as inference_step_args=dict(constraints=...)"
        )


@after(FairseqTask, "build_generator")
def reject_steps_of_a_beam_search(
    generator: Any, task: FairseqTask, models: Any, args: Any, *more, extra_gen_cls_kwargs: dict | None = None, **kwargs
) -> None:
    """Rejects `--print-step` and `--retain-iter-history` in fairseq-generate where the search has no steps.

    fairseq fails with a KeyError, and has printed the first translation by then.
    """
    if "lm_model" not in (extra_gen_cls_kwargs or {}):  # only fairseq-generate, which prints steps, passes one or None
        return
    for option in ("print_step", "retain_iter_history"):
        if getattr(args, option, False) and type(generator).__module__ == SequenceGenerator.__module__:
            flag = option.replace("_", "-")
            raise ValueError(f"--{flag}: only a task that refines its translations (translation_lev) has steps")


@after(TranslationMultiSimpleEpochTask, "build_generator")
def keep_symbols_of_languages(generator: Any, task: TranslationMultiSimpleEpochTask, *args, **kwargs) -> None:
    """Lets `--keep-inference-langtok` act, which fairseq looks for among the options of the search."""
    if getattr(task.args, "keep_inference_langtok", False) and isinstance(generator, SequenceGenerator):
        generator.symbols_to_strip_from_output = {generator.eos}


LAYER = transformer_layer.TransformerEncoderLayerBase


@after(LAYER, "__init__", where="_transformer_encoder_layer_fwd" in LAYER.forward.__code__.co_names)
def disable_encoder_fast_path(built: None, layer: nn.Module, *args, **kwargs) -> None:
    """Keeps fairseq 0.12.2's encoder from calling a private operator of torch 1.12 whose arguments have changed.

    Every torch since has the later operator ("Mask Type should be defined"); fairseq's main branch no longer calls it.
    """
    layer.can_use_fastpath = False
