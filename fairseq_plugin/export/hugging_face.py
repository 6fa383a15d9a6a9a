"""Conversion to folders that Hugging Face's transformers reads without this plugin; every pass becomes a layer.

A language model of Intra-Layer Recurrence becomes a `LlamaForCausalLM`. A translation model is unshared and becomes an
`FSMTForConditionalGeneration`, that library's version of fairseq's transformer, with fairseq's parameter names.

Both run each layer once, and a tensor in safetensors cannot have two names, so a block that runs four times is stored
four times.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from fairseq_plugin.export.unshare import unshared
from fairseq_plugin.export.upstream import max_positions
from fairseq_plugin.models.ilr import IntraLayerRecurrence
from fairseq_plugin.options import SIDES, flag
from fairseq_plugin.published.language import ilr_layer
from fairseq_plugin.seq2seq import LoopedTransformer
from recurrence.files import make_folder, write_text
from recurrence.weights.names import to_theirs

Converted = tuple[dict[str, Any], dict[str, Tensor]]  # the configuration and the weights
# As fairseq-generate's: at least one symbol and at most LONGEST, besides the first one and the end.
SEARCH, LONGEST = dict(num_beams=5, early_stopping=True, min_length=2), 200


def converted(model: BaseFairseqModel, args: argparse.Namespace) -> Converted:
    """The configuration and the weights of a trained model with these options.

    Raises:
        ValueError: naming the architecture or option that neither library class can represent.
    """
    if isinstance(model, LoopedTransformer) and model.reads_text:
        return as_fsmt(model, args)
    return as_llama(model, args)


def as_llama(model: BaseFairseqModel, args: argparse.Namespace) -> Converted:
    """As :func:`converted`, for a language model."""
    if not isinstance(model, IntraLayerRecurrence):
        raise ValueError(
            f"--arch {args.arch}: must be ilr_small, ilr_large or a translation model; transformers has no other blocks"
        )
    if model.position_kind(args) != "rotary":
        raise ValueError(f"--position={args.position}: must be rotary, the only positions of LlamaForCausalLM")
    if not model.decoder.stack.loop.blocks[0].sublayer.pre_norm:
        raise ValueError("--post-norm: the layers of LlamaForCausalLM are pre-norm")
    if model.decoder.inputs.scale != 1:
        raise ValueError("no_scale_embedding=False: LlamaForCausalLM does not scale its embedding")
    loop = model.decoder.stack.loop
    if loop.inject:
        raise ValueError("--inject-embedding: a layer of LlamaForCausalLM only reads the layer before it")
    embedding, symbols = model.decoder.embed_tokens, model.decoder.dictionary
    weights = {"model.embed_tokens.weight": embedding.weight, "model.norm.weight": model.decoder.stack.norm.weight}
    for layer, which in enumerate(loop.order):
        weights |= to_theirs(loop.state_dict(), ilr_layer(f"model.layers.{layer}", f"blocks.{which}"))
    config = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        bos_token_id=symbols.bos() if getattr(args, "add_bos_token", False) else symbols.eos(),
        vocab_size=embedding.num_embeddings,
        hidden_size=args.decoder_embed_dim,
        intermediate_size=args.decoder_ffn_embed_dim,
        num_hidden_layers=loop.passes,
        num_attention_heads=args.decoder_attention_heads,
        num_key_value_heads=args.decoder_attention_heads,
        hidden_act="silu",
        rms_norm_eps=model.decoder.stack.norm.eps,
        rope_theta=10000.0,
        max_position_embeddings=max_positions(args, "target"),
        tie_word_embeddings=True,  # as in every ilr_* model
        torch_dtype=str(embedding.weight.dtype).removeprefix("torch."),
    )
    return config, {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}


def as_fsmt(model: BaseFairseqModel, args: argparse.Namespace) -> Converted:
    """As :func:`converted`, for a translation model."""
    options, weights = unshared(model, args)
    _check_fsmt(options)
    matrix = weights["decoder.embed_tokens.weight"]
    pad = model.encoder.embed_tokens.padding_idx
    rows = max_positions(options, "source")
    table = SinusoidalPositionalEmbedding.get_embedding(rows + pad + 1, options.encoder_embed_dim, pad).to(matrix.dtype)
    weights = {**{f"{side}.embed_positions.weight": table for side in SIDES}, **weights}
    config = dict(
        architectures=["FSMTForConditionalGeneration"],
        model_type="fsmt",
        langs=[getattr(options, f"{side}_lang", None) or side for side in ("source", "target")],
        src_vocab_size=len(weights["encoder.embed_tokens.weight"]),
        tgt_vocab_size=len(matrix),
        d_model=options.encoder_embed_dim,
        **{f"{side}_layers": getattr(options, f"{side}_layers") for side in SIDES},
        **{f"{side}_attention_heads": getattr(options, f"{side}_attention_heads") for side in SIDES},
        **{f"{side}_ffn_dim": getattr(options, f"{side}_ffn_embed_dim") for side in SIDES},
        activation_function=options.activation_fn,
        max_position_embeddings=rows,
        scale_embedding=not options.no_scale_embedding,
        tie_word_embeddings=options.share_all_embeddings,
        **{name: getattr(options, name) for name in ("dropout", "attention_dropout", "activation_dropout")},
        torch_dtype=str(matrix.dtype).removeprefix("torch."),
    )
    dropped = {"encoder.version", "decoder.version"}
    if options.share_all_embeddings:
        dropped |= {"encoder.embed_tokens.weight", "decoder.output_projection.weight"}
    kept = {f"model.{key}": tensor for key, tensor in weights.items() if key not in dropped}
    return config, {name: tensor.detach().clone().contiguous() for name, tensor in kept.items()}


def _check_fsmt(options: argparse.Namespace) -> None:
    """Raises ValueError, naming the option, for what fairseq's transformer has and FSMT cannot represent."""
    absent = {
        "encoder_normalize_before": "its layers are post-norm",
        "decoder_normalize_before": "its layers are post-norm",
        "layernorm_embedding": "it has no LayerNorm on its embedding",
        "no_token_positional_embeddings": "it adds positions to its embedding",
    }
    for name, reason in absent.items():
        if getattr(options, name, False):
            raise ValueError(f"{flag(name)}: not supported by FSMTForConditionalGeneration: {reason}")
    if options.activation_fn not in ("relu", "gelu"):
        raise ValueError(f"--activation-fn={options.activation_fn}: must be relu or gelu")
    widths = options.encoder_embed_dim, options.decoder_embed_dim
    if widths[0] != widths[1]:
        raise ValueError(f"--decoder-embed-dim={widths[1]}: must be the encoder's, {widths[0]}")
    rows = max_positions(options, "source"), max_positions(options, "target")
    if rows[0] != rows[1]:
        raise ValueError(f"--max-target-positions={rows[1]}: must be the source's, {rows[0]}")


