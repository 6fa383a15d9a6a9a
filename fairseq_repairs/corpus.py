"""Corpora: with two sides of equal length, and numbered by the model's dictionary."""

import contextlib
import hashlib
import logging
import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fairseq import checkpoint_utils
from fairseq.binarizer import BinarizeSummary, FileBinarizer
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

from fairseq_repairs.files import bounded_lines
from fairseq_repairs.replace import after, before, instead

logger = logging.getLogger(__name__)

SURROGATE = re.compile("[\udc80-\udcff]")  # a byte that is not UTF-8
MOST_UNKNOWN = 2  # percent
CORPUS_SIDES = ("source", "target")
DIGESTS = "dictionaries"  # their key in a checkpoint
LOADED: list[tuple[str, dict[str, list]]] = []  # path and digests of each checkpoint that is being loaded


@before("fairseq_cli.preprocess", "main")
def reject_unequal_sides(args: Namespace) -> None:
    """Lets fairseq-preprocess reject sides of unequal length, missing sides and empty training sets.

    fairseq writes sides of unequal length, whose lines no longer form pairs after the first extra line.
    """
    languages = [args.source_lang] if args.only_source else [args.source_lang, args.target_lang]
    for option in () if args.dict_only else ("trainpref", "validpref", "testpref"):
        given = getattr(args, option) or ""
        for prefix in [given] if option == "trainpref" else given.split(","):  # of a training set, there is just one
            if prefix:
                _check_sides(option, [f"{prefix}.{name}" if name else prefix for name in languages])


@instead("fairseq_cli.preprocess", "main")
def explain_unwritable_files(main: Callable, args: Namespace) -> None:
    """Names the folder when the disk is full, and says what to do about a dictionary that is already there.

    The system's error of a full disk has no name, and fairseq's error of a dictionary is nothing but its name.
    """
    try:
        main(args)
    except OSError as error:
        if isinstance(error, FileExistsError) and error.errno is None:  # fairseq's own
            rule = "must not exist yet: remove it, or give it as --srcdict or --tgtdict"
            raise FileExistsError(f"--destdir={args.destdir}: {error}: {rule}") from None
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, args.destdir) from error


def _check_sides(option: str, paths: list[str]) -> None:
    counts = {}
    for path in paths:
        if not os.path.isfile(path):
            raise FileNotFoundError(f"--{option}: {path}: no such file")
        try:
            with open(path, encoding="utf-8") as file:  # as fairseq: a carriage return ends a line, too
                counts[path] = sum(1 for _ in bounded_lines(file, f"--{option}: {path}"))
        except UnicodeDecodeError:
            raise ValueError(f"--{option}: {path}, line {_undecodable(path)}: must be UTF-8") from None
    found = ", ".join(f"{path} has {count} {'line' if count == 1 else 'lines'}" for path, count in counts.items())
    if len(set(counts.values())) > 1:
        raise ValueError(f"--{option}: {found}: both sides must have the same number")
    if option == "trainpref" and not all(counts.values()):
        raise ValueError(f"--{option}: {found}: must have at least one")


