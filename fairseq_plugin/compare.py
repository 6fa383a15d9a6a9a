"""Compare a looped model with unshared ones of equal storage, operations and training time.

Usage::

    python -m fairseq_plugin.compare DATA --output DIR --seeds 1,2,3 --arch ringformer_base [flags of fairseq-train]

The flags describe the looped model; the other rows are derived from it. fairseq-train trains all rows with every seed.
fairseq-generate scores translations (BLEU) and transcripts (word error rate), fairseq-eval-lm texts (perplexity). What
has finished is not repeated: the same command continues an interrupted comparison.
"""

import argparse
import copy
import itertools
import math
import os
import re
import shlex
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch
from fairseq import options, tasks
from fairseq.data.iterators import GroupedIterator
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.trainer import Trainer
from torch import nn

import fairseq_plugin
from fairseq_plugin.controls import TextControls
from fairseq_plugin.depth import given_task_actions
from fairseq_plugin.elastic import ElasticCrossEntropy, shown_flag
from fairseq_plugin.options import ConfiguredModel, flag
from fairseq_repairs.checkpoints import load_safely
from recurrence.comparison.command import Comparison, add_options, compare, python_step, with_rate, without
from recurrence.comparison.rows import Length, Row, Score, counted
from recurrence.comparison.runs import Step, Values

USER_DIR = str(Path(fairseq_plugin.__file__).parent)
TOKENS, FRAMES = 32, 512  # of the example over which operations are counted
SCORES = {"translation": ("BLEU", True), "language_modeling": ("perplexity", False), "speech_to_text": ("WER", False)}
SCORERS = {"translation": ("sacrebleu", "bleu"), "speech_to_text": ("wer",)}  # by task, the default first
UPSTREAM = ("fairseq.checkpoint_utils", "fairseq.models", "fairseq.tasks", "fairseq.trainer", "sacrebleu")
WARM_UP, TIMED = 2, 5  # updates
BATCHES = 20  # of a part of the test set
# fairseq's last line about a test set.
RESULT = re.compile(r"Generate \S+ with beam=\d+: (?:BLEU4? = |WER: )?([\d.]+|nan)")
DECODED = re.compile(r"(?:Translated|Evaluated) .*? in ([\d.]+)s")
PERPLEXITY = re.compile(r"Loss \(base 2\): \S+, Perplexity: ([\d.]+|nan|inf)")
RESERVED = {
    "seed": "is set by --seeds",
    "save_dir": "is set by --output",
    "no_save": "would leave nothing to score",
    "no_last_checkpoints": "would leave nothing to continue from",
    "no_save_optimizer_state": "would leave nothing to continue from",
    **dict.fromkeys(
        ("reset_optimizer", "reset_meters", "reset_dataloader", "reset_lr_scheduler"),
        "would start anew where an interrupted training continues",
    ),
    "checkpoint_suffix": "would hide the checkpoints",
    "finetune_from_model": "has the weights of one row",
    "restore_file": "has the weights of one row",
    "continue_once": "has the weights of one row",  # fairseq 0.12.2 lacks it
}
# Options of schedules, in updates, that timed rows stretch; --warmup-updates stays as given.
IN_UPDATES = ("total_num_update", "lr_period_updates", "lr_deacy_period", "warmup_steps", "hold_steps", "decay_steps")
COSINE = "cosine", "lr_period_updates"