def write(
    folder: Path,
    config: dict[str, Any],
    weights: dict[str, Tensor],
    dictionaries: list[Dictionary],
    pieces: Path | None,
) -> None:
    """Writes the folder, with a tokenizer whose token ids are those of the dictionary.

    Args:
        folder: where to write. If the target has its own dictionary, its tokenizer is in the subfolder `target`.
        config, weights: from :func:`converted`.
        dictionaries: of the source and the target, or of a language model, with the model's numbers of symbols.
        pieces: the sentencepiece model of the training text; None if it was split at spaces.

    Raises:
        ValueError: if no tokenizer can follow `pieces`, see :func:`_read_pieces`.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    is_translation = config["model_type"] == "fsmt"
    make_folder(folder)
    source, target = dictionaries[0], dictionaries[-1]
    eos = source.eos()
    if is_translation:
        ids = dict(bos_token_id=source.bos(), decoder_start_token_id=eos, forced_eos_token_id=eos)
    else:
        ids = dict(bos_token_id=config["bos_token_id"])
    ids |= dict(eos_token_id=eos, pad_token_id=source.pad())
    _write_json(folder / "config.json", {**config, **ids})
    search: dict[str, Any] = {}
    if is_translation:
        most = min(LONGEST, config["max_position_embeddings"] - 1)
        search = dict(SEARCH, max_length=most + 2, suppress_tokens=[source.pad()])
    _write_json(folder / "generation_config.json", {**ids, **search})
    start = None if is_translation else config["bos_token_id"]
    longest = config["max_position_embeddings"] if is_translation else None
    _write_tokenizer(folder, source, pieces, start, longest)
    if target != source:
        _write_tokenizer(folder / "target", target, pieces, start, longest)
    try:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # of a full disk
        raise OSError(f"{folder}: cannot be written: {error}") from None


def _write_tokenizer(
    folder: Path, dictionary: Dictionary, pieces: Path | None, start: int | None, longest: int | None
) -> None:
    """Writes the tokenizer of a dictionary.

    Args:
        folder: made if it is missing.
        dictionary, pieces: see :func:`tokenizer`.
        start: the symbol before a language model's text; None for translation, whose sentences have one at the end.
        longest: text in tokens, beyond which the tokenizer warns, and truncates if asked; None for any length.
    """
    make_folder(folder)
    end = dictionary.eos()
    template = f"$A {dictionary[end]}" if start is None else f"{dictionary[start]} $A"
    tokenizer(dictionary, pieces, template).save(str(folder / "tokenizer.json"))
    tokens = dict(bos=end if start is None else start, eos=end, pad=dictionary.pad(), unk=dictionary.unk())
    names = {f"{name}_token": dictionary[index] for name, index in tokens.items()}
    settings: dict[str, Any] = dict(tokenizer_class="PreTrainedTokenizerFast", add_bos_token=start is not None)
    settings |= {} if longest is None else dict(model_max_length=longest)
    _write_json(folder / "tokenizer_config.json", {**names, **settings})


def _write_json(path: Path, values: dict[str, Any]) -> None:
    write_text(path, json.dumps(values, indent=2) + "\n")


def tokenizer(dictionary: Dictionary, pieces: Path | None, template: str):
    """A `tokenizers.Tokenizer` whose token ids are the dictionary's indices.

    Args:
        dictionary: fairseq's dictionary.
        pieces: the sentencepiece model that segmented the text; None if it was split at spaces.
        template: the special tokens around a text `$A`, such as `$A </s>`.

    Raises:
        ValueError: see :func:`_read_pieces`.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    ids = {dictionary[index]: index for index in range(len(dictionary))}
    unknown = dictionary[dictionary.unk()]
    if pieces is None:
        tokenizer = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=unknown))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        proto = _read_pieces(pieces)
        tokenizer = tokenizers.Tokenizer(_model_of_pieces(ids, unknown, proto))
        tokenizer.normalizer = _normalizer_of_pieces(proto.normalizer_spec)
        # fairseq splits, too, at a tab, say, that the normalization leaves.
        cuts: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.WhitespaceSplit()]
        if own := _user_defined(proto):
            longest_first = sorted(map(re.escape, own), key=len, reverse=True)
            cuts.append(pre_tokenizers.Split(tokenizers.Regex("|".join(longest_first)), "isolated"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        blanks = int(proto.normalizer_spec.add_dummy_prefix)  # before the first word
        tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", blanks, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template,
        pair=f"{template} {template.replace('$A', '$B')}",
        special_tokens=[(dictionary[index], index) for index in (dictionary.bos(), dictionary.eos())],
    )
    special = (dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk())
    tokenizer.add_special_tokens([dictionary[index] for index in special])
    return tokenizer


def _read_pieces(path: Path):
    """The `ModelProto` of a sentencepiece model.

    Raises:
        ValueError: see :func:`load_pieces`; or if the model is neither BPE nor unigram, puts blanks after words, or
            changes its own user-defined symbols, which sentencepiece itself exempts.
    """
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    proto = ModelProto.FromString(load_pieces(path).serialized_model_proto())
    trainer = proto.trainer_spec
    if trainer.model_type not in (trainer.UNIGRAM, trainer.BPE):
        raise ValueError(f"--sentencepiece-model={path}: must be of type bpe or unigram")
    if trainer.treat_whitespace_as_suffix:
        raise ValueError(f"--sentencepiece-model={path}: must be trained without treat_whitespace_as_suffix")
    normalizer = _normalizer_of_pieces(proto.normalizer_spec)
    for piece in _user_defined(proto):
        if normalizer.normalize_str(piece).removeprefix("▁") != piece:
            rule = "must not be one that its normalization changes"
            raise ValueError(f"--sentencepiece-model={path}: user-defined symbol {piece!r} {rule}")
    return proto


def load_pieces(path: Path):
    """A sentencepiece model's processor. Raises ValueError if the file is none."""
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=path.read_bytes())
    except RuntimeError:
        raise ValueError(f"--sentencepiece-model={path}: not a sentencepiece model") from None


