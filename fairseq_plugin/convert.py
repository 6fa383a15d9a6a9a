"""Converts a looped model's checkpoint to fairseq's own, a Hugging Face transformer, or ONNX.

Usage::

    python -m fairseq_plugin.convert unshare looped.pt unshared.pt
    python -m fairseq_plugin.convert hf looped.pt FOLDER --sentencepiece-model pieces.model
    python -m fairseq_plugin.convert onnx looped.pt FOLDER --sentencepiece-model pieces.model --int8

See :mod:`fairseq_plugin.export.unshare`, :mod:`~fairseq_plugin.export.hugging_face` and
:mod:`~fairseq_plugin.export.onnx`.
"""

import argparse
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from fairseq.models import ARCH_MODEL_REGISTRY, BaseFairseqModel

from fairseq_plugin.export import hugging_face, upstream
from fairseq_plugin.export.unshare import unshared
from fairseq_plugin.options import ELASTIC, SIDES, ConfiguredModel
from fairseq_repairs.checkpoints import load_safely
from fairseq_repairs.corpus import CORPUS_SIDES, DIGESTS, digest
from recurrence.files import make_folder, new_folder, require_small
from recurrence.weights import command

logger = logging.getLogger("fairseq_plugin.convert")

# Options that fairseq-hydra-train stores with the task.
OF_THE_TASK = ("max_source_positions", "max_target_positions", "tokens_per_sample", "add_bos_token")


def unshare_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint of fairseq's own architecture with the same output as a looped one.

    Raises:
        ValueError: naming the architecture if it is not a looped one, or what fairseq cannot represent.
    """
    args = _looped_options(state)
    args, weights = unshared(upstream.build(args, state["model"]), args)
    options = upstream.readable(_run_options(state, args))
    # Without the optimizer and the rest of the training run.
    return {**state, "model": weights, "args": options, "cfg": None, "last_optimizer_state": None, "extra_state": {}}


def _looped_options(state: dict[str, Any]) -> argparse.Namespace:
    """:func:`_model_options`. Raises ValueError as it does, and for an architecture that is not a looped one."""
    args = _model_options(state)
    if not issubclass(ARCH_MODEL_REGISTRY.get(args.arch, object), ConfiguredModel):
        rule = "must be a looped architecture, of this plugin or of --user-dir; fairseq's own have other converters"
        raise ValueError(f"--arch {args.arch}: {rule}")
    return args


def _model_options(state: dict[str, Any]) -> argparse.Namespace:
    """The options of the model and its run, from either of the places where fairseq's versions store them.

    Raises:
        ValueError: if there are none, or they name no architecture.
    """
    args = state.get("args") or (state.get("cfg") or {}).get("model")
    if not args:
        raise ValueError("IN: has no model options under args or cfg")
    args = argparse.Namespace(**(vars(args) if isinstance(args, argparse.Namespace) else args))
    args.arch = getattr(args, "arch", None) or getattr(args, "_name", None)
    if args.arch is None:
        raise ValueError("IN: its options name no architecture under arch or _name")
    task = _group(state, "task")
    for name in OF_THE_TASK:
        if getattr(args, name, None) is None and task.get(name) is not None:
            setattr(args, name, task[name])
    return args


def _group(state: dict[str, Any], name: str) -> dict[str, Any]:
    """A group of the run's options, such as "task"; {} if there is none."""
    options = (state.get("cfg") or {}).get(name) or {}
    return vars(options) if isinstance(options, argparse.Namespace) else options


def _run_options(state: dict[str, Any], args: argparse.Namespace) -> argparse.Namespace:
    """The options of the model and of its training run under the names of fairseq's commands."""
    values: dict[str, Any] = {}
    for part in ("task", "criterion", "optimizer", "lr_scheduler") if state.get("cfg") else ():
        values |= _group(state, part)
        values[part] = values.pop("_name", None) or values.get(part)
    values |= vars(args)
    if values.get("task") == "shifted_language_modeling":  # differs only in training
        values["task"] = "language_modeling"
    if values.get("criterion") == ELASTIC:  # at one depth, they are equal
        values["criterion"] = "label_smoothed_cross_entropy"
    return argparse.Namespace(**values)