class TextComparison(Comparison):
    """Rows of fairseq-train.

    Args:
        args: all options, checked by fairseq's parser.
        words: the command line of the trainer.
    """

    length = "updates"
    diverged = re.compile("is no longer a finite number")  # see fairseq_repairs/messages.py

    def __init__(self, args: Namespace, words: Sequence[str]):
        self.args, self.words = args, list(words)
        _check(args)
        subset = _check_scoring(args, self.words).gen_subset
        self.task = set_up_task(args, subset)
        self.part = part_of_test(args, len(self.task.dataset(subset)))
        looped = self.task.build_model(copy.copy(args))
        self.controls = TextControls(args, words, looped, self._build)
        if self.controls.blocks == self.controls.passes:
            raise ValueError(f"--arch={args.arch}: runs each of its blocks once; must be a looped model")
        check_training(args, self.task, looped)

    @property
    def imports(self) -> Sequence[str]:
        """On a CPU, fairseq's modules without the plugin, whose repairs depend on the command; on a GPU, none."""
        return UPSTREAM if self.args.cpu or not torch.cuda.is_available() else ()

    @property
    def score(self) -> Score:
        example = f"{TOKENS} + {TOKENS} tokens"
        if self.args.task == "language_modeling":
            example = f"{self.args.tokens_per_sample} tokens"
        elif self.args.task == "speech_to_text":
            example = f"{FRAMES} frames, {TOKENS} tokens"
        return Score(*SCORES[self.args.task], example, "decoding")

    def _build(self, words: Sequence[str], device: str = "meta") -> nn.Module:
        with torch.device(device):
            return self.task.build_model(parse(words))

    def row(self, name: str, words: Sequence[str]) -> Row:
        model = self._build(words, "cpu").eval()
        inputs = self._example(model)
        return counted(name, words, model, lambda: model(*inputs))

    def _example(self, model: nn.Module) -> tuple[torch.Tensor, ...]:
        """The inputs of a forward pass over one example, whose operations are counted."""
        target = self.task.target_dictionary.eos()
        if self.args.task == "language_modeling":
            return (torch.full((1, self.args.tokens_per_sample), target),)
        tokens = torch.full((1, TOKENS), target)
        if self.args.task == "speech_to_text":
            return torch.zeros(1, FRAMES, model.encoder.inputs.features), torch.tensor([FRAMES]), tokens
        return torch.full((1, TOKENS), self.task.source_dictionary.eos()), torch.tensor([TOKENS]), tokens

    def steps(self, row: Row, seed: int, folder: Path, length: Length | None = None) -> list[Step]:
        checkpoints, flags = folder / "checkpoints", [*row.flags, *self._lasting(length)]
        of_run = ["--user-dir", user_dir(self.args), "--seed", seed, "--save-dir", checkpoints]
        best = checkpoints / ("checkpoint_last.pt" if self.args.disable_validation else "checkpoint_best.pt")
        # By default, fairseq takes every GPU. A row's own flags come later, so they may ask for more than one process.
        one = ["--distributed-world-size", "1"]
        train = ["fairseq_cli.train", *one, *flags, *of_run]
        return [python_step("train", train, flags, self._trained), self._scoring(best)]

    def _lasting(self, length: Length | None) -> list[str]:
        """Flags of a training that ends at that length and for no other reason, with its schedule in proportion."""
        if length is None:
            return []
        flags = ["--max-epoch", "0", "--max-update", str(length.total)]
        for name, off in (("patience", -1), ("stop_time_hours", 0)):
            if getattr(self.args, name) > 0:
                flags.append(f"{flag(name)}={off}")
        for name, value in self._schedule(length).items():
            # A cosine's period begins after the warm-up, which stays as given; others begin with the first update.
            before = self.args.warmup_updates if (self.args.lr_scheduler, name) == COSINE else 0
            flags.append(f"{flag(name)}={round((before + value) * length.stretch) - before}")
        return flags

    def _schedule(self, length: Length) -> dict[str, float]:
        """The options of the schedule that count updates, see IN_UPDATES.

        A cosine that ends with --max-update has none. If the control ended before (--max-epoch, --patience), it has the
        one that means the same.
        """
        args = self.args
        given = {name: float(getattr(args, name, None) or 0) for name in IN_UPDATES}
        found = {name: value for name, value in given.items() if value > 0}
        if args.lr_scheduler == "cosine" and length.total < round((args.max_update or 0) * length.stretch):
            found.setdefault("lr_period_updates", args.max_update - args.warmup_updates)
        return found

    def _trained(self, folder: Path, _: str) -> Values:
        """Updates, the seconds that they took in all calls, without validation and saving, and the best validation."""
        saved = load_safely(folder / "checkpoints" / "checkpoint_last.pt")
        meters = {key: state for _, key, _, state in saved["extra_state"]["metrics"]["default"]}
        found = {"updates": saved["optimizer_history"][-1]["num_updates"], "seconds": meters["train_wall"]["sum"]}
        if "wpb" in meters:  # of a criterion that counts tokens
            found["tokens/s"] = meters["wpb"]["sum"] / found["seconds"]
        best = saved["extra_state"].get("best")
        if best is not None:
            found["validation"] = -best if self.args.maximize_best_checkpoint_metric else best
        return found

    def seconds(self, row: Row) -> float:
        args = parse(row.flags)
        update, of_epoch = time_of_update(args)
        return update * min(args.max_update or math.inf, (args.max_epoch or math.inf) * of_epoch)

    def _scoring(self, checkpoint: Path) -> Step:
        """The step that decodes a test set."""
        is_text, flags = self.args.task == "language_modeling", [*scoring_flags(self.args, self.words), *self.part]
        program = "fairseq_cli.eval_lm" if is_text else "fairseq_cli.generate"

        def read(folder: Path, log: str) -> Values:
            score, seconds = (PERPLEXITY if is_text else RESULT).search(log), DECODED.search(log)
            if score is None or seconds is None:
                raise ValueError("has no score")
            return {"score": float(score[1]), "decoding": float(seconds[1])}

        return python_step("score", [program, *flags, "--path", checkpoint], flags, read)