def _user_defined(proto) -> list[str]:
    """The pieces that are never split or joined, such as tags of languages."""
    return [piece.piece for piece in proto.pieces if piece.type == piece.USER_DEFINED]


def _normalizer_of_pieces(spec):
    """What sentencepiece does to a text before its segmentation, by a `NormalizerSpec`."""
    from tokenizers import Regex, normalizers

    steps = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(r"\A +| +\z| +(?= )"), ""))
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])


def _model_of_pieces(ids: dict[str, int], unknown: str, proto):
    """A sentencepiece model's segmentation with the dictionary's numbering.

    A piece that never occurred in the training text is an unknown symbol in fairseq. Here, a BPE model gives it an id
    beyond the embedding, which the model rejects; a unigram model segments it into known pieces.
    """
    from tokenizers import models

    scores = {piece.piece: piece.score for piece in proto.pieces}
    in_bytes = proto.trainer_spec.byte_fallback
    if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        worst = min(scores.values()) - 10
        ordered = sorted(ids, key=ids.get)
        return models.Unigram(
            [(piece, scores.get(piece, worst)) for piece in ordered], unk_id=ids[unknown], byte_fallback=in_bytes
        )
    # Intermediate pieces of a merge may not be in the dictionary; they are numbered after its symbols.
    absent = sorted(set(scores) - set(ids))
    all_ids = {**ids, **{piece: len(ids) + offset for offset, piece in enumerate(absent)}}
    merges = []
    for piece in scores:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                merges.append((-scores[piece], all_ids[left], all_ids[right], left, right))
    pairs = [(left, right) for *_, left, right in sorted(merges)]
    whole = bool(_user_defined(proto))  # which no merge makes
    return models.BPE(all_ids, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=in_bytes, ignore_merges=whole)