def main(arguments: Sequence[str] | None = None) -> None:
    parser, commands = command.build("python -m fairseq_plugin.convert", __doc__.split("\n")[0], "fairseq")
    hf = command.add_paths(commands.add_parser("hf", help="a translation or ilr_* model, for transformers"))
    onnx = command.add_paths(commands.add_parser("onnx", help="a model of text without adaptive bands, without torch"))
    found = "a dictionary, or its folder (default: the data named in the checkpoint, or if it names none, IN's folder)"
    split = "the sentencepiece model of the training text (default: split at spaces)"
    for kind in commands.choices.values():
        kind.add_argument("--user-dir", metavar="DIR", help="a package whose architectures are registered first")
    for kind in (hf, onnx):
        kind.add_argument("--dictionary", type=Path, metavar="PATH", help=found)
        kind.add_argument("--sentencepiece-model", type=Path, metavar="FILE", help=split)
    onnx.add_argument("--int8", action="store_true", help="store matrices and embeddings in eight bits")
    args = parser.parse_args(arguments)
    try:
        _import_user_dir(args)
        if args.input.resolve() == args.output.resolve():
            raise ValueError(f"OUT={args.output}: must not be IN, which is never overwritten")
        if not args.input.is_file():
            raise ValueError(f"IN={args.input}: no such file")
        state = load_safely(args.input)
        if args.command in ("hf", "onnx"):
            if args.output.exists():
                raise ValueError(f"OUT={args.output}: must not exist yet")
            if args.sentencepiece_model is not None and not args.sentencepiece_model.is_file():
                raise ValueError(f"--sentencepiece-model={args.sentencepiece_model}: no such file")
            require_small(args.sentencepiece_model or "")
            data = args.dictionary or Path(_data(state) or args.input.parent)
            if args.command == "hf":
                write_hugging_face(state, args.output, data, args.sentencepiece_model)
            else:
                write_onnx(state, args.output, data, args.sentencepiece_model, args.int8)
            return
        before, state = state, unshare_checkpoint(state)
        make_folder(args.output.parent)
    except (ValueError, OSError) as error:
        parser.error(re.sub(r"^IN:", lambda _: f"IN={args.input}:", str(error)))
    checkpoint_utils.torch_persistent_save(state, str(args.output))
    layers = {tensor.data_ptr() for name, tensor in state["model"].items() if name.endswith("fc1.weight")}
    logger.info("wrote %s (--arch %s)", args.output, _model_options(state).arch)
    logger.info(_sizes(before, args.output, len(layers)))


def _import_user_dir(args: argparse.Namespace) -> None:
    """Raises ValueError, naming the option, if it cannot be imported."""
    try:
        utils.import_user_module(args)
    except (ImportError, OSError, ValueError) as error:
        reason = "no such folder" if isinstance(error, FileNotFoundError) else error
        raise ValueError(f"--user-dir={args.user_dir}: {reason}") from None


def write_hugging_face(state: dict[str, Any], folder: Path, dictionary: Path, pieces: Path | None) -> None:
    """Writes a checkpoint as a folder for transformers, atomically.

    Args:
        state: a checkpoint of a looped model.
        folder: must not exist.
        dictionary: the dictionary, or the folder of the binarized data.
        pieces: the sentencepiece model of the training text; None if it was split at spaces.

    Raises:
        ValueError: naming the option, the file or the architecture.
    """
    with new_folder(folder) as new:
        args = _looped_options(state)
        model = upstream.build(args, state["model"])
        config, weights = hugging_face.converted(model, args)
        dictionaries = _load_dictionaries(state, dictionary, model)
        _warn_of_other_pieces(dictionaries, pieces)
        hugging_face.write(new, config, weights, dictionaries, pieces)
    layers = [name for name in weights if name.endswith(("fc1.weight", "up_proj.weight"))]
    logger.info("wrote %s (%s)", folder, config["architectures"][0])
    if config["model_type"] == "fsmt":
        logger.info("needs transformers 5 or later: version 4 silently ties the output matrix to the embedding")
    logger.info(_sizes(state, folder, len(layers)))