def _undecodable(path: str) -> int:
    """The number of the first line that is not UTF-8."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return next(number for number, line in enumerate(file, 1) if SURROGATE.search(line))


@after(FileBinarizer, "multiprocess_dataset")
def warn_of_unknown_words(found: BinarizeSummary, kind: type, input_file: str, *args, **kwargs) -> None:
    """Warns of a text with many words that its dictionary does not have, which fairseq only counts.

    It may be raw where the training set has pieces, or have pieces of another model.
    """
    if found.num_tok and found.replaced:
        warn_if_unknown(input_file, found.replaced_percent, found.replaced)


def warn_if_unknown(name: str, percent: float, words: Iterable[str]) -> None:
    """Warns of a text of whose words so many percent are not in its dictionary, if those are many; and names one."""
    if percent > MOST_UNKNOWN:
        logger.warning(
            f"{name}: {percent:.1f} % of its words are not in the dictionary, such as {next(iter(words))}: is it raw "
            "text, or cut into pieces by another model than the training text?"
        )


@after(Trainer, "state_dict")
def store_dictionary_digests(state: dict[str, Any], trainer: Trainer) -> None:
    """Stores digests of the dictionaries in every checkpoint, for :func:`require_same_dictionaries`."""
    state[DIGESTS] = digests(trainer.task)


@before(checkpoint_utils, "load_model_ensemble_and_task")
@before(Trainer, "load_checkpoint")
def forget_digests(*args, **kwargs) -> None:
    """Forgets the digests of checkpoints that were loaded before."""
    LOADED.clear()


@after(checkpoint_utils, "load_checkpoint_to_cpu")
def note_digests(state: dict[str, Any], path: Any, *args, **kwargs) -> None:
    """Notes the digests of a checkpoint that is being loaded."""
    if DIGESTS in state:
        LOADED.append((str(path), state[DIGESTS]))


@after(checkpoint_utils, "load_model_ensemble_and_task")
def require_same_dictionaries(loaded: tuple[list, Any, FairseqTask], filenames, overrides=None, task=None, *args, **kw):
    """Rejects a checkpoint whose digests are not those of the data's dictionaries.

    fairseq accepts any dictionary of the right length; in another order, it makes the model produce wrong words.
    Without a given task, the data are those of an ensemble's first model.
    """
    differing = _differing(loaded[-1], LOADED if task is not None else LOADED[:1])
    if differing:
        raise ValueError(differing)


@after(checkpoint_utils, "load_model_ensemble_and_task")
def warn_of_other_beginnings(loaded: tuple[list, Any, FairseqTask], filenames: list[str], *args, **kwargs) -> None:
    """Warns if texts begin with another symbol than in training, because each command has its own `--add-bos-token`."""
    _, cfg, task = loaded
    trained, given = (getattr(options, "add_bos_token", False) for options in (cfg.task, getattr(task, "args", None)))
    if trained and not given:
        logger.warning(f"{filenames[-1]}: was trained with --add-bos-token, which this command does not have")
    if given and not trained:
        logger.warning(f"{filenames[-1]}: was trained without --add-bos-token, which this command has")


@after(Trainer, "load_checkpoint")
def resume_with_same_dictionaries(
    extra: dict[str, Any] | None, trainer: Trainer, filename: str, reset_optimizer: bool = False, *args, **kwargs
) -> None:
    """The same for a training that resumes; where the optimizer does not, as in fine-tuning, a warning is enough."""
    differing = _differing(trainer.task, LOADED)
    if differing and not reset_optimizer:
        raise ValueError(differing)
    if differing:
        logger.warning(differing)


@before(SequenceGenerator, "__init__")
def require_same_symbols_of_fusion(
    search: Any, models: Any, tgt_dict: Any, *args, lm_model=None, lm_weight=1.0, **kwargs
) -> None:
    """Rejects an `--lm-path` that is not a language model, or whose dictionary is not the target's.

    fairseq adds up the scores of symbols that only have the same number. Without `--lm-weight`, it multiplies those of
    the language model by 0; a warning says so.
    """
    if lm_model is not None and lm_weight == 0:
        logger.warning("--lm-path: the language model has no effect with --lm-weight 0, the default")
    if lm_model is not None and hasattr(lm_model, "encoder"):
        raise ValueError("--lm-path: must be a language model, without an encoder")
    known = getattr(getattr(lm_model, "decoder", None), "dictionary", tgt_dict)
    if known != tgt_dict:
        raise ValueError("--lm-path: the data's dict.txt, which numbers its symbols, must be the target's dictionary")


@after(SequenceGenerator, "__init__")
def end_with_positions_of_fusion(
    built: None, search: SequenceGenerator, models: Any, tgt_dict: Any, *args, lm_model=None, **kwargs
) -> None:
    """Ends outputs where the positions of `--lm-path` end; fairseq asks only the translation models, and then fails."""
    if lm_model is not None:
        search.max_len = min(search.max_len, lm_model.max_positions())


def digests(task: FairseqTask) -> dict[str, list]:
    """The :func:`digest` of each of a task's dictionaries, by its side or language."""
    return {name: digest(known) for name, known in _dictionaries(task) if isinstance(known, Dictionary)}


def digest(dictionary: Dictionary) -> list:
    """Its length, and the SHA-256 of its symbols in order."""
    symbols = "\n".join(dictionary[index] for index in range(len(dictionary)))
    return [len(dictionary), hashlib.sha256(symbols.encode()).hexdigest()]


def _dictionaries(task: FairseqTask) -> Iterator[tuple[str, Any]]:
    """A multilingual task's dictionaries by language: the languages of its two sides change. Otherwise by side."""
    if isinstance(languages := getattr(task, "dicts", None), dict):
        yield from languages.items()
        return
    for side in CORPUS_SIDES:
        with contextlib.suppress(NotImplementedError):  # raised by fairseq's tasks without such a dictionary
            yield side, getattr(task, f"{side}_dictionary", None)


def _differing(task: FairseqTask, loaded: list[tuple[str, dict[str, list]]]) -> str | None:
    """Names a dictionary of a checkpoint's length, but with other symbols or in another order."""
    ours = digests(task)
    for path, theirs in loaded:
        for name in sorted(ours.keys() & theirs.keys()):
            if ours[name][0] == theirs[name][0] and ours[name] != theirs[name]:
                return (
                    f"{path}: was trained with another {name} dictionary than that of the data: of equal length, but "
                    "with other symbols or in another order"
                )
    return None