def parse(words: Sequence[str]) -> Namespace:
    """The options of fairseq-train's command line."""
    return options.parse_args_and_arch(options.get_training_parser(), list(words))


def user_dir(args: Namespace) -> str:
    """The given one, which imports this package, or this package."""
    return args.user_dir or USER_DIR


def task_flags(args: Namespace, words: Sequence[str]) -> list[str]:
    """The options of the task that are among the words."""
    flags = []
    for action in given_task_actions(args.task, words):
        if action.option_strings:
            value = "" if action.nargs == 0 else f"={getattr(args, action.dest)}"
            flags.append(action.option_strings[0] + value)
    return flags


def _check(args: Namespace) -> None:
    """Raises ValueError for options that the comparison sets, and for models and tasks that it cannot compare."""
    model = ARCH_MODEL_REGISTRY.get(args.arch)
    if model is None or not issubclass(model, ConfiguredModel):
        raise ValueError(f"--arch={args.arch}: must be a looped model of this plugin")
    model.unshared(args, {"encoder": 1, "decoder": 1})  # raises ValueError if nothing loops over depth
    if args.task not in SCORES:
        raise ValueError(f"--task={args.task}: must be one of {', '.join(SCORES)}")
    if args.task in SCORERS and os.pathsep in args.output:
        raise ValueError(
            f"--output={args.output}: must have no {os.pathsep!r}, at which fairseq-generate splits --path"
        )
    if args.rates and args.disable_validation:
        raise ValueError("--disable-validation: leaves --rates nothing to choose by")
    if args.score_sentences is not None:
        if args.score_sentences < 1:
            raise ValueError(f"--score-sentences={args.score_sentences}: must be >= 1")
        if args.task not in SCORERS:
            raise ValueError(
                f"--score-sentences={args.score_sentences}: conflicts with --task={args.task}, which decodes nothing"
            )
    defaults = options.get_training_parser()
    for name, rule in RESERVED.items():
        if (given := getattr(args, name, None)) != defaults.get_default(name):
            raise ValueError(f"{shown_flag(name, given)}: {rule}")


def scoring_flags(args: Namespace, words: Sequence[str]) -> list[str]:
    """The command line of fairseq-generate or fairseq-eval-lm, less the checkpoint."""
    flags = [args.data, "--task", args.task, *task_flags(args, words), "--user-dir", user_dir(args)]
    flags += ["--gen-subset", "test", "--required-batch-size-multiple", "1", *(["--cpu"] if args.cpu else [])]
    if args.task in SCORERS:
        flags += ["--scoring", SCORERS[args.task][0], "--quiet"]
    return flags + shlex.split(args.score)