def write_onnx(state: dict[str, Any], folder: Path, dictionary: Path, pieces: Path | None, int8: bool) -> None:
    """As :func:`write_hugging_face`, for :mod:`fairseq_plugin.serve`; int8: with weights in eight bits.

    Raises:
        ValueError: naming the option, the file or the architecture, or what is not installed.
    """
    try:
        from fairseq_plugin.export import onnx  # imported here because others need neither onnx nor onnxruntime
    except ImportError as error:
        raise ValueError(f"{error}: pip install onnx onnxscript onnxruntime") from None
    with new_folder(folder) as new:
        args = _looped_options(state)
        model = upstream.build(args, state["model"])
        onnx.check(model, args)
        dictionaries = _load_dictionaries(state, dictionary, model)
        _warn_of_other_pieces(dictionaries, pieces)
        onnx.write(model, args, new, dictionaries, pieces, int8)
    logger.info("wrote %s", folder)
    logger.info(_sizes(state, folder))


def _sizes(state: dict[str, Any], path: Path, layers: int = 0) -> str:
    """The bytes of a checkpoint's weights and of what was written, with this number of stored layers."""
    blocks = [name for name in state["model"] if name.endswith((".up.weight", ".gate_up.weight"))]
    return command.sizes(command.stored_bytes(state["model"].values()), path, layers <= len(blocks))


def _data(state: dict[str, Any]) -> str:
    """The first folder of the data with which a model was trained; "" if the checkpoint names none."""
    return str(vars(_run_options(state, _model_options(state))).get("data") or "").split(os.pathsep)[0]


def _load_dictionaries(state: dict[str, Any], data: Path, model: BaseFairseqModel) -> list[Dictionary]:
    """A model's dictionaries, the source's first.

    Raises:
        ValueError: naming a file that is missing, or is no dictionary, or not the one of the model's training.
    """
    if not data.exists():
        named = ": the checkpoint names it; give another place, or run where it is" if str(data) == _data(state) else ""
        raise ValueError(f"--dictionary={data}: no such file or folder{named}")
    numbered = [getattr(model, side).dictionary for side in SIDES if hasattr(model, side)]
    if not data.is_dir():
        paths = [data] * len(numbered)
    elif len(numbered) == 1:
        paths = [data / "dict.txt"]
    else:
        options = vars(_run_options(state, _model_options(state)))
        pair = options.get("source_lang"), options.get("target_lang")
        pair = pair if all(pair) else infer_language_pair(data)
        if not all(pair):
            rule = "has no binarized data, whose file names give the languages; must be a dictionary file"
            raise ValueError(f"--dictionary={data}: {rule}")
        paths = [data / f"dict.{language}.txt" for language in pair]
    for path in paths:
        if not path.is_file():
            raise ValueError(f"--dictionary={path}: no such file")
    try:
        dictionaries = [Dictionary.load(str(path)) for path in paths]
    except ValueError as error:
        raise ValueError(f"--dictionary={error}") from None
    for side, path, dictionary, symbols in zip(CORPUS_SIDES, paths, dictionaries, map(len, numbered)):
        if len(dictionary) != symbols:
            raise ValueError(f"--dictionary={path}: has {len(dictionary)} symbols: must have the model's {symbols}")
        trained = state.get(DIGESTS, {}).get(side)  # which fairseq alone does not store
        if trained is not None and trained != digest(dictionary):
            rule = "must be the one of the model's training; its symbols or their order differ"
            raise ValueError(f"--dictionary={path}: {rule}")
    return dictionaries


def _warn_of_other_pieces(dictionaries: Sequence[Dictionary], pieces: Path | None) -> None:
    """Warns of a sentencepiece model that lacks a fifth of a dictionary's symbols, so is that of other data.

    Raises:
        ValueError: if the file is not a sentencepiece model.
    """
    if pieces is None:
        return
    model = hugging_face.load_pieces(pieces)
    known = {model.id_to_piece(number) for number in range(len(model))}
    for dictionary in dictionaries:
        symbols = [symbol for symbol in dictionary.symbols[dictionary.nspecial :] if "madeupword" not in symbol]
        shared = len(known.intersection(symbols))
        if shared < 0.8 * len(symbols):
            logger.warning(
                f"--sentencepiece-model={pieces}: has only {shared} of the dictionary's {len(symbols)} symbols; "
                "is it the model that segmented the training text?"
            )
            return


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.INFO, force=True)
    main()
