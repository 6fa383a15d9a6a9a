"""The depth curve of a checkpoint: score, time and agreement with the full depth, for each number of passes.

Usage::

    python -m fairseq_plugin.depth data-bin --path average.pt --beam 5 --remove-bpe sentencepiece --output depth.csv
    python -m fairseq_plugin.depth data-bin --path average.pt --remove-bpe sentencepiece --apart --tolerance 0.5

The options are those of fairseq-generate; options of the task that are not given are those of the checkpoint. For a
language model, the score is the perplexity, and agreement is that of its most likely next tokens.
Encoder and decoder run the same number of passes; `--apart` varies one at a time. The first line names the options of
depth with which the checkpoint was trained.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from fairseq import checkpoint_utils, options, scoring, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from torch import Tensor, nn

from fairseq_plugin.elastic import at_depths, loops_by_side, trained_with
from fairseq_plugin.language_model import uncounted
from fairseq_plugin.options import flag
from fairseq_plugin.tasks.answers import AnswerTask
from fairseq_repairs.arguments import parser_of
from fairseq_repairs.foreign import literal
from recurrence.analysis import depth_curve as curve

LOWER_IS_BETTER = ("wer", "perplexity")
# Options of fairseq-generate, with their defaults.
UNSUPPORTED: dict[str, Any] = dict.fromkeys(("constraints", "lm_path", "replace_unk", "results_path"))
UNSUPPORTED |= dict(score_reference=False, num_shards=1)


def assignments(model: nn.Module, apart: bool) -> Iterator[curve.Setting]:
    """The depths to try; the last one is the full depth. `apart` varies one loop at a time.

    Raises:
        ValueError: if the checkpoint runs at no other depth.
    """
    loops, step = loops_by_side(model), model.depth_rules.get("step", 1)
    possible = {name: curve.depths(loop, step=step) for name, loop in loops.items()}
    full = {name: loop.passes for name, loop in loops.items()}
    if all(len(depths) == 1 for depths in possible.values()):
        raise curve.only_full_depth(loops)
    if apart:
        for name, depths in possible.items():
            yield from (curve.Setting(f"{name} {n}", {**full, name: n}) for n in depths if n < full[name])
    else:
        common = sorted(set.intersection(*map(set, possible.values())))
        settings = [curve.Setting(str(n), both) for n in common if (both := dict.fromkeys(loops, n)) != full]
        if not settings:
            raise ValueError("--apart: must be given, as encoder and decoder have no smaller depth in common")
        yield from settings
    yield curve.Setting("+".join(map(str, dict.fromkeys(full.values()))), full)


def translations(model: nn.Module, task: FairseqTask, cfg: Any, batches: Sequence[dict]) -> curve.Evaluation:
    """The score of translations, by fairseq's search and scorer, in the form in which fairseq-generate scores them.

    Args:
        model: in eval mode.
        task: builds the search and the decoders of `--bpe` and `--tokenizer`.
        cfg: the options of fairseq-generate.
        batches: fairseq's samples, with targets.
    """
    generator, words = task.build_generator([model], cfg.generation), task.target_dictionary
    scorer = scoring.build_scorer(cfg.scoring, words)
    parts = task.build_bpe(cfg.bpe), task.build_tokenizer(cfg.tokenizer)
    prefix, ignored = cfg.generation.prefix_size, getattr(generator, "symbols_to_strip_from_output", ())

    def text(tokens: Tensor, is_reference: bool) -> str:
        tokens = utils.strip_pad(tokens, words.pad()).int().cpu()
        # Unknown words of the reference are escaped: none in the hypothesis equals them.
        written = words.string(tokens, cfg.common_eval.post_process, is_reference, extra_symbols_to_ignore=ignored)
        for part in filter(None, parts):
            written = part.decode(written)
        return written

    seconds, outputs = 0.0, []
    for sample in batches:
        start = time.perf_counter()
        given = sample["target"][:, :prefix] if prefix else None
        hypotheses = task.inference_step(generator, [model], sample, prefix_tokens=given)
        seconds += time.perf_counter() - start
        for target, (best, *_) in zip(sample["target"], hypotheses):
            scorer.add_string(text(target, True), text(best["tokens"], False))
            outputs.append(best["tokens"].tolist())
    return curve.Evaluation(scorer.score(), seconds / len(outputs), outputs)


@torch.no_grad()
def perplexity(model: nn.Module, task: FairseqTask, cfg: Any, batches: Sequence[dict]) -> curve.Evaluation:
    """The perplexity of texts, split into blocks by the task; arguments as :func:`translations`, cfg is unused."""
    pad, first = task.target_dictionary.pad(), uncounted(task)
    seconds, loss = 0.0, 0.0
    tokens, texts = 0, 0
    outputs: list[list[int]] = []
    for sample in batches:
        target = sample["target"]
        keep = target.ne(pad)
        keep[:, :first] = False  # as in fairseq-eval-lm, the symbol of --add-bos-token is no prediction
        start = time.perf_counter()
        scores = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)
        outputs += [[token] for token in scores.argmax(-1)[keep].tolist()]  # reading them waits for the GPU
        seconds += time.perf_counter() - start
        loss -= scores.gather(2, target[:, :, None])[:, :, 0][keep].double().sum().item()
        tokens, texts = tokens + int(keep.sum()), texts + len(target)
    return curve.Evaluation(math.exp(loss / tokens), seconds / texts, outputs)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options.get_generation_parser()
    parser.prog, parser.description = "python -m fairseq_plugin.depth", __doc__.split("\n")[0]
    # fairseq's own usage fills a screen before each error.
    parser.usage = "%(prog)s DATA --path CHECKPOINT [options of fairseq-generate and of the curve]"
    add = curve.add_options(parser)
    add("--apart", action="store_true", help="vary the passes of encoder and decoder one at a time")
    parser.set_defaults(scoring="sacrebleu")
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = options.parse_args_and_arch(parser, words)
    try:
        run(args, words)
    except ValueError as error:
        parser.error(str(error))


def run(args: argparse.Namespace, words: Sequence[str]) -> None:
    """Runs the command line, given its options and the words that were typed.

    Raises:
        ValueError: naming the option and the rule.
    """
    if not args.path or ":" in args.path:
        raise ValueError(f"--path={args.path}: must be one checkpoint")
    for name, default in UNSUPPORTED.items():
        value = getattr(args, name)
        if value != default:
            raise ValueError(f"{flag(name)}={value}: not supported here; use fairseq-generate")
    if issubclass(TASK_REGISTRY[args.task], AnswerTask):
        raise ValueError(f"--task={args.task}: not supported here; use fairseq-validate")
    if args.scoring == "bleu":
        raise ValueError("--scoring=bleu: scores tokens; must be sacrebleu or another score of texts")
    cfg = convert_namespace_to_omegaconf(args)
    # The options of the task that are not among the words are those of the checkpoint.
    given = {action.dest: getattr(args, action.dest) for action in given_task_actions(args.task, words)}
    overrides = {**given, **literal(args.model_overrides)}
    (model,), saved, task = checkpoint_utils.load_model_ensemble_and_task([args.path], overrides)
    if isinstance(task, AnswerTask):
        raise ValueError(f"--path={args.path}: was trained with --task {saved.task._name}; use fairseq-validate")
    model.eval()
    settings = list(assignments(model, args.apart))
    if cfg.common.fp16:
        model.half()
    if uses_cuda(cfg):
        model.cuda()
    model.prepare_for_inference_(cfg)
    task.load_dataset(cfg.dataset.gen_subset, task_cfg=saved.task)
    batches = read_batches(cfg, model, task)
    if not batches:
        raise ValueError(f"--gen-subset={cfg.dataset.gen_subset}: has no text to score")
    if batches[0]["target"] is None:
        raise ValueError(f"--gen-subset={cfg.dataset.gen_subset}: has no target side to score against")
    is_text = isinstance(task, LanguageModelingTask)
    score, evaluate = ("perplexity", perplexity) if is_text else (cfg.scoring._name, translations)
    higher_is_better = score not in LOWER_IS_BETTER

    def evaluate_at(passes: Mapping[str, int]) -> curve.Evaluation:
        with at_depths(model, passes):
            return evaluate(model, task, cfg, batches)

    print("trained with", *trained_with(saved) or ["all passes in every update"])
    curve.report(args, settings, evaluate_at, score, higher_is_better)


def given_task_actions(task: str, words: Sequence[str]) -> list[argparse.Action]:
    """The options of a task that are among the words of a command line, and its data."""
    actions, given = parser_of(TASK_REGISTRY[task])._actions, {word.partition("=")[0] for word in words}
    return [action for action in actions if not action.option_strings or given & {*action.option_strings}]


def uses_cuda(cfg: Any) -> bool:
    """Whether fairseq would decode on a GPU."""
    return torch.cuda.is_available() and not cfg.common.cpu


def read_batches(cfg: Any, model: nn.Module, task: FairseqTask) -> list[dict]:
    """The batches that fairseq-generate would make of the whole split, on the device where it would decode."""
    limits = cfg.dataset
    if limits.max_tokens is None and limits.batch_size is None:
        limits.max_tokens = 12000  # fairseq-generate's default
    batches = task.get_batch_iterator(
        task.dataset(limits.gen_subset),
        max_tokens=limits.max_tokens,
        max_sentences=limits.batch_size,
        max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
        ignore_invalid_inputs=limits.skip_invalid_size_inputs_valid_test,
        required_batch_size_multiple=limits.required_batch_size_multiple,
    ).next_epoch_itr(shuffle=False)
    return [utils.move_to_cuda(batch) if uses_cuda(cfg) else batch for batch in batches]


if __name__ == "__main__":
    main()