def part_of_test(args: Namespace, sentences: int) -> list[str]:
    """The flags of fairseq-generate that decode about as many of the sentences as `--score-sentences` says.

    Batches are sorted by length, and every nth is decoded, as by the first of n processes.
    """
    if args.score_sentences is None:
        return []
    batch, every = max(1, args.score_sentences // BATCHES), max(1, round(sentences / args.score_sentences))
    return ["--batch-size", str(batch), "--distributed-world-size", str(every)]


def _check_scoring(args: Namespace, words: Sequence[str]) -> Namespace:
    """The options that score; fairseq's parser has checked them.

    Raises:
        ValueError: for those of `--score` that the comparison sets.
    """
    parser = options.get_generation_parser() if args.task in SCORERS else options.get_eval_lm_parser()
    parser.prog = parser.usage = "--score"
    given = options.parse_args_and_arch(parser, scoring_flags(args, words))
    for name in ("path", "model_overrides"):
        if getattr(given, name) != parser.get_default(name):
            raise ValueError(f"--score: {flag(name)}={getattr(given, name)}: is set by the comparison")
    scorers = SCORERS.get(args.task, (given.scoring,))
    if given.scoring not in scorers:
        raise ValueError(f"--score: --scoring={given.scoring}: must be {' or '.join(scorers)}")
    return given


def set_up_task(args: Namespace, subset: str) -> FairseqTask:
    """The task with its dictionaries; that set of its data is there.

    Raises:
        ValueError: if a file of the data is missing.
    """
    cfg = convert_namespace_to_omegaconf(args)
    try:
        task = tasks.setup_task(cfg.task)
        task.load_dataset(subset, task_cfg=cfg.task)
    except (FileNotFoundError, IndexError) as error:
        raise ValueError(f"DATA={args.data}: {error}") from None
    if getattr(task.cfg, "eval_bleu", False):
        task.cfg.eval_bleu = False  # would build a generator with each model
    return task


def check_training(args: Namespace, task: FairseqTask, model: nn.Module) -> None:
    """Builds the criterion, the optimizer and the schedule with fairseq's trainer, so that its errors come first.

    Raises:
        ValueError: where fairseq asserts that options go together.
    """
    cfg = convert_namespace_to_omegaconf(args)
    cfg.distributed_training.distributed_world_size = 1
    try:
        criterion = task.build_criterion(cfg.criterion)
        Trainer(cfg, task, model, criterion).lr_step_begin_epoch(1)
    except AssertionError as error:
        raise ValueError(f"fairseq-train: {error}") from None
    if isinstance(criterion, ElasticCrossEntropy) and criterion.given:
        criterion.training_depths(model)  # which training would only check in its first update


def time_of_update(args: Namespace) -> tuple[float, int]:
    """Seconds of an update of fairseq-train with these options on this machine, and how many an epoch has."""
    cfg = convert_namespace_to_omegaconf(args)
    cfg.distributed_training.distributed_world_size = 1
    task = set_up_task(args, args.train_subset)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    batches = trainer.get_train_iterator(1, load_dataset=False).next_epoch_itr()
    updates, taken = GroupedIterator(batches, args.update_freq[0]), []
    trainer.begin_epoch(1)
    for samples in itertools.islice(updates, WARM_UP + TIMED):
        begin = time.perf_counter()
        trainer.train_step(samples, raise_oom=True)  # otherwise fairseq skips a batch that does not fit
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[WARM_UP:] or taken), len(updates)


def command_line() -> argparse.ArgumentParser:
    """fairseq-train's options, and those of the comparison."""
    parser = options.get_training_parser()
    parser.prog, parser.description = "python -m fairseq_plugin.compare", __doc__.split("\n")[0]
    parser.usage = "%(prog)s DATA --output DIR --seeds N,N,N [options of the comparison] [options of fairseq-train]"
    _add_own_options(parser)
    return parser


def _add_own_options(parser: argparse.ArgumentParser) -> None:
    group = add_options(parser)
    group.add_argument(
        "--score", default="", metavar="FLAGS", help="further flags of fairseq-generate or fairseq-eval-lm, in quotes"
    )
    fewer = "decode about as many of the test set, of all lengths, in place of all"
    group.add_argument("--score-sentences", type=int, metavar="N", help=fewer)


def main(arguments: Sequence[str] | None = None) -> None:
    parser, words = command_line(), with_rate(sys.argv[1:] if arguments is None else arguments)
    args = options.parse_args_and_arch(parser, words)
    try:
        compare(TextComparison(args, without(words, _add_own_options)), args)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
